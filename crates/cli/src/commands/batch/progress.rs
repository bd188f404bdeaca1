//! Progress of a batch on stderr: a status line in a terminal, otherwise a line now and then.

use crate::commands::say;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pellucid_engine::Load;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Interval of lines if stderr is not a terminal.
const INTERVAL: Duration = Duration::from_secs(10);

/// Requests and tokens so far.
#[derive(Clone, Copy, Default)]
pub struct Counts {
    pub done: usize,
    pub failed: usize,
    pub skipped: usize,
    /// New tokens, also of running requests.
    pub tokens: usize,
}

pub struct BatchProgress {
    started: Instant,
    /// The status line in a terminal.
    bar: Option<ProgressBar>,
    last_line: Instant,
}

impl BatchProgress {
    pub fn start() -> BatchProgress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.set_style(ProgressStyle::with_template("{wide_msg}").unwrap_or(ProgressStyle::default_spinner()));
            bar
        });
        let now = Instant::now();
        BatchProgress { started: now, bar, last_line: now }
    }

    /// Shows the counts and the load of the scheduler.
    pub fn show(&mut self, counts: Counts, load: Load) {
        let line = || {
            let failed = if counts.failed > 0 { format!(", {} failed", counts.failed) } else { String::new() };
            format!(
                "{} done{failed}, {} running, {} waiting; {:.0} new tokens/s",
                counts.done,
                load.running,
                load.waiting,
                self.rate(counts)
            )
        };
        match &self.bar {
            Some(bar) => bar.set_message(line()),
            None if self.last_line.elapsed() >= INTERVAL => {
                say(&line());
                self.last_line = Instant::now();
            }
            None => {}
        }
    }

    /// Replaces the status line by totals.
    pub fn finish(&self, counts: Counts) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let Counts { done, failed, skipped, tokens } = counts;
        let skipped = if skipped > 0 { format!(", {skipped} finished earlier") } else { String::new() };
        say(&format!("{done} done, {failed} failed{skipped}; {tokens} new tokens"));
        say(&format!("time: {:.2} s, {:.1} new tokens/s", self.started.elapsed().as_secs_f64(), self.rate(counts)));
    }

    /// New tokens per second since the start.
    fn rate(&self, counts: Counts) -> f64 {
        counts.tokens as f64 / self.started.elapsed().as_secs_f64().max(1e-9)
    }
}
