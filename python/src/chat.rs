//! Conversations as tokens, with the spans of their messages.

use crate::errors::{ErrorKind, error, from_models};
use pellucid_engine::plan::{MessagePart, MessagePositions};
use pellucid_models::chat;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::ops::Range;

/// A conversation as tokens.
#[pyclass(frozen, module = "pellucid._core")]
pub struct ChatPrompt(pub chat::ChatPrompt);

/// `(start, end)` of a range of tokens.
type Span = (usize, usize);

/// `(role, header, content, footer)` of a message.
type MessageTuple = (String, Span, Span, Span);

#[pymethods]
impl ChatPrompt {
    /// The tokens.
    #[getter]
    fn tokens(&self) -> Vec<u32> {
        self.0.tokens.clone()
    }

    /// The rendered text.
    #[getter]
    fn text(&self) -> &str {
        &self.0.text
    }

    /// `(role, header, content, footer)` of each message, and the generation prompt.
    fn spans(&self, py: Python<'_>) -> PyResult<(Vec<MessageTuple>, Span)> {
        let spans = self.0.spans().map_err(|fault| from_models(py, &fault))?;
        let span = |range: &Range<usize>| (range.start, range.end);
        let messages = spans.messages.iter().map(|message| {
            (message.role.clone(), span(&message.header), span(&message.content), span(&message.footer))
        });
        Ok((messages.collect(), span(&spans.generation_prompt)))
    }

    /// The positions of a message, or of all messages of a role.
    fn positions(&self, py: Python<'_>, message: Option<i64>, role: Option<&str>, part: &str) -> PyResult<Vec<i64>> {
        let input = |problem: &str, hint: &str| error(py, ErrorKind::Input, problem, Some(hint));
        let part = MessagePart::from_name(part).ok_or_else(|| {
            input(&format!("a message has no part {part:?}"), "the parts are header, content, footer and all")
        })?;
        let selected = match (message, role) {
            (Some(index), None) => MessagePositions::message(index),
            (None, Some(role)) => MessagePositions::role(role),
            _ => return Err(input("positions of messages need either `message` or `role`", "give one of them")),
        };
        let spans = self.0.spans().map_err(|fault| from_models(py, &fault))?;
        spans.positions(&selected.part(part)).map_err(|fault| from_models(py, &fault))
    }
}

/// The chats among rows of tokens: a row that is a `pellucid.Chat` has its core.
pub fn extract_chats(rows: &Bound<'_, PyList>) -> Vec<Option<chat::ChatPrompt>> {
    let chat = |row: Bound<'_, PyAny>| {
        let core = row.getattr("_core").ok()?;
        Some(core.cast::<ChatPrompt>().ok()?.get().0.clone())
    };
    rows.iter().map(chat).collect()
}
