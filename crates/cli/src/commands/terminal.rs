//! Width and colors of the terminal.

use pellucid_analysis::lens::ColorDepth;
use std::io::IsTerminal;

/// Width if the terminal's is unknown.
const PLAIN_WIDTH: usize = 100;

/// Returns the number of columns of the terminal.
pub fn terminal_width() -> usize {
    terminal_size::terminal_size().map_or(PLAIN_WIDTH, |(width, _)| width.0 as usize)
}

/// Returns the color depth: none without a terminal or with `NO_COLOR`.
pub fn color_depth() -> ColorDepth {
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
