//! Follows a request of the scheduler: pieces of text as tokens arrive, then its result.

use super::prompt::Prompt;
use crate::api_error::{ApiError, ApiResult};
use crate::inspection::CaptureLines;
use crate::registry::ModelUse;
use crate::state::AppState;
use axum::http::StatusCode;
use pellucid_engine::{Capture, Finish, Generation, Plan, RequestHandle, RowToken, TokenLogprobs};
use pellucid_models::{RequestText, RowText, StopStrings};
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use utoipa::ToSchema;

/// Why a choice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end-of-sequence token, a stop string, or a condition of the plan.
    Stop,
    /// The limit of new tokens.
    Length,
}

impl FinishReason {
    /// Its name in answers.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
        }
    }
}

/// A token of a piece.
#[derive(Clone, Debug)]
pub struct PieceToken {
    pub token: u32,
    /// Characters of the choice's text before it.
    pub offset: usize,
    /// Absent if they were not asked for, and for the first token of a prompt.
    pub logprobs: Option<TokenLogprobs>,
}

/// New text of a choice.
#[derive(Clone, Debug, Default)]
pub struct Piece {
    pub choice: usize,
    pub text: String,
    /// Its tokens, those of an echoed prompt included.
    pub tokens: Vec<PieceToken>,
    pub finish: Option<FinishReason>,
    /// `condition` if a condition of the plan ended the choice.
    pub stop_reason: Option<&'static str>,
    /// Captured positions since the last piece of the prompt, of all its choices.
    pub captures: Vec<CaptureLines>,
}

/// What a run needs to know about its request.
pub struct RunContext {
    pub state: AppState,
    pub model: ModelUse,
    pub prompt: Prompt,
    pub plan: Plan,
    /// The number of its first choice.
    pub first_choice: usize,
    pub max_tokens: usize,
    pub eos: Vec<u32>,
    pub echo: bool,
    pub logprobs: Option<usize>,
    pub prompt_logprobs: Option<usize>,
    /// Send captures with the pieces.
    pub streams_captures: bool,
}

/// The progress of one row.
struct RowProgress {
    tokens: usize,
    /// Characters of its text so far, those of an echoed prompt included.
    characters: usize,
    is_finished: bool,
    last_token: Instant,
}

/// A prompt that runs, with all its choices. Dropping it cancels the request.
pub struct PromptRun {
    pub context: RunContext,
    handle: RequestHandle,
    texts: Option<RequestText>,
    rows: Vec<RowProgress>,
    pieces: VecDeque<Piece>,
    ready: Arc<Notify>,
    has_ended: bool,
    generation: Option<Generation>,
    /// For each capture the lines that were sent.
    sent_lines: Vec<usize>,
}

impl PromptRun {
    pub fn new(context: RunContext, handle: RequestHandle, texts: Option<RequestText>, rows: usize) -> PromptRun {
        let now = Instant::now();
        let row = |_| RowProgress { tokens: 0, characters: 0, is_finished: false, last_token: now };
        PromptRun {
            context,
            handle,
            texts,
            rows: (0..rows).map(row).collect(),
            pieces: VecDeque::new(),
            ready: Arc::new(Notify::new()),
            has_ended: false,
            generation: None,
            sent_lines: Vec::new(),
        }
    }

    /// The next piece; `None` after the last.
    pub async fn next(&mut self) -> Option<ApiResult<Piece>> {
        loop {
            if let Some(mut piece) = self.pieces.pop_front() {
                piece.captures = self.new_lines();
                return Some(Ok(piece));
            }
            if self.has_ended {
                return None;
            }
            match self.handle.try_next_token() {
                Ok(Some(token)) => self.receive(token),
                Ok(None) => {
                    self.has_ended = true;
                    match self.handle.wait_within(Duration::ZERO) {
                        Some(Ok(generation)) => self.finish(generation),
                        Some(Err(error)) => return Some(Err(error.into())),
                        None => return Some(Err(no_result())),
                    }
                }
                Err(()) => {
                    let ready = self.ready.clone();
                    self.handle.when_ready(move || ready.notify_one());
                    self.ready.notified().await;
                }
            }
        }
    }

    /// The result, once all pieces were taken.
    pub fn take_generation(&mut self) -> Option<Generation> {
        self.generation.take()
    }

    /// The captured lines that were not sent yet.
    fn new_lines(&mut self) -> Vec<CaptureLines> {
        if !self.context.streams_captures {
            return Vec::new();
        }
        let captures = self.handle.captures();
        self.sent_lines.resize(captures.len(), 0);
        let of_capture = |(capture, sent): (&Capture, &mut usize)| {
            let first = std::mem::replace(sent, capture.positions.len());
            CaptureLines::after(capture, first, self.context.first_choice)
        };
        captures.iter().zip(&mut self.sent_lines).filter_map(of_capture).collect()
    }

    /// Number of generated tokens of all choices so far.
    pub fn generated(&self) -> usize {
        self.rows.iter().map(|row| row.tokens).sum()
    }

    /// The log-probabilities of the prompt's tokens after the first, once a piece was taken.
    pub fn prompt_logprobs(&self) -> Vec<TokenLogprobs> {
        self.handle.prompt_logprobs(0)
    }

    fn receive(&mut self, RowToken { row, token }: RowToken) {
        let context = &self.context;
        let mut piece = Piece { choice: context.first_choice + row, ..Piece::default() };
        let progress = &mut self.rows[row];
        let is_first = progress.tokens == 0;
        if context.echo && is_first && !progress.is_finished {
            echo(context, &self.handle, row, &mut piece);
            progress.characters = piece.text.chars().count();
        }
        if context.max_tokens == 0 {
            progress.is_finished = true;
            piece.finish = Some(FinishReason::Length);
            self.pieces.push_back(piece);
            return;
        }
        let now = Instant::now();
        context.state.metrics.count_token(&context.model.id, is_first, now - progress.last_token);
        progress.last_token = now;
        let logprobs = context.logprobs.and_then(|_| self.handle.logprobs(row, progress.tokens).into_iter().next());
        progress.tokens += 1;
        piece.tokens.push(PieceToken { token, offset: progress.characters, logprobs });
        let mut is_stopped = false;
        if let Some(texts) = &mut self.texts {
            let before = texts.text(row).len();
            piece.text.push_str(texts.push(RowToken { row, token }));
            progress.characters += texts.text(row).get(before..).map_or(0, |new| new.chars().count());
            is_stopped = texts.is_stopped(row);
        }
        piece.finish = match () {
            () if context.eos.contains(&token) || is_stopped => Some(FinishReason::Stop),
            () if progress.tokens >= context.max_tokens => Some(FinishReason::Length),
            () => None,
        };
        if piece.finish.is_some() {
            progress.is_finished = true;
            if let Some(texts) = &mut self.texts {
                piece.text.push_str(texts.finish(row));
            }
        }
        self.pieces.push_back(piece);
    }

    /// Ends the rows whose end their tokens did not show.
    fn finish(&mut self, generation: Generation) {
        for (row, progress) in self.rows.iter_mut().enumerate().filter(|(_, row)| !row.is_finished) {
            let finish = generation.rows.get(row).map(|row| row.finish);
            let text = self.texts.as_mut().map_or("", |texts| texts.finish(row)).to_owned();
            progress.is_finished = true;
            self.pieces.push_back(Piece {
                choice: self.context.first_choice + row,
                text,
                tokens: Vec::new(),
                finish: Some(if finish == Some(Finish::Length) { FinishReason::Length } else { FinishReason::Stop }),
                stop_reason: (finish == Some(Finish::Condition)).then_some("condition"),
                captures: Vec::new(),
            });
        }
        self.generation = Some(generation);
    }
}

fn no_result() -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the request ended without a result")
}

/// Adds the prompt to the first piece of a choice.
fn echo(context: &RunContext, handle: &RequestHandle, row: usize, piece: &mut Piece) {
    let Prompt { text, tokens, .. } = &context.prompt;
    let mut offsets = vec![0; tokens.len()];
    if let Some(tokenizer) = &context.model.loaded.tokenizer {
        let mut decoded = RowText::new(tokenizer, &StopStrings::default());
        let mut characters = 0;
        for (offset, &token) in offsets.iter_mut().zip(tokens) {
            *offset = characters;
            characters += decoded.push(token).chars().count();
        }
        decoded.finish();
        let decoded = decoded.text();
        match text {
            // A tokenizer may put a space before the text.
            Some(text) => {
                let surplus = usize::from(decoded.strip_prefix(' ') == Some(text));
                let length = text.chars().count();
                offsets.iter_mut().for_each(|offset| *offset = offset.saturating_sub(surplus).min(length));
                piece.text = text.clone();
            }
            None => piece.text = decoded.to_owned(),
        }
    }
    let logprobs = if context.logprobs.is_some() { handle.prompt_logprobs(row) } else { Vec::new() };
    // The first token has no log-probability: nothing precedes it.
    let logprobs = std::iter::once(None).chain(logprobs.into_iter().map(Some)).chain(std::iter::repeat(None));
    let of_token = |((&token, offset), logprobs)| PieceToken { token, offset, logprobs };
    piece.tokens.extend(tokens.iter().zip(offsets).zip(logprobs).map(of_token));
}
