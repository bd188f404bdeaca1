//! Progress on stderr, for anything that takes more than a second.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// Work is announced only once it has taken this long.
const LATE: Duration = Duration::from_secs(1);

/// A bar that appears only when the work turns out to take long. Nothing is drawn where stderr is not a terminal.
pub struct Late {
    started: Instant,
    what: &'static str,
    bar: RefCell<Option<ProgressBar>>,
}

impl Late {
    /// Work that has just begun.
    pub fn new(what: &'static str) -> Late {
        Late { started: Instant::now(), what, bar: RefCell::new(None) }
    }

    /// Says how much is done, from 0 to 1.
    pub fn set(&self, fraction: f32) {
        if self.started.elapsed() < LATE {
            return;
        }
        let mut bar = self.bar.borrow_mut();
        let bar = bar
            .get_or_insert_with(|| bar_of(1000, "{msg:16} [{bar:32}] {percent:>3}% {elapsed}").with_message(self.what));
        bar.set_position((fraction * 1000.0) as u64);
    }

    /// Clears the bar.
    pub fn finish(&self) {
        if let Some(bar) = self.bar.borrow_mut().take() {
            bar.finish_and_clear();
        }
    }
}

/// A bar on stderr.
pub fn bar_of(length: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("━╸ "));
    }
    bar
}
