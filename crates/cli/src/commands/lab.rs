//! `pellucid lab`: measurements.

use super::{print, print_json, say};
use crate::args::{LabCommand, SpeedArgs};
use crate::failure::Failure;
use crate::{files, models};
use pellucid_lab::speed::{self, Measurement, Suite};
use pellucid_lab::{protocol::Request, worker};
use pellucid_models::{program_of, pull};
use std::io::Read;

pub fn run(command: LabCommand) -> Result<(), Failure> {
    match command {
        LabCommand::Worker => answer(),
        LabCommand::Speed(args) => measure_speed(args),
    }
}

fn answer() -> Result<(), Failure> {
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(|error| Failure::usage(format!("stdin: {error}"), "send one JSON request"))?;
    let request: Request = serde_json::from_str(&text).map_err(|error| {
        Failure::usage(format!("not a request: {error}"), "crates/lab/src/protocol.rs says what a request is")
    })?;
    print_json(&worker::answer(&request).map_err(failure)?)
}

fn measure_speed(args: SpeedArgs) -> Result<(), Failure> {
    files::check(args.out.as_deref())?;
    let model = pull::resolve(&args.model)?;
    let assume = args.assume.assume;
    // The workers' stderr is theirs: what is to be said about the model is said here, once.
    models::warn(&program_of(Some(&model), assume.as_deref())?.1);
    let pellucid = std::env::current_exe().map_err(|error| Failure::internal(error.to_string()))?;
    let suite = Suite { model, assume, pellucid, python: args.python, rounds: args.rounds as usize };
    let measurements = speed::run(&suite, &mut |what| say(what)).map_err(failure)?;
    if let Some(path) = &args.out {
        let text = serde_json::to_string_pretty(&measurements).map_err(|error| Failure::internal(error.to_string()))?;
        files::write(path, text.as_bytes())?;
    }
    print(&report(&measurements))
}

fn report(measurements: &[Measurement]) -> String {
    let mut text = format!("{:<50} {:>10}  {:>24}  against\n", "measurement (f32)", "ours", "times as fast (range)");
    for measurement in measurements {
        let (mean, low, high) = measurement.summary();
        let ours = format!("{:.1} ms", measurement.our_seconds() * 1e3);
        text += &format!(
            "{:<50} {ours:>10}  {:>24}  {}\n",
            measurement.name,
            format!("{mean:.2} ({low:.2} to {high:.2})"),
            measurement.against
        );
    }
    let peak = measurements
        .iter()
        .flat_map(|m| &m.ours)
        .map(|a| a.peak_bytes as f64 / a.weight_bytes.max(1) as f64)
        .fold(0.0, f64::max);
    text + &format!("peak memory: at most {peak:.2} times the stored weights\n")
}

fn failure(error: pellucid_lab::Error) -> Failure {
    match error {
        pellucid_lab::Error::Model(error) => error.into(),
        other => {
            Failure::no(other.to_string(), "run the worker by hand to see more: pellucid lab __worker < request.json")
        }
    }
}
