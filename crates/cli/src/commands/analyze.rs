//! `pellucid analyze`: runs an analysis session.

use super::{print, print_json, say};
use crate::args::AnalyzeArgs;
use crate::failure::Failure;
use crate::interrupt;
use crate::progress::DelayedProgressBar;
use pellucid_sessions::config::{ConfigSource, DebugConfig, schema};
use pellucid_sessions::debug::DebugReport;
use pellucid_sessions::ops::{COMPOSITES, OpSpec, Place, Registry};
use pellucid_sessions::session::{CheckReport, Event, Outcome};
use pellucid_sessions::store::{phases_text, summarize, summary_text};
use pellucid_sessions::{RunOptions, Session};
use serde_json::json;

/// Latents per SAE in the summary after a run.
const TOP: usize = 5;

pub fn run(args: AnalyzeArgs) -> Result<(), Failure> {
    if args.schema {
        return print_json(&schema());
    }
    let registry = Registry::default();
    if args.ops {
        return list_ops(&registry, args.json);
    }
    // A signal stops the session between ops; finished parts are kept.
    let interrupt = interrupt::interrupt()?;
    let mut observer = observer();
    let session = Session::open(&sources(&args), &registry, Some(interrupt.clone()), &mut observer)?;
    if args.check {
        let report = session.check()?;
        return if args.json { print_json(&report) } else { print(&check_text(&report)) };
    }
    let options = RunOptions { replace: args.replace, interrupt: Some(interrupt) };
    let outcome = session.run(&options, &mut observer).map_err(interrupted)?;
    drop(observer);
    if args.json {
        let summary = summarize(&outcome.store)?;
        let manifest = outcome.store.manifest();
        return print_json(&json!({
            "store": outcome.store.path(), "parts": outcome.parts, "reused": outcome.reused,
            "content_hash": manifest.content_hash, "phases": outcome.phases, "debug": manifest.debug,
            "summary": summary,
        }));
    }
    print(&outcome_text(&session, &outcome)?)
}

fn sources(args: &AnalyzeArgs) -> Vec<ConfigSource> {
    let files = args.files.iter().chain(&args.config).cloned().map(ConfigSource::File);
    let mut sources: Vec<ConfigSource> = files.chain(args.set.iter().cloned().map(ConfigSource::Set)).collect();
    if let Some(output) = &args.output {
        sources.push(ConfigSource::Json(json!({"output": {"path": output}})));
    }
    if args.debug {
        sources.push(ConfigSource::Json(json!({"debug": DebugConfig::default()})));
    }
    sources
}

fn interrupted(error: pellucid_models::Error) -> Failure {
    match error.cause() {
        pellucid_models::Error::Engine(pellucid_engine::Error::Interrupted) => {
            Failure::interrupted("the session was interrupted", "run it again: finished parts are reused")
        }
        _ => error.into(),
    }
}

/// Shows phases as progress bars and notes as lines on stderr.
pub(super) fn observer() -> impl FnMut(Event) {
    let mut bar: Option<DelayedProgressBar> = None;
    move |event| match event {
        Event::Phase(name) => {
            if let Some(old) = bar.take() {
                old.finish();
            }
            bar = Some(DelayedProgressBar::new(match name {
                "init" => "loading",
                "debug" => "debugging",
                "run" => "running ops",
                other => other,
            }));
        }
        Event::Progress(fraction) => {
            if let Some(bar) = &bar {
                bar.set(fraction);
            }
        }
        Event::Note(text) => say(&text),
    }
}

fn outcome_text(session: &Session, outcome: &Outcome) -> Result<String, Failure> {
    let mut text = String::new();
    if let Some(report) = session.debug_report() {
        text += &debug_text(report);
        text.push('\n');
    }
    text += &summary_text(&outcome.store, &summarize(&outcome.store)?, TOP);
    text.push('\n');
    say(phases_text(&outcome.phases).trim_end());
    let (parts, reused) = (outcome.parts, outcome.reused);
    let how = match reused {
        0 => String::new(),
        _ if reused == parts => " (up to date: nothing was computed)".into(),
        _ => format!(" ({reused} of {parts} parts reused)"),
    };
    text += &format!("wrote {}{how}\n", outcome.store.path().display());
    Ok(text)
}

fn debug_text(report: &DebugReport) -> String {
    let mut lines = vec![
        format!(
            "debug      perplexity {:.2}, top-1 {:.1} % of {} tokens; prompts of {} to {} tokens",
            report.perplexity,
            100.0 * report.top1_accuracy,
            report.tokens,
            report.lengths[0],
            report.lengths[1]
        ),
        format!("           {} layers, width {}, vocabulary {}", report.model[0], report.model[1], report.model[2]),
    ];
    lines.extend(
        report
            .generations
            .iter()
            .map(|own| format!("           {}: …{:?} → {:?}", own.example, own.prompt_end, own.text)),
    );
    lines.join("\n") + "\n"
}

fn check_text(report: &CheckReport) -> String {
    let saes = report.saes.iter().map(|(site, latents)| format!("{latents} latents at {site}")).collect::<Vec<_>>();
    let columns = |table: &str| {
        let own = report.columns.iter().filter(|column| column.table == table);
        own.map(|column| column.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let mut lines = vec![
        format!("session    {}", report.name),
        format!("model      {}", report.model),
        format!("SAEs       {}", if saes.is_empty() { "none".into() } else { saes.join("; ") }),
        format!("ops        {}", report.ops),
        format!(
            "examples   {} in {} parts; {} tokens, longest {}",
            report.examples, report.parts, report.tokens[0], report.tokens[1]
        ),
        format!("columns    examples: {}", columns("examples")),
    ];
    if report.columns.iter().any(|column| column.table == "latents") {
        lines.push(format!("           latents: {}", columns("latents")));
    }
    lines.push(format!("output     {}", report.output));
    say(&format!(
        "estimate: {:.0} MB peak, {:.2} s of forward passes",
        report.memory_bytes as f64 / 1e6,
        report.forward_seconds
    ));
    lines.push("the session is valid".into());
    lines.join("\n") + "\n"
}

fn list_ops(registry: &Registry, as_json: bool) -> Result<(), Failure> {
    let specs: Vec<&OpSpec> = registry.ops().iter().map(|op| op.spec()).collect();
    if as_json {
        let composites: Vec<_> = COMPOSITES
            .iter()
            .map(|own| json!({"name": own.name, "aliases": own.aliases, "chain": own.chain}))
            .collect();
        return print_json(&json!({"ops": specs, "composites": composites}));
    }
    let fields = |fields: &[pellucid_sessions::ops::Field]| {
        let name = |field: &pellucid_sessions::ops::Field| match field.place {
            Place::Latent => format!("latents.{}", field.name),
            _ => field.name.to_string(),
        };
        fields.iter().map(name).collect::<Vec<_>>().join(", ")
    };
    let mut text = String::new();
    for spec in specs {
        let also = if spec.aliases.is_empty() { String::new() } else { format!(" (also {})", spec.aliases.join(", ")) };
        text += &format!("{}{also}\n  {}\n", spec.name, spec.about);
        text += &format!("  {} → {}\n", fields(&spec.inputs), fields(&spec.outputs));
    }
    text.push('\n');
    for own in COMPOSITES {
        let also = if own.aliases.is_empty() { String::new() } else { format!(" (also {})", own.aliases.join(", ")) };
        text += &format!("{}{also} = {}\n", own.name, own.chain);
    }
    print(&text)
}
