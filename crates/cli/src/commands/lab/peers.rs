//! `pellucid lab peers --families …`: which library computes which method correctly on which
//! family.

use super::{exit_with, failure, print, say, session};
use crate::args::LabPeersArgs;
use crate::failure::Failure;
use crate::files;
use pellucid_lab::environment::Environment;
use pellucid_lab::executor::Processes;
use pellucid_lab::session::SessionContext;
use pellucid_lab::survey::{self, Family};
use pellucid_lab::{builtin_suites, report};
use std::path::Path;

pub fn run(args: LabPeersArgs) -> Result<(), Failure> {
    let options = &args.options;
    [&options.outputs.out, &options.outputs.markdown].into_iter().try_for_each(|path| files::check(path.as_deref()))?;
    if options.outputs.html.is_some() || options.outputs.bencher.is_some() {
        return Err(Failure::usage(
            "the page of families has no times",
            "write it with --markdown, and its cells with --out",
        ));
    }
    let mut suite = builtin_suites::named("peers").expect("it comes with the lab").map_err(failure)?;
    session::leave_out_absent(&mut suite, options.python.as_deref())?;
    let pellucid = crate::own_program()?;
    let mut families: Vec<Family> = Vec::new();
    for name in &args.families {
        let model = session::resolve_model(name, options.assume.assume.as_deref())?;
        let setting = SessionContext {
            environment: Environment::detect(&model),
            model,
            assume: options.assume.assume.clone(),
            seed: options.seed,
            command: vec![],
            earlier: vec![],
        };
        let short =
            Path::new(name).file_name().map_or_else(|| name.clone(), |name| name.to_string_lossy().into_owned());
        let mut executor = Processes::new(pellucid.clone(), options.python.clone());
        families.push(survey::family(&short, &suite, &setting, &mut executor, &mut |cell| {
            say(&format!("{short} {} {}: {} {}", cell.workload, cell.variant, cell.state.name(), cell.why));
        }));
    }
    let names: Vec<&str> = families.iter().map(|family| family.name.as_str()).collect();
    // Local paths are left out: they are of no use to a reader.
    let command = format!("pellucid lab peers --python PYTHON --families {}", names.join(" "));
    let page = report::peers_page(&suite, &families, &command);
    if let Some(path) = &options.outputs.out {
        let text = serde_json::to_string_pretty(&families).map_err(|error| Failure::internal(error.to_string()))?;
        files::write(path, (text + "\n").as_bytes())?;
    }
    match &options.outputs.markdown {
        Some(path) => files::write(path, page.as_bytes())?,
        None => print(&page)?,
    }
    exit_with(i32::from(!survey::our_wrong_cells(&suite, &families).is_empty()), true)
}
