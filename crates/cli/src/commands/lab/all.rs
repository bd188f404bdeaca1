//! `pellucid lab all`: every suite that can run here, one report each.

use super::{end, print, say, session, write_outputs};
use crate::args::{AssumeArg, LabAllArgs, LabOutputs, LabRunArgs};
use crate::failure::Failure;
use pellucid_lab::{report, suites};

/// What `--quick` gives each suite: enough to see states and gross losses, in a few minutes for all of them.
const QUICK_PAIRS: u32 = 2;
const QUICK_SECONDS: f64 = 100.0;

pub fn run(args: LabAllArgs) -> Result<(), Failure> {
    std::fs::create_dir_all(&args.dir).map_err(|error| {
        Failure::usage(format!("cannot make {}: {error}", args.dir.display()), "give a directory of your own: --dir")
    })?;
    let mut codes = Vec::new();
    let mut summary = format!("{:<10} {:>5} {:>7}  {}\n", "suite", "runs", "seconds", "verdict");
    for name in suites::names() {
        say(&format!("== {name}"));
        let path = |ending: &str| Some(args.dir.join(format!("{name}.{ending}")));
        let asked = LabRunArgs {
            suite: name.into(),
            model: args.model.clone(),
            assume: AssumeArg { assume: None },
            python: args.python.clone(),
            pairs: args.quick.then_some(QUICK_PAIRS),
            budget: args.quick.then_some(QUICK_SECONDS),
            seed: args.seed,
            log: None,
            baseline: None,
            gate: args.gate,
            allocations: false,
            outputs: LabOutputs { out: path("json"), html: path("html"), markdown: path("md"), bencher: None },
        };
        let result = session::measure(&asked)?;
        write_outputs(&result, &asked.outputs)?;
        print(&format!("{}\n", report::text(&result)))?;
        summary +=
            &format!("{name:<10} {:>5} {:>7.0}  {}\n", result.runs.len(), result.session.seconds, result.verdict());
        codes.push(result.exit_code());
    }
    print(&summary)?;
    say(&format!("reports are in {}", args.dir.display()));
    // A loss is worse than a machine that cannot tell, which is worse than too few pairs.
    let worst = [1, 5, 4].into_iter().find(|code| codes.contains(code)).unwrap_or(0);
    end(worst, args.gate)
}
