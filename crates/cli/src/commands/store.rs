//! `pellucid store` and `replay`: results of sessions.

use super::analyze::observer;
use super::{print, print_json, say};
use crate::args::{ExportFormatArg, ReplayArgs, StoreCommand, StoreDiffArgs, StoreExportArgs, StoreShowArgs};
use crate::failure::Failure;
use crate::files;
use crate::interrupt::interrupt;
use pellucid_sessions::Store;
use pellucid_sessions::ops::Registry;
use pellucid_sessions::session;
use pellucid_sessions::store::{ExportFormat, diff, diff_text, export, phases_text, summarize, summary_text, to_html};
use serde_json::json;

pub fn run(command: StoreCommand) -> Result<(), Failure> {
    match command {
        StoreCommand::Show(args) => show(args),
        StoreCommand::Diff(args) => run_diff(args),
        StoreCommand::Export(args) => run_export(args),
    }
}

fn show(args: StoreShowArgs) -> Result<(), Failure> {
    files::check(args.html.as_deref())?;
    let store = Store::open(&args.store)?;
    let mut summary = summarize(&store)?;
    if let Some(path) = &args.html {
        files::write(path, to_html(&store, &summary, args.top).as_bytes())?;
        say(&format!("wrote {}", path.display()));
        return Ok(());
    }
    if args.json {
        summary.hooks.iter_mut().for_each(|hook| hook.latents.truncate(args.top));
        return print_json(&json!({"summary": summary, "manifest": store.manifest()}));
    }
    print(&summary_text(&store, &summary, args.top))?;
    if args.phases { print(&format!("\n{}", phases_text(&store.manifest().phases))) } else { Ok(()) }
}

fn run_diff(args: StoreDiffArgs) -> Result<(), Failure> {
    let difference = diff(&Store::open(&args.left)?, &Store::open(&args.right)?)?;
    if args.json {
        print_json(&difference)?
    } else {
        print(&diff_text(&difference))?
    }
    match difference.is_equal() {
        true => Ok(()),
        false => Err(Failure::no(format!("{} columns differ", difference.columns.len()), "")),
    }
}

fn run_export(args: StoreExportArgs) -> Result<(), Failure> {
    let format = match args.format {
        ExportFormatArg::Csv => ExportFormat::Csv,
        ExportFormatArg::Jsonl => ExportFormat::Jsonl,
        ExportFormatArg::Parquet => ExportFormat::Parquet,
        ExportFormatArg::Safetensors => ExportFormat::Safetensors,
    };
    for path in export(&Store::open(&args.store)?, format, &args.output)? {
        say(&format!("wrote {}", path.display()));
    }
    Ok(())
}

pub fn replay(args: ReplayArgs) -> Result<(), Failure> {
    let store = Store::open(&args.store)?;
    let mut observer = observer();
    let report = session::replay(&store, &args.set, &Registry::default(), Some(interrupt()?), &mut observer)?;
    drop(observer);
    if args.json {
        print_json(&report)?;
    }
    report.changes.iter().for_each(|change| say(&format!("changed: {change}")));
    let Some(difference) = &report.difference else {
        let text = format!("{} examples, {} columns: every bit is equal\n", report.examples, report.columns);
        return if args.json { Ok(()) } else { print(&text) };
    };
    let column = &difference.column;
    Err(Failure::no(
        format!(
            "`{}.{}` differs in part {}, row {}: {} is recorded, {} is computed now",
            column.table,
            column.column,
            difference.part,
            column.first_row.unwrap_or(0),
            column.left,
            column.right
        ),
        if report.changes.is_empty() { "" } else { "see above for what has changed since" },
    ))
}
