//! `pellucid lab selftest`: the lab tried on itself.

use super::{end, failure, print, print_json, say, session};
use crate::args::LabSelftestArgs;
use crate::failure::Failure;
use pellucid_lab::environment::Environment;
use pellucid_lab::executor::Processes;
use pellucid_lab::selftest::{self, Trial};
use pellucid_lab::session::Setting;

pub fn run(args: LabSelftestArgs) -> Result<(), Failure> {
    if !(0.0..=1.0).contains(&args.slow) {
        return Err(Failure::usage(format!("slower by {}", args.slow), "give a share between 0 and 1, such as 0.03"));
    }
    let trial = Trial { sessions: args.sessions as usize, pairs: args.pairs as usize, slow: args.slow };
    let model = session::found(&args.model, None)?;
    let pellucid = std::env::current_exe().map_err(|error| Failure::internal(error.to_string()))?;
    // Two files with the same bytes at two places: as different as two builds of one source can be.
    let dir = tempfile::tempdir().map_err(|error| Failure::usage(error.to_string(), "make room for two copies"))?;
    let copy = |name: &str| {
        let path = dir.path().join(name).join("pellucid");
        let made = std::fs::create_dir(dir.path().join(name)).and_then(|()| std::fs::copy(&pellucid, &path));
        made.map(|_| path).map_err(|error| {
            Failure::usage(format!("{}: {error}", dir.path().display()), "make room for two copies of this program")
        })
    };
    let (one, other) = (copy("build-one")?, copy("build-with-a-longer-name")?);
    let suite = selftest::suite([&one, &other], &trial);
    let environment = Environment::here(&model);
    let begin = |seed: u64| {
        let setting = Setting {
            model: model.clone(),
            assume: None,
            seed,
            environment: environment.clone(),
            command: std::env::args().collect(),
            earlier: vec![],
        };
        (setting, Processes::new(pellucid.clone(), None))
    };
    let finding = selftest::run(&suite, &trial, begin, |number, so_far| {
        say(&format!(
            "session {number} of {}: {} false verdicts, {} invalid, slowed build found {}, open {}",
            trial.sessions, so_far.false_verdicts, so_far.invalid, so_far.found, so_far.open
        ));
    })
    .map_err(failure)?;
    if args.json {
        print_json(&finding)?
    } else {
        print(&finding.text())?
    }
    let code = match finding.holds() {
        true => 0,
        false if finding.invalid == finding.sessions => 5,
        false => 1,
    };
    end(code, true)
}
