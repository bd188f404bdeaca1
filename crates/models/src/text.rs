//! The text of generated rows: pieces as tokens arrive, stop strings, and the whole text.
//!
//! There is one definition of a row's text, used by streams, results and every front end: the bytes
//! of its tokens as they read after the prompt (a leading space included), special tokens left out,
//! up to the first stop string. The pieces that [`RowText::push`] and [`RowText::finish`] return
//! concatenate to exactly [`RowText::text`]. Text that may still become part of a stop string is
//! held back, so a piece never shows one.
//!
//! [`RowText`] is one row. [`RequestText`] has the rows of one request: it takes the tokens that a
//! [`RequestHandle`](pellucid_engine::RequestHandle) returns, and ends rows at stop strings.

#[cfg(test)]
mod tests;

use crate::error::{Error, Result};
use crate::tokenizer::{PartialCharacter, Tokenizer};
use pellucid_engine::{Control, Request, RowToken};
use std::sync::Arc;

/// Strings that end a row. None of them is empty.
#[derive(Clone, Debug, Default)]
pub struct StopStrings(Arc<[String]>);

impl StopStrings {
    /// Checks stop strings; fails if one is empty.
    pub fn new(strings: impl Into<Vec<String>>) -> Result<StopStrings> {
        let strings = strings.into();
        match strings.iter().any(String::is_empty) {
            true => Err(Error::usage("a stop string is empty", "give at least one character")),
            false => Ok(StopStrings(strings.into())),
        }
    }

    /// The strings.
    pub fn as_slice(&self) -> &[String] {
        &self.0
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The start of the stop string that is complete first; of several, the earliest start.
    fn find_in(&self, text: &str) -> Option<usize> {
        let found = self.0.iter().filter_map(|stop| text.find(stop.as_str()).map(|start| (start + stop.len(), start)));
        found.min().map(|(_, start)| start)
    }

    /// The longest end of `text` that is the start of a stop string, in bytes.
    fn overlap_with(&self, text: &str) -> usize {
        let overlap = |stop: &String| {
            let longest = text.len().min(stop.len() - 1);
            (1..=longest).rev().find(|&n| text.as_bytes().ends_with(&stop.as_bytes()[..n])).unwrap_or(0)
        };
        self.0.iter().map(overlap).max().unwrap_or(0)
    }
}

/// Decodes one generated row and looks for stop strings.
///
/// ```
/// use pellucid_models::{LoadedModel, RowText, StopStrings};
/// let loaded = LoadedModel::builtin(&Default::default())?;
/// let tokenizer = loaded.tokenizer.as_ref().expect("the built-in model has one");
/// let mut row = RowText::new(tokenizer, &StopStrings::new(["very nice".to_string()])?);
/// let mut streamed = String::new();
/// for token in tokenizer.encode(" dog was very nice to", false)? {
///     streamed += row.push(token);
/// }
/// streamed += row.finish();
/// assert!(row.is_stopped() && streamed == " dog was " && streamed == row.text());
/// # Ok::<(), pellucid_models::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RowText {
    tokenizer: Arc<Tokenizer>,
    stops: StopStrings,
    partial: PartialCharacter,
    /// Whether the tokens so far end a word, as those of a prompt do.
    word_ended: bool,
    text: String,
    /// Bytes of `text` that were returned as pieces. The rest may be the start of a stop string.
    returned: usize,
    stopped: bool,
}

impl RowText {
    /// Starts an empty row, which ends at the first of `stops`.
    pub fn new(tokenizer: &Arc<Tokenizer>, stops: &StopStrings) -> RowText {
        RowText {
            tokenizer: tokenizer.clone(),
            stops: stops.clone(),
            partial: PartialCharacter::default(),
            word_ended: true,
            text: String::new(),
            returned: 0,
            stopped: false,
        }
    }

    /// Adds a token; returns the new text that cannot become part of a stop string.
    ///
    /// A special token has no text, but ends the row if a stop string is its name.
    pub fn push(&mut self, token: u32) -> &str {
        if self.stopped {
            return "";
        }
        if self.tokenizer.is_special(token) {
            let name = self.tokenizer.token_bytes(token);
            self.stopped = self.stops.0.iter().any(|stop| stop.as_bytes() == name);
            return if self.stopped { self.finish() } else { "" };
        }
        let bytes = self.tokenizer.bytes_after(token, &mut self.word_ended);
        self.partial.push(&bytes, &mut self.text);
        self.cut_at_stop();
        let held_back = if self.stopped { 0 } else { self.stops.overlap_with(&self.text[self.returned..]) };
        self.return_until(self.text.len() - held_back)
    }

    /// Ends the row; returns the text that was held back. An incomplete character becomes `�`.
    pub fn finish(&mut self) -> &str {
        self.partial.flush(&mut self.text);
        if !self.stopped {
            self.cut_at_stop();
        }
        self.return_until(self.text.len())
    }

    /// Whether the text has reached a stop string.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// The text so far, without the stop string.
    pub fn text(&self) -> &str {
        &self.text
    }

    fn return_until(&mut self, end: usize) -> &str {
        let start = std::mem::replace(&mut self.returned, end);
        &self.text[start..end]
    }

    /// Ends the text before the first stop string. It cannot start in text that was returned.
    fn cut_at_stop(&mut self) {
        if let Some(start) = self.stops.find_in(&self.text[self.returned..]) {
            self.text.truncate(self.returned + start);
            self.partial = PartialCharacter::default();
            self.stopped = true;
        }
    }
}

/// The texts of the rows of one request.
///
/// ```
/// use pellucid_engine::{GenerateOptions, Request, Scheduler, SchedulerOptions};
/// use pellucid_models::{LoadedModel, StopStrings};
/// let loaded = LoadedModel::builtin(&Default::default())?;
/// let scheduler = Scheduler::new(&loaded.model, SchedulerOptions::default())?;
/// let mut request =
///     Request::new(loaded.encode("Tom saw a dog. The")?, Default::default(), GenerateOptions::default());
/// let mut text = loaded.request_text(1, &StopStrings::new([".".to_string()])?)?;
/// text.end_rows_of(&mut request);
/// let handle = scheduler.submit(request)?;
/// while let Some(token) = handle.next_token() {
///     print!("{}", text.push(token));
/// }
/// print!("{}", text.finish(0));
/// assert!(text.is_stopped(0) && text.text(0).starts_with(" dog") && !text.text(0).contains('.'));
/// # Ok::<(), pellucid_models::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RequestText {
    rows: Vec<RowText>,
}

impl RequestText {
    /// Starts `rows` empty rows, each of which ends at the first of `stops`.
    pub fn new(tokenizer: &Arc<Tokenizer>, rows: usize, stops: &StopStrings) -> RequestText {
        RequestText { rows: vec![RowText::new(tokenizer, stops); rows] }
    }

    /// Adds a token of a row; returns its new text, as [`RowText::push`] does.
    ///
    /// # Panics
    /// If the request has no such row; as do the methods below.
    pub fn push(&mut self, token: RowToken) -> &str {
        self.rows[token.row].push(token.token)
    }

    /// Ends a row; returns the text that was held back.
    pub fn finish(&mut self, row: usize) -> &str {
        self.rows[row].finish()
    }

    /// Whether the text of a row has reached a stop string.
    pub fn is_stopped(&self, row: usize) -> bool {
        self.rows[row].is_stopped()
    }

    /// The text of a row so far, without the stop string.
    pub fn text(&self, row: usize) -> &str {
        self.rows[row].text()
    }

    /// Makes the rows of a request end at the stop strings. The request gets its own copy of this
    /// state, so the caller can [`push`](Self::push) the tokens as they arrive. An earlier
    /// [`Request::on_token`] is still called.
    pub fn end_rows_of(&self, request: &mut Request) {
        if self.rows.iter().all(|row| row.stops.is_empty()) {
            return;
        }
        let (mut texts, mut earlier) = (self.clone(), request.on_token.take());
        request.on_token = Some(Box::new(move |token| {
            let control = earlier.as_mut().map_or(Control::Go, |earlier| earlier(token));
            texts.push(token);
            if texts.is_stopped(token.row) { Control::Stop } else { control }
        }));
    }
}
