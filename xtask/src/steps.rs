//! Runs steps one after the other, even after a failure, times them, and prints a table at the end.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Result of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepOutcome {
    /// The step succeeded.
    Passed,
    /// The step failed, for this reason; empty if the step's own output shows it.
    Failed(String),
    /// The step did not run. `fatal`: the whole command then fails.
    Skipped { why: String, fatal: bool },
}

impl StepOutcome {
    /// `Passed` without problems, `Failed` with them.
    pub fn of(problems: &[String]) -> StepOutcome {
        if problems.is_empty() { StepOutcome::Passed } else { StepOutcome::Failed(problems.join("\n")) }
    }
}

struct StepRow {
    name: String,
    outcome: StepOutcome,
    wall: Duration,
    cpu: Option<Duration>,
}

/// The steps so far.
#[derive(Default)]
pub struct Steps {
    rows: Vec<StepRow>,
    summaries: Vec<String>,
}

impl Steps {
    /// Runs a step and records its time; returns whether it passed.
    pub fn step(&mut self, name: &str, work: impl FnOnce(&mut Vec<String>) -> StepOutcome) -> bool {
        println!("\n== {name}");
        let (start, before) = (Instant::now(), children_cpu());
        let outcome = work(&mut self.summaries);
        let cpu = before.zip(children_cpu()).map(|(before, after)| after.saturating_sub(before));
        match &outcome {
            StepOutcome::Failed(why) if !why.is_empty() => println!("{why}"),
            StepOutcome::Skipped { why, .. } => println!("not run: {why}"),
            _ => {}
        }
        let passed = outcome == StepOutcome::Passed;
        self.rows.push(StepRow { name: name.into(), outcome, wall: start.elapsed(), cpu });
        passed
    }

    /// Runs a command as a step.
    pub fn command(&mut self, name: &str, command: &mut Command) -> bool {
        self.step(name, |summaries| run(command, summaries))
    }

    /// Records a step that does not run.
    pub fn skip(&mut self, name: &str, why: &str, fatal: bool) {
        self.step(name, |_| StepOutcome::Skipped { why: why.into(), fatal });
    }

    /// Prints the summary lines of the test runners and the table of steps.
    pub fn finish(self) -> ExitCode {
        if !self.summaries.is_empty() {
            println!("\n== summaries\n{}", self.summaries.join("\n"));
        }
        println!("\n{}", table(&self.rows));
        let wrong =
            |row: &&StepRow| !matches!(row.outcome, StepOutcome::Passed | StepOutcome::Skipped { fatal: false, .. });
        match self.rows.iter().filter(wrong).count() {
            0 => ExitCode::SUCCESS,
            count => {
                println!("{count} of {} steps did not pass", self.rows.len());
                ExitCode::FAILURE
            }
        }
    }
}

/// Runs a command, forwards its output, and collects the summary lines of test runners.
fn run(command: &mut Command, summaries: &mut Vec<String>) -> StepOutcome {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = match command.stdout(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => return StepOutcome::Failed(format!("{program}: {error}")),
    };
    for line in BufReader::new(child.stdout.take().expect("piped")).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        if is_summary(&line) {
            summaries.push(line.into_owned());
        }
    }
    match child.wait() {
        Ok(status) if status.success() => StepOutcome::Passed,
        Ok(status) => StepOutcome::Failed(format!("{program}: {status}")),
        Err(error) => StepOutcome::Failed(format!("{program}: {error}")),
    }
}

/// Whether a line is the summary of cargo's test runner or of pytest (`===== 270 passed in 80.1s
/// =====`).
fn is_summary(line: &str) -> bool {
    let counts = || [" passed", " failed", " error"].iter().any(|word| line.contains(word));
    line.starts_with("test result:") || (line.starts_with("==") && line.contains(" in ") && counts())
}

fn table(rows: &[StepRow]) -> String {
    let width = rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0).max(4);
    let mut text = format!("{:<width$}  {:<7}  {:>7}  {:>7}\n", "step", "result", "wall", "CPU");
    let mut line = |name: &str, result: &str, wall: Duration, cpu: Option<Duration>| {
        let cpu = cpu.map_or_else(|| "-".into(), clock);
        text += format!("{name:<width$}  {result:<7}  {:>7}  {cpu:>7}", clock(wall)).trim_end();
        text.push('\n');
    };
    for row in rows {
        let result = match row.outcome {
            StepOutcome::Passed => "ok",
            StepOutcome::Failed(_) => "FAILED",
            StepOutcome::Skipped { .. } => "not run",
        };
        line(&row.name, result, row.wall, row.cpu);
    }
    line("all", "", rows.iter().map(|row| row.wall).sum(), rows.iter().map(|row| row.cpu).sum());
    text
}

/// Formats minutes and seconds.
fn clock(time: Duration) -> String {
    let tenths = (time.as_secs_f64() * 10.0).round() as u64;
    format!("{}:{:02}.{}", tenths / 600, tenths / 10 % 60, tenths % 10)
}

/// Returns the CPU time of all finished child processes. Linux only: the standard library has no
/// such function.
fn children_cpu() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The program's name in parentheses may contain anything. The children's user and system times
    // are the 14th and 15th field after it.
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let ticks = fields.get(13)?.parse::<u64>().ok()? + fields.get(14)?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_of_both_runners_are_recognized() {
        assert!(is_summary("test result: ok. 3 passed; 0 failed; 0 ignored; finished in 0.1s"));
        assert!(is_summary("====== 1 failed, 269 passed in 80.12s (0:01:20) ======"));
        assert!(!is_summary("test a_sum_is_a_sum ... ok") && !is_summary("===== test session starts ====="));
    }

    #[test]
    fn the_table_names_every_step_and_its_times() {
        let row = |name: &str, outcome, seconds| StepRow {
            name: name.into(),
            outcome,
            wall: Duration::from_secs(seconds),
            cpu: Some(Duration::from_millis(2 * 1000 * seconds + 40)),
        };
        let skipped = StepOutcome::Skipped { why: "no network".into(), fatal: true };
        let rows = [
            row("lints", StepOutcome::Passed, 61),
            row("tests", StepOutcome::Failed(String::new()), 5),
            row("x", skipped, 0),
        ];
        let expected = "\
step   result      wall      CPU
lints  ok        1:01.0   2:02.0
tests  FAILED    0:05.0   0:10.0
x      not run   0:00.0   0:00.0
all              1:06.0   2:12.1
";
        assert_eq!(table(&rows), expected);
    }

    #[test]
    fn a_step_that_fails_does_not_stop_the_next_and_its_output_is_shown() {
        let (mut steps, mut echo) = (Steps::default(), Command::new("echo"));
        assert!(!steps.command("fails", &mut Command::new("false")));
        assert!(steps.command("says", echo.arg("test result: ok. 1 passed")));
        assert!(!steps.command("is not there", &mut Command::new("no-such-program")));
        steps.skip("not asked for", "--offline", false);
        assert_eq!((steps.rows.len(), steps.summaries.len()), (4, 1));
        assert_eq!(format!("{:?}", steps.finish()), format!("{:?}", ExitCode::FAILURE));
    }
}
