//! Input rows from prompts, token ids and files; plans from files and flags.

use crate::args::{InputArgs, PlanArgs};
use crate::failure::Failure;
use pellucid_engine::{Action, Plan, Positions, Tap};
use pellucid_models::steer::SteerSpec;
use pellucid_models::{LoadedModel, prepare};
use serde::Deserialize;
use std::path::Path;

/// A line of an input file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Text(String),
    Tokens(Vec<u32>),
    Named { text: String },
    NamedTokens { tokens: Vec<u32> },
}

/// Returns the input rows: prompts, then token lists, then the file's lines.
pub fn rows(loaded: &LoadedModel, input: &InputArgs, file: Option<&Path>) -> Result<Vec<Vec<u32>>, Failure> {
    let mut rows = Vec::new();
    for prompt in &input.prompts {
        rows.push(loaded.encode(prompt)?);
    }
    for list in &input.tokens {
        rows.push(token_list(list)?);
    }
    if let Some(path) = file {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::usage(format!("{}: {error}", path.display()), "check --input"))?;
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let line: Line = serde_json::from_str(line).map_err(|_| {
                Failure::usage(
                    format!("{}, line {}: neither text nor tokens", path.display(), number + 1),
                    "each line is \"text\", {\"text\": \"…\"}, [1,2,3] or {\"tokens\": [1,2,3]}",
                )
            })?;
            rows.push(match line {
                Line::Text(text) | Line::Named { text } => loaded.encode(&text)?,
                Line::Tokens(tokens) | Line::NamedTokens { tokens } => tokens,
            });
        }
    }
    if rows.is_empty() {
        return Err(Failure::usage("there is no prompt", "give a prompt, --tokens 1,2,3 or --input F.jsonl"));
    }
    Ok(rows)
}

fn token_list(text: &str) -> Result<Vec<u32>, Failure> {
    let list: Option<Vec<u32>> = text.split(',').map(|id| id.trim().parse().ok()).collect();
    list.ok_or_else(|| {
        Failure::usage(
            format!("--tokens {text:?} is not a list of token ids"),
            "write ids with commas, such as --tokens 1,2,3",
        )
    })
}

/// Returns the plan file's taps, the steering vectors of `--steer`, then the captures of the flags,
/// which therefore see edited values.
pub fn plan(loaded: &LoadedModel, args: &PlanArgs, rows: &[Vec<u32>]) -> Result<Plan, Failure> {
    let (mut plan, base) = match &args.plan {
        None => (Plan::default(), Path::new(".")),
        Some(path) => (read_plan(path)?, path.parent().unwrap_or(Path::new("."))),
    };
    for text in &args.steer {
        let (taps, warning) = SteerSpec::parse(text)?.taps(loaded)?;
        plan.taps.extend(taps);
        crate::models::warn(warning.as_slice());
    }
    plan.taps.extend(capture_taps(args));
    Ok(prepare(plan, base, rows, loaded.tokenizer.as_deref())?)
}

/// Reads a plan file.
pub fn read_plan(path: &Path) -> Result<Plan, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("{}: {error}", path.display()), "check --plan"))?;
    Plan::from_json(&text).map_err(|error| {
        Failure::usage(format!("{}: {error}", path.display()), "docs/plans.md shows the form of a plan")
    })
}

/// Returns the taps of `--capture`.
pub fn capture_taps(args: &PlanArgs) -> Vec<Tap> {
    let positions = Positions::parse(&args.positions);
    let tap = |site: &String| Tap::new(site, Action::Capture(None)).positions(positions.clone());
    args.capture.iter().map(tap).collect()
}
