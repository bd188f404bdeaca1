//! `pellucid lab selftest`: checks the lab's verdicts on identical builds and on an injected
//! slowdown.

use super::{exit_with, failure, print, print_json, say, session};
use crate::args::LabSelftestArgs;
use crate::failure::Failure;
use pellucid_lab::environment::Environment;
use pellucid_lab::executor::Processes;
use pellucid_lab::selftest::{self, SelftestOptions};
use pellucid_lab::session::SessionContext;

pub fn run(args: LabSelftestArgs) -> Result<(), Failure> {
    if !(0.0..=1.0).contains(&args.slow) {
        return Err(Failure::usage(
            format!("a slowdown of {}", args.slow),
            "give a fraction between 0 and 1, such as 0.03",
        ));
    }
    let options = SelftestOptions { sessions: args.sessions as usize, pairs: args.pairs as usize, slow: args.slow };
    let model = session::resolve_model(&args.model, None)?;
    let pellucid = crate::own_program()?;
    // Two identical files at different paths: as different as two builds of one source can be.
    let dir = tempfile::tempdir()
        .map_err(|error| Failure::usage(error.to_string(), "free disk space for two copies of this program"))?;
    let copy = |name: &str| {
        let path = dir.path().join(name).join("pellucid");
        let copied = std::fs::create_dir(dir.path().join(name)).and_then(|()| std::fs::copy(&pellucid, &path));
        copied.map(|_| path).map_err(|error| {
            Failure::usage(
                format!("{}: {error}", dir.path().display()),
                "free disk space for two copies of this program",
            )
        })
    };
    let (one, other) = (copy("build-one")?, copy("build-with-a-longer-name")?);
    let suite = selftest::suite([&one, &other], &options);
    let environment = Environment::detect(&model);
    let begin = |seed: u64| {
        let setting = SessionContext {
            model: model.clone(),
            assume: None,
            seed,
            environment: environment.clone(),
            command: std::env::args().collect(),
            earlier: vec![],
        };
        (setting, Processes::new(pellucid.clone(), None))
    };
    let result = selftest::run(&suite, &options, begin, |number, so_far| {
        say(&format!(
            "session {number} of {}: {} false verdicts, {} invalid, slowdown detected {}, inconclusive {}",
            options.sessions, so_far.false_verdicts, so_far.invalid, so_far.found, so_far.open
        ));
    })
    .map_err(failure)?;
    if args.json {
        print_json(&result)?
    } else {
        print(&result.text())?
    }
    let code = match result.holds() {
        true => 0,
        false if result.invalid == result.sessions => 5,
        false => 1,
    };
    exit_with(code, true)
}
