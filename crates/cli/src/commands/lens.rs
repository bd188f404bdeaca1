//! `pellucid lens`: the logit lens, in the terminal or as a page.

use super::{color_depth, print, print_result, say, terminal_width};
use crate::args::{InputArgs, LensArgs};
use crate::failure::Failure;
use crate::remote::ModelPlace;
use crate::{files, inputs, remote};
use pellucid_analysis::lens::{self, LensTable, TerminalOptions};
use pellucid_engine::Plan;
use serde_json::json;

pub fn run(args: LensArgs) -> Result<(), Failure> {
    files::check(args.html.as_deref())?;
    let place = remote::open(&args.model, &args.server, &[])?;
    let loaded = place.parts();
    let input = InputArgs {
        prompts: args.prompt.into_iter().collect(),
        tokens: args.tokens.into_iter().collect(),
        ..InputArgs::default()
    };
    let prompts = inputs::prompts(loaded, &input, None)?;
    let plan = Plan::of(inputs::splice_taps(loaded, &args.splice)?);
    let table = match &place {
        ModelPlace::Here(loaded) => lens::compute(loaded, &prompts.rows[0], &plan)?,
        ModelPlace::Server(model) => {
            let table = model.ask("/v1/lens", json!({ "prompt": prompts.rows, "plan": plan }))?;
            LensTable { model: loaded.name.clone(), ..table }
        }
    };
    if args.json {
        return print_result(loaded, &table);
    }
    if let Some(path) = &args.html {
        files::write(path, lens::html(&table).as_bytes())?;
        say(&format!("wrote {}", path.display()));
        return Ok(());
    }
    let (width, color) = (terminal_width(), color_depth());
    print(&lens::terminal(&table, &TerminalOptions { width, color, top: args.top as usize }))
}
