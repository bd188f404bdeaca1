//! `pellucid lens`: the logit lens, in the terminal or as a page.

use super::{print, print_json, say};
use crate::args::{InputArgs, LensArgs};
use crate::failure::Failure;
use crate::{files, inputs, models};
use pellucid_analysis::lens::{self, ColorDepth, TerminalOptions};
use std::io::IsTerminal;

/// Width if the terminal's is unknown.
const PLAIN_WIDTH: usize = 100;

pub fn run(args: LensArgs) -> Result<(), Failure> {
    files::check(args.html.as_deref())?;
    let loaded = models::load(&args.model)?;
    let input = InputArgs {
        prompts: args.prompt.into_iter().collect(),
        tokens: args.tokens.into_iter().collect(),
        ..InputArgs::default()
    };
    let prompts = inputs::prompts(loaded, &input, None)?;
    let table = lens::compute(loaded, &prompts.rows[0])?;
    if args.json {
        return print_json(&table);
    }
    if let Some(path) = &args.html {
        files::write(path, lens::html(&table).as_bytes())?;
        say(&format!("wrote {}", path.display()));
        return Ok(());
    }
    let width = terminal_size::terminal_size().map_or(PLAIN_WIDTH, |(width, _)| width.0 as usize);
    print(&lens::terminal(&table, &TerminalOptions { width, color: color_depth(), top: args.top as usize }))
}

/// Returns the color depth: none without a terminal or with `NO_COLOR`.
fn color_depth() -> ColorDepth {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let forced = set("CLICOLOR_FORCE").is_some_and(|value| value != "0");
    if set("NO_COLOR").is_some()
        || (!forced && (!std::io::stdout().is_terminal() || set("TERM").is_some_and(|term| term == "dumb")))
    {
        ColorDepth::None
    } else if set("COLORTERM").is_some_and(|value| value == "truecolor" || value == "24bit") {
        ColorDepth::TrueColor
    } else {
        ColorDepth::Ansi256
    }
}
