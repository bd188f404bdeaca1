//! Progress bars on stderr, for work that takes more than a second.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// Delay before the bar appears.
const DELAY: Duration = Duration::from_secs(1);

/// A progress bar that appears after a delay, so that short work shows none. Nothing is drawn if
/// stderr is not a terminal.
pub struct DelayedProgressBar {
    started: Instant,
    what: &'static str,
    bar: RefCell<Option<ProgressBar>>,
}

impl DelayedProgressBar {
    /// Starts the delay.
    pub fn new(what: &'static str) -> DelayedProgressBar {
        DelayedProgressBar { started: Instant::now(), what, bar: RefCell::new(None) }
    }

    /// Sets the completed fraction, from 0 to 1.
    pub fn set(&self, fraction: f32) {
        if self.started.elapsed() < DELAY {
            return;
        }
        let mut bar = self.bar.borrow_mut();
        let bar = bar.get_or_insert_with(|| {
            progress_bar(1000, "{msg:16} [{bar:32}] {percent:>3}% {elapsed}").with_message(self.what)
        });
        bar.set_position((fraction * 1000.0) as u64);
    }

    /// Clears the bar.
    pub fn finish(&self) {
        if let Some(bar) = self.bar.borrow_mut().take() {
            bar.finish_and_clear();
        }
    }
}

/// Creates a bar on stderr.
pub fn progress_bar(length: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("━╸ "));
    }
    bar
}
