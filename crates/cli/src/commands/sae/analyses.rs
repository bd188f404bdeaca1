//! `pellucid sae eval`, `features` and `top`: analyses of an attached autoencoder.

use crate::args::{SaeAnalysisArgs, SaeEvalArgs, SaeFeaturesArgs, SaeTopArgs};
use crate::commands::{color_depth, print, print_result, say, terminal_width};
use crate::failure::Failure;
use crate::{files, models, progress};
use pellucid_analysis::lens::ColorDepth;
use pellucid_analysis::sae::{self, EvalOptions};
use pellucid_engine::Site;
use pellucid_models::LoadedModel;
use serde_json::json;
use std::path::Path;

/// Loads the model with its autoencoder: that of `--sae`, or the built-in one.
fn load(args: &SaeAnalysisArgs) -> Result<(&'static LoadedModel, Site), Failure> {
    let mut model = args.model.clone();
    if model.sae.is_empty() {
        model.sae.push(pellucid_models::sae::BUILTIN.into());
    }
    let loaded = models::load(&model)?;
    let site = sae::attached_site(&loaded.model, args.site.as_deref())?;
    Ok((loaded, site))
}

/// Reads a corpus as rows of at most `context` tokens.
fn rows(loaded: &LoadedModel, corpus: &Path, limit: u32, context: u32) -> Result<Vec<Vec<u32>>, Failure> {
    let texts = sae::read_texts(corpus)?;
    let context = (context as usize).min(loaded.model.program().architecture().context.unwrap_or(usize::MAX));
    let rows = texts.iter().take(limit as usize).map(|text| {
        let mut row = loaded.encode(text)?;
        row.truncate(context);
        Ok(row)
    });
    Ok(rows.collect::<Result<Vec<_>, pellucid_models::Error>>()?)
}

pub fn eval(args: SaeEvalArgs) -> Result<(), Failure> {
    let (loaded, site) = load(&args.analysis)?;
    let rows = rows(loaded, &args.corpus, args.limit, args.context)?;
    let special = loaded.tokenizer()?.encode("", true)?;
    let ignored = loaded.eos.iter().chain(&special).copied().collect();
    let bar = progress::DelayedProgressBar::new("evaluating");
    let eval = sae::evaluate(&loaded.model, site, &rows, &EvalOptions { ignored }, &mut |done| bar.set(done))?;
    bar.finish();
    if args.analysis.json { print_result(loaded, &eval) } else { print(&sae::eval_text(&eval)) }
}

pub fn features(args: SaeFeaturesArgs) -> Result<(), Failure> {
    files::check(args.html.as_deref())?;
    let (loaded, site) = load(&args.analysis)?;
    let table = sae::features(loaded, site, &loaded.encode(&args.prompt)?, args.top as usize, args.tokens)?;
    if args.analysis.json {
        return print_result(loaded, &table);
    }
    if let Some(path) = &args.html {
        files::write(path, sae::features_html(&table).as_bytes())?;
        say(&format!("wrote {}", path.display()));
        return Ok(());
    }
    print(&sae::features_text(&table, terminal_width(), color_depth() != ColorDepth::None))
}

pub fn top(args: SaeTopArgs) -> Result<(), Failure> {
    files::check(args.html.as_deref())?;
    let (loaded, site) = load(&args.analysis)?;
    let rows = rows(loaded, &args.corpus, args.limit, args.context)?;
    let bar = progress::DelayedProgressBar::new("reading the corpus");
    let examples =
        sae::top_examples(loaded, site, args.feature, &rows, args.count as usize, &mut |done| bar.set(done))?;
    bar.finish();
    if args.analysis.json {
        let result = json!({ "site": site.to_string(), "feature": args.feature, "examples": examples });
        return print_result(loaded, &result);
    }
    if let Some(path) = &args.html {
        files::write(path, sae::examples_html(&site.to_string(), args.feature, &examples).as_bytes())?;
        say(&format!("wrote {}", path.display()));
        return Ok(());
    }
    print(&sae::examples_text(args.feature, &examples, terminal_width(), color_depth() != ColorDepth::None))
}
