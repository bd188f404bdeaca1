//! The lens as text: one line per layer, one column per token, colored by probability.

use super::color::{DARK, Rgb, dark_256};
use super::table::{LensRow, LensTable};
use crate::text::{cut, fit, one_line, visible, width};
use std::ops::{Range, RangeInclusive};

/// Minimum and maximum columns for token text (fewer only if the terminal is narrower).
const TOKEN_COLUMNS: RangeInclusive<usize> = 4..=10;
/// Marks a cell whose prediction equals the final row's.
const AGREES: char = '•';
/// Marks the final row.
const FINAL: char = '▸';

/// Colors that the terminal supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ColorDepth {
    /// None (a pipe, `NO_COLOR`): probabilities are printed as two digits, without escape
    /// sequences.
    #[default]
    None,
    /// The 256 colors of xterm.
    Ansi256,
    /// 24-bit colors.
    TrueColor,
}

/// Options of [`terminal`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TerminalOptions {
    /// Columns of the terminal; no line is wider. Longer prompts continue in another band below.
    pub width: usize,
    /// Colors to use.
    pub color: ColorDepth,
    /// Predictions per cell, one below the other (at least one).
    pub top: usize,
}

impl Default for TerminalOptions {
    /// The top prediction only, in 80 columns without color.
    fn default() -> Self {
        Self { width: 80, color: ColorDepth::None, top: 1 }
    }
}

/// Draws the table for a terminal, ending in a newline.
///
/// Rows follow the order of computation. A deep model's table is taller than the screen, and its
/// last row, the model's output, stays visible above the shell prompt.
///
/// ```
/// # use pellucid_analysis::lens::{Prediction, LensCell, LensRow, LensTable, TerminalOptions, terminal};
/// let predictions = vec![Prediction { token: " Tower".into(), id: 18669, probability: 0.93 }];
/// let cell = LensCell { predictions, entropy_bits: 0.6, kl_to_final_bits: 0.0, rank_of_final: 1 };
/// let row = LensRow { site: "logits".into(), label: "logits".into(), cells: vec![cell] };
/// let table = LensTable { model: "tiny".into(), prompt_tokens: vec![" Eiffel".into()], rows: vec![row] };
/// assert!(terminal(&table, &TerminalOptions::default()).contains("▸logits  ·Tower  93"));
/// ```
pub fn terminal(table: &LensTable, options: &TerminalOptions) -> String {
    let page = Page::new(table, options);
    let mut lines = vec![page.bold(&cut(&format!("logit lens: {}", one_line(&table.model)), page.width))];
    if table.is_empty() {
        lines.push(cut("nothing to show: the prompt has no tokens, or no layer was read", page.width));
    } else {
        for columns in page.bands() {
            lines.push(String::new());
            page.band(columns, &mut lines);
        }
        lines.push(String::new());
        page.legend(&mut lines);
    }
    lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Layout of the drawing.
struct Page<'a> {
    table: &'a LensTable,
    color: ColorDepth,
    top: usize,
    width: usize,
    label_width: usize,
    /// Columns of a cell in addition to its token: spaces, the digits shown without color, the
    /// agreement mark.
    extra: usize,
    /// The width of each column's cells.
    cell_widths: Vec<usize>,
}

impl<'a> Page<'a> {
    fn new(table: &'a LensTable, options: &TerminalOptions) -> Self {
        let (page_width, top) = (options.width.max(1), options.top.max(1));
        let widest_label = table.rows.iter().map(|row| width(&one_line(&row.label))).max().unwrap_or(0);
        // The final row's mark precedes the label; labels take at most a third of the width.
        let label_width = (1 + widest_label + 1).min(page_width / 3);
        let extra = if options.color == ColorDepth::None { 5 } else { 3 };
        let cell_width = |(column, token): (usize, &String)| {
            let cells = table.rows.iter().filter_map(|row| row.cells.get(column));
            let predictions =
                cells.flat_map(|cell| cell.predictions.iter().take(top)).map(|prediction| &prediction.token);
            let widest = predictions.chain([token]).map(|token| width(&visible(token))).max().unwrap_or(0);
            let token_width = widest.clamp(*TOKEN_COLUMNS.start(), *TOKEN_COLUMNS.end());
            (token_width + extra).min(page_width - label_width)
        };
        let cell_widths = table.prompt_tokens.iter().enumerate().map(cell_width).collect();
        Self { table, color: options.color, top, width: page_width, label_width, extra, cell_widths }
    }

    /// Splits the columns into as few bands as the width allows, as even as possible: 10 + 10
    /// columns are easier to compare than 17 + 3.
    fn bands(&self) -> Vec<Range<usize>> {
        let available = (self.width - self.label_width).min(self.cell_widths.iter().sum());
        let fewest = self.bands_within(available);
        let same_number = |available: &usize| self.bands_within(*available).len() == fewest.len();
        (1..available).rev().take_while(same_number).last().map_or(fewest.clone(), |least| self.bands_within(least))
    }

    /// Fills bands greedily with the columns that fit into `available`, at least one each.
    fn bands_within(&self, available: usize) -> Vec<Range<usize>> {
        let mut bands: Vec<Range<usize>> = Vec::new();
        let mut used = 0;
        for (column, cell_width) in self.cell_widths.iter().enumerate() {
            match bands.last_mut() {
                Some(band) if used + cell_width <= available => band.end = column + 1,
                _ => {
                    bands.push(column..column + 1);
                    used = 0;
                }
            }
            used += cell_width;
        }
        bands
    }

    /// Draws a header, the layers, a rule and the final row, for some of the columns.
    fn band(&self, columns: Range<usize>, lines: &mut Vec<String>) {
        let header: String = columns.clone().map(|column| self.header(column)).collect();
        let rule = "─".repeat(self.label_width + self.cell_widths[columns.clone()].iter().sum::<usize>());
        lines.push(" ".repeat(self.label_width) + &self.bold(&header));
        let last = self.table.rows.len() - 1;
        for (index, row) in self.table.rows.iter().enumerate() {
            if index == last && last > 0 {
                lines.push(self.faint(&rule));
            }
            for rank in 0..self.top {
                lines.push(self.line(row, index == last, rank, columns.clone()));
            }
        }
    }

    fn header(&self, column: usize) -> String {
        let (token, cell_width) = (visible(&self.table.prompt_tokens[column]), self.cell_widths[column]);
        // Spaces at both ends separate long neighbors.
        fit(&format!(" {}", cut(&token, cell_width.saturating_sub(2).max(1))), cell_width)
    }

    /// Draws the predictions of one rank (0 is the best) of a row.
    fn line(&self, row: &LensRow, is_final: bool, rank: usize, columns: Range<usize>) -> String {
        let label = match (rank, is_final) {
            (0, true) => self.bold(&fit(&format!("{FINAL}{}", one_line(&row.label)), self.label_width)),
            (0, false) => fit(&format!(" {}", one_line(&row.label)), self.label_width),
            _ => " ".repeat(self.label_width),
        };
        let cells = columns.map(|column| {
            let cell_width = self.cell_widths[column];
            let Some((cell, prediction)) =
                row.cells.get(column).and_then(|cell| Some((cell, cell.predictions.get(rank)?)))
            else {
                return " ".repeat(cell_width);
            };
            // The final row always agrees with itself, so it is not marked.
            let agrees = rank == 0 && !is_final && cell.agrees();
            let mut text =
                format!(" {}", fit(&visible(&prediction.token), cell_width.saturating_sub(self.extra).max(1)));
            match self.color {
                ColorDepth::None => text += &format!(" {}", two_digits(prediction.probability)),
                _ => text.push(' '),
            }
            text.push(if agrees { AGREES } else { ' ' });
            self.paint(&fit(&text, cell_width), prediction.probability, agrees || (is_final && rank == 0))
        });
        label + &cells.collect::<String>()
    }

    fn legend(&self, lines: &mut Vec<String>) {
        if self.color == ColorDepth::None {
            lines.push(cut("token NN: prediction of the next token and its probability in %", self.width));
        } else {
            let (from, to) = ("probability 0 % ", " 100 %");
            let steps = self.width.saturating_sub(from.len() + to.len()).min(24);
            // Fewer steps do not show a scale.
            if steps >= 4 {
                let swatch = |step| self.paint(" ", step as f32 / (steps - 1) as f32, false);
                lines.push(from.to_owned() + &(0..steps).map(swatch).collect::<String>() + to);
            }
        }
        lines.push(cut(&format!("{AGREES} same prediction as the final row ({FINAL})"), self.width));
    }

    /// Puts text on the color of a probability.
    fn paint(&self, text: &str, probability: f32, bold: bool) -> String {
        let weight = if bold { "1;" } else { "" };
        match self.color {
            ColorDepth::None => text.into(),
            ColorDepth::Ansi256 => {
                let (background, text_color) = dark_256(probability);
                format!("\x1b[{weight}38;5;{text_color};48;5;{background}m{text}\x1b[0m")
            }
            ColorDepth::TrueColor => {
                let background = DARK.at(probability);
                let (Rgb(r, g, b), Rgb(ir, ig, ib)) = (background, background.text_color());
                format!("\x1b[{weight}38;2;{ir};{ig};{ib};48;2;{r};{g};{b}m{text}\x1b[0m")
            }
        }
    }

    fn bold(&self, text: &str) -> String {
        self.styled("1", text)
    }

    fn faint(&self, text: &str) -> String {
        self.styled("2", text)
    }

    fn styled(&self, code: &str, text: &str) -> String {
        if self.color == ColorDepth::None { text.into() } else { format!("\x1b[{code}m{text}\x1b[0m") }
    }
}

/// Formats a probability in percent with two digits: certainty is 99, non-finite values are `--`.
fn two_digits(probability: f32) -> String {
    if probability.is_finite() {
        format!("{:02}", (probability.clamp(0.0, 1.0) * 100.0).floor().min(99.0))
    } else {
        "--".into()
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::{LensCell, Prediction, sample};
    use super::*;
    use proptest::prelude::*;

    fn plain(width: usize, top: usize) -> TerminalOptions {
        TerminalOptions { width, top, ..TerminalOptions::default() }
    }

    #[test]
    fn without_color_every_cell_has_its_probability() {
        let expected = "\
logit lens: tiny

          The      ·Eiffel
 embed    ⏎    05  ·the    12
 layer 0  ·cat 50  ·Tower  75•
──────────────────────────────
▸logits   ·man 25  ·Tower  99

token NN: prediction of the next token and its probability in %
• same prediction as the final row (▸)
";
        assert_eq!(terminal(&sample::table(), &plain(80, 1)), expected);
    }

    #[test]
    fn further_predictions_are_drawn_below_the_best() {
        let drawn = terminal(&sample::table(), &plain(80, 2));
        assert!(drawn.contains(" layer 0  ·cat 50  ·Tower  75•\n          ·or  12  ·or     18\n"), "{drawn}");
        // More predictions than the table has: blank lines.
        assert!(terminal(&sample::table(), &plain(80, 3)).contains("·or     18\n\n"));
        // Unlimited width: one band.
        assert_eq!(terminal(&sample::table(), &plain(usize::MAX, 2)), drawn);
    }

    #[test]
    fn a_prompt_that_does_not_fit_continues_in_even_bands() {
        let mut table = sample::table();
        table.prompt_tokens = ["a", "b", "c", "d"].map(String::from).to_vec();
        // Three columns fit into the first band (9 + 10 + 9 of 29, after 9 for labels), but two and
        // two are even.
        let expected = "\
logit lens: tiny

          a        b
 embed    ⏎    05  ·the   12
 layer 0  ·cat 50  ·Tower 75•
─────────────────────────────
▸logits   ·man 25  ·Tower 99

          c        d
 embed
 layer 0
───────────────────────────
▸logits

token NN: prediction of the next toke…
• same prediction as the final row (▸)
";
        // The sample has no cells for c and d: their band is blank.
        assert_eq!(terminal(&table, &plain(38, 1)), expected);
    }

    #[test]
    fn color_shows_probability_and_weight_shows_agreement() {
        let drawn = |color| terminal(&sample::table(), &TerminalOptions { color, ..plain(80, 1) });
        let Rgb(r, g, b) = DARK.at(0.75);
        assert!(
            drawn(ColorDepth::TrueColor).contains(&format!("\x1b[1;38;2;0;0;0;48;2;{r};{g};{b}m ·Tower  •\x1b[0m"))
        );
        assert!(drawn(ColorDepth::Ansi256).contains("\x1b[38;5;16;48;5;36m ·cat  \x1b[0m"));
        assert!(!drawn(ColorDepth::None).contains('\x1b'));
    }

    #[test]
    fn empty_and_single_token_tables_are_drawn() {
        let nothing = "logit lens:\nnothing to show: the prompt has no tokens, or no layer was read\n";
        assert_eq!(terminal(&LensTable::default(), &plain(80, 1)), nothing);
        let mut table = sample::table();
        table.prompt_tokens.truncate(1);
        table.rows.drain(..2);
        let drawn = terminal(&table, &plain(80, 1));
        assert!(drawn.starts_with("logit lens: tiny\n\n         The\n▸logits  ·man 25\n\n"), "{drawn}");
    }

    #[test]
    fn odd_probabilities_stay_two_columns_wide() {
        let shown = [f32::NAN, f32::INFINITY, -0.5, 0.0, 0.999, 1.0, 1.5].map(two_digits);
        assert_eq!(shown, ["--", "--", "00", "00", "99", "99", "99"]);
    }

    /// Removes the escape sequences of a line.
    fn stripped(line: &str) -> String {
        let mut parts = line.split('\x1b');
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, part| text + part.split_once('m').map_or("", |(_, rest)| rest))
    }

    /// Any text, and text of characters whose width is hard to measure: accents, joiners,
    /// ligatures, flags, emoji, wide characters.
    fn any_text() -> impl Strategy<Value = String> {
        let hard: Vec<char> =
            "a ·•\n\x1b\u{301}\u{fe0f}\u{200d}\u{202e}لا❤👩🏽🇫🇷東ﷺक्षกำ\u{1160}\u{20e3}1".chars().collect();
        let hard = prop::collection::vec(prop::sample::select(hard), 0..16).prop_map(String::from_iter);
        prop_oneof![any::<String>(), hard]
    }

    prop_compose! {
        fn any_table()(
            model in any_text(),
            prompt_tokens in prop::collection::vec(any_text(), 0..12),
            rows in prop::collection::vec((any_text(), prop::collection::vec((any_text(), any::<f32>()), 0..12)), 0..4),
        ) -> LensTable {
            let cell = |(token, probability)| LensCell {
                predictions: vec![Prediction { token, id: 0, probability }; 2],
                rank_of_final: 1,
                ..LensCell::default()
            };
            let row = |(label, cells): (String, Vec<(String, f32)>)| {
                LensRow { label, cells: cells.into_iter().map(cell).collect(), ..LensRow::default() }
            };
            LensTable { model, prompt_tokens, rows: rows.into_iter().map(row).collect() }
        }
    }

    proptest! {
        #[test]
        fn no_line_is_wider_than_the_terminal(
            table in any_table(),
            columns in 0usize..140,
            top in 0usize..4,
            color in prop::sample::select(vec![ColorDepth::None, ColorDepth::Ansi256, ColorDepth::TrueColor]),
        ) {
            for line in terminal(&table, &TerminalOptions { width: columns, color, top }).lines() {
                let line = stripped(line);
                prop_assert!(width(&line) <= columns.max(1), "{} columns of {columns}: {line:?}", width(&line));
                prop_assert!(!line.chars().any(char::is_control), "{line:?}");
            }
        }
    }
}
