//! `pellucid lab performance`: time per op against the machine's limits, as a page.

use super::{print, say, session};
use crate::args::LabPerformanceArgs;
use crate::failure::Failure;
use crate::files;
use pellucid_lab::environment::Environment;
use pellucid_lab::{performance, report};
use std::path::Path;

pub fn run(args: LabPerformanceArgs) -> Result<(), Failure> {
    [&args.md, &args.json].into_iter().try_for_each(|path| files::check(path.as_deref()))?;
    let assume = args.assume.assume.as_deref();
    let model = session::resolve_model(&args.model, assume)?;
    let pellucid = crate::own_program()?;
    let found = performance::measure_storages(&model, assume, &pellucid, args.python.as_deref(), &mut say)
        .map_err(|why| Failure::invalid(why, "run `pellucid lab noise` to check this machine"))?;
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&found).map_err(|error| Failure::internal(error.to_string()))?;
        files::write(path, (text + "\n").as_bytes())?;
    }
    // Local paths are left out: they are of no use to a reader.
    let name =
        Path::new(&args.model).file_name().map_or_else(|| args.model.clone().into(), |name| name.to_string_lossy());
    let python = if args.python.is_some() { " --python PYTHON" } else { "" };
    let command = format!("pellucid lab performance --model {name}{python} --md docs/op-profile.md");
    let page = report::performance_page(&found, &name, &Environment::detect(&model), &command);
    match &args.md {
        Some(path) => files::write(path, page.as_bytes()),
        None => print(&page),
    }
}
