//! Takes the pieces of all prompts of a call: merged as they arrive, or gathered into choices.

use super::run::{FinishReason, Piece, PieceToken, PromptRun};
use super::submit::Call;
use crate::api_error::ApiResult;
use crate::inspection::{CaptureInfo, Inspection, StoredCaptures};
use futures_util::stream::{self, Stream, StreamExt};
use pellucid_engine::Generation;

/// Something that happens to a call.
pub enum Event {
    /// New text of a choice; the first one of a prompt has its log-probabilities.
    Piece(Piece),
    /// A prompt has ended.
    Ended(Box<PromptRun>),
}

/// The events of several prompts in the order in which they happen.
pub fn events(runs: Vec<PromptRun>) -> impl Stream<Item = ApiResult<Event>> + Send {
    let of_run = |run: PromptRun| {
        let step = |run: Option<Box<PromptRun>>| async move {
            let mut run = run?;
            Some(match run.next().await {
                Some(Ok(piece)) => (Ok(Event::Piece(piece)), Some(run)),
                Some(Err(error)) => (Err(error), None),
                None => (Ok(Event::Ended(run)), None),
            })
        };
        Box::pin(stream::unfold(Some(Box::new(run)), step))
    };
    stream::select_all(runs.into_iter().map(of_run).collect::<Vec<_>>())
}

/// A finished choice.
#[derive(Default)]
pub struct Choice {
    pub text: String,
    /// Its tokens, those of an echoed prompt included.
    pub tokens: Vec<PieceToken>,
    pub finish: Option<FinishReason>,
    pub stop_reason: Option<&'static str>,
}

/// A finished call.
pub struct FinishedCall {
    /// Prompt by prompt, `n` each.
    pub choices: Vec<Choice>,
    /// The runs of the prompts, in their order.
    pub runs: Vec<PromptRun>,
    pub generated: usize,
    pub inspection: Inspection,
}

/// Waits for the end of a call.
pub async fn finish(call: Call, standing: &[String]) -> ApiResult<FinishedCall> {
    let mut finished =
        FinishedCall { choices: Vec::new(), runs: Vec::new(), generated: 0, inspection: Inspection::default() };
    let mut events = Box::pin(events(call.runs));
    while let Some(event) = events.next().await {
        match event? {
            Event::Piece(piece) => {
                if finished.choices.len() <= piece.choice {
                    finished.choices.resize_with(piece.choice + 1, Choice::default);
                }
                let choice = &mut finished.choices[piece.choice];
                choice.text.push_str(&piece.text);
                choice.tokens.extend(piece.tokens);
                choice.finish = choice.finish.or(piece.finish);
                choice.stop_reason = choice.stop_reason.or(piece.stop_reason);
            }
            Event::Ended(run) => finished.runs.push(*run),
        }
    }
    finished.runs.sort_by_key(|run| run.context.first_choice);
    for (index, run) in finished.runs.iter_mut().enumerate() {
        finished.generated += run.generated();
        run.report(&mut finished.inspection, index, standing);
    }
    Ok(finished)
}

impl PromptRun {
    /// Adds what this prompt, which has ended, has seen, and stores its captures.
    pub fn report(&mut self, inspection: &mut Inspection, prompt: usize, standing: &[String]) {
        let Some(Generation { captures, saved, marks, passed_over, rows, .. }) = self.take_generation() else { return };
        inspection.marks.extend(marks);
        for site in passed_over.iter().map(ToString::to_string) {
            if !inspection.skipped_sites.contains(&site) {
                inspection.skipped_sites.push(site);
            }
        }
        if captures.is_empty() && saved.is_empty() {
            return;
        }
        let plan = std::mem::take(&mut self.context.plan);
        let (state, model) = (&self.context.state, &self.context.model);
        let stored = state.captures.add(StoredCaptures::new(model, plan, captures, saved, rows.len()));
        state.standing.add_captures(standing, &stored.id);
        inspection.captures.push(CaptureInfo::new(prompt, &stored));
    }
}
