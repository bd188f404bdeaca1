//! `pellucid eval`: evaluates a model on tasks, plain and under plans.

use super::{print, print_result};
use crate::args::EvalArgs;
use crate::failure::Failure;
use crate::inputs::{PlanFile, read_plan_file, steering_taps};
use crate::{models, progress};
use pellucid_analysis::eval::{EvalOptions, Fewshot, Task, TaskOptions, Variant, eval_text, evaluate};
use pellucid_engine::Plan;
use serde_json::json;
use std::path::Path;

pub fn run(args: EvalArgs) -> Result<(), Failure> {
    let fewshot = Fewshot {
        count: args.num_fewshot.map(|count| count as usize),
        file: args.fewshot_file.clone(),
        seed: args.fewshot_seed,
    };
    let options = TaskOptions { limit: args.limit.map(|limit| limit as usize), fewshot };
    let tasks = args.tasks.iter().map(|path| Task::read(path, &options)).collect::<Result<Vec<_>, _>>()?;
    let files = args.plan.iter().map(|path| read_plan_file(path)).collect::<Result<Vec<_>, Failure>>()?;
    let saes: Vec<(&str, &Path)> = files.iter().flat_map(PlanFile::saes).collect();
    let loaded = models::load_with_saes(&args.model, &saes)?;
    let mut variants = vec![Variant::clean()];
    for (path, PlanFile { plan, directory }) in args.plan.iter().zip(files.clone()) {
        variants.push(Variant { name: stem(path), plan, directory });
    }
    for text in &args.steer {
        let plan = Plan::of(steering_taps(loaded, std::slice::from_ref(text))?);
        variants.push(Variant { name: text.clone(), plan, ..Variant::default() });
    }
    let options = EvalOptions { seed: args.seed, no_prefix: args.no_prefix, interrupt: None };
    let mut results = Vec::new();
    for task in &tasks {
        let bar = progress::DelayedProgressBar::new("evaluating");
        let evaluation = evaluate(loaded, task, &variants, &options, &mut |done| bar.set(done))?;
        bar.finish();
        if !args.json {
            print(&eval_text(&evaluation))?;
        }
        results.push(evaluation);
    }
    if args.json { print_result(loaded, &json!({ "tasks": results })) } else { Ok(()) }
}

fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(|| path.display().to_string(), |stem| stem.to_string_lossy().into_owned())
}
