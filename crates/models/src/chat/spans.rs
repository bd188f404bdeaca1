//! Locates the messages of a conversation in the tokens of its prompt.
//!
//! The prompt is rendered and encoded once. To find the messages in its text, the template renders
//! them a second time, with a private-use character at both ends of each content (inside
//! surrounding whitespace, which templates trim). The marks give the contents only if the text
//! without them is exactly the prompt. A template that drops the start of an old message (Qwen 3
//! removes earlier reasoning) also drops its first mark; the content is then the longest end of the
//! message that the prompt still has. If a content is missing, rewritten or used twice, the spans
//! are an error: an estimate would select other tokens than the message's.

use super::{ChatOptions, ChatTemplate, Message};
use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;
use pellucid_engine::Remedy;
use pellucid_engine::plan::{MessagePart, MessagePositions, Messages};
use serde::Serialize;
use std::ops::Range;

/// The first of the characters that mark a content: Supplementary Private Use Area-B.
const MARKS: u32 = 0x10_0000;
/// The number of characters in that area.
const MARK_COUNT: usize = 0xFFFE;

/// The tokens of one message. Header, content and footer are adjacent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MessageSpan {
    /// Its role, as the caller named it.
    pub role: String,
    /// The tokens before its content: role markers, and for the first message the start of the
    /// text.
    pub header: Range<usize>,
    /// The tokens of its content. A token that crosses an edge of the content belongs to it.
    pub content: Range<usize>,
    /// The tokens that end it.
    pub footer: Range<usize>,
}

impl MessageSpan {
    /// The tokens of a part.
    pub fn part(&self, part: MessagePart) -> Range<usize> {
        match part {
            MessagePart::Header => self.header.clone(),
            MessagePart::Content => self.content.clone(),
            MessagePart::Footer => self.footer.clone(),
            MessagePart::All => self.header.start..self.footer.end,
        }
    }
}

/// The messages of a prompt. Their spans and the generation prompt cover every token exactly once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChatSpans {
    /// One span for each message, in the order of the conversation. A template may put a message
    /// elsewhere (Mistral: the system message into the last turn).
    pub messages: Vec<MessageSpan>,
    /// The start of the assistant's answer, if the template added one.
    pub generation_prompt: Range<usize>,
}

impl ChatSpans {
    /// Returns the positions of messages, in the order of the prompt.
    pub fn positions(&self, selected: &MessagePositions) -> Result<Vec<i64>> {
        let count = self.messages.len();
        let mut ranges: Vec<Range<usize>> = match &selected.messages {
            Messages::Index(index) => {
                let absolute = if *index < 0 { index + count as i64 } else { *index };
                let message = usize::try_from(absolute).ok().and_then(|index| self.messages.get(index));
                let message = message.ok_or_else(|| {
                    Error::usage(
                        format!("there is no message {index}: the chat has {count}"),
                        "messages count from 0, and from -1 at the end",
                    )
                })?;
                vec![message.part(selected.part)]
            }
            Messages::Role(role) => {
                let of_role = self.messages.iter().filter(|message| message.role == *role);
                of_role.map(|message| message.part(selected.part)).collect()
            }
        };
        if ranges.is_empty() {
            let mut roles: Vec<&str> = self.messages.iter().map(|message| message.role.as_str()).collect();
            roles.sort_unstable();
            roles.dedup();
            return Err(Error::usage(
                format!("the chat has no message of the positions {selected}"),
                format!("its roles are {}", roles.join(", ")),
            ));
        }
        ranges.sort_by_key(|range| range.start);
        let positions: Vec<i64> = ranges.into_iter().flatten().map(|position| position as i64).collect();
        if positions.is_empty() {
            let problem = format!("the positions {selected} have no tokens: this part of the message is empty");
            return Err(Error::usage(problem, "select another part: header, content, footer or all"));
        }
        Ok(positions)
    }

    /// The message and the part of a token; `None` in the generation prompt.
    pub fn of_token(&self, position: usize) -> Option<(usize, MessagePart)> {
        let parts = [MessagePart::Header, MessagePart::Content, MessagePart::Footer];
        self.messages.iter().enumerate().find_map(|(index, message)| {
            let part = parts.into_iter().find(|&part| message.part(part).contains(&position))?;
            Some((index, part))
        })
    }
}

/// A conversation as tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatPrompt {
    /// The rendered text.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Its spans, or the reason why there are none.
    located: std::result::Result<ChatSpans, String>,
}

impl ChatPrompt {
    /// Renders and encodes a conversation, and locates its messages.
    pub fn new(
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
        messages: &[Message],
        options: &ChatOptions,
    ) -> Result<ChatPrompt> {
        let whole = template.render_uncut(messages, options, tokenizer.special())?;
        let mut text = whole.clone();
        options.cut_final_message(&mut text, messages)?;
        let tokens = tokenizer.encode(&text, false)?;
        let located = match content_ranges(template, tokenizer, messages, options, &whole)? {
            Ok(contents) => {
                let layout = Layout::new(template, tokenizer, messages, options, &whole, text.len(), contents)?;
                layout.spans(tokenizer, &text, &tokens)?
            }
            Err(reason) => Err(reason),
        };
        Ok(ChatPrompt { text, tokens, located })
    }

    /// The spans of its messages; fails if the template makes them impossible.
    pub fn spans(&self) -> Result<&ChatSpans> {
        self.located.as_ref().map_err(|problem| {
            let remedy = "select positions by number, or use a template that renders each message once and unchanged";
            Error::usage(problem.clone(), remedy)
        })
    }
}

/// The bytes of each content in the rendered text, or the reason why they cannot be found.
fn content_ranges(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    messages: &[Message],
    options: &ChatOptions,
    text: &str,
) -> Result<std::result::Result<Vec<Range<usize>>, String>> {
    let is_mark = |character: char| (MARKS..MARKS + MARK_COUNT as u32).contains(&(character as u32));
    if 2 * messages.len() > MARK_COUNT || text.contains(is_mark) {
        return Ok(Err("the messages cannot be located: there are too many, or they contain characters of the \
                       Unicode private use plane 16"
            .into()));
    }
    let mark = |index: usize| char::from_u32(MARKS + index as u32).unwrap_or_default();
    let marked = messages.iter().enumerate().map(|(i, message)| {
        let content = message.content.trim();
        let before = message.content.len() - message.content.trim_start().len();
        let (before, after) = (&message.content[..before], &message.content[before + content.len()..]);
        let content = format!("{before}{}{content}{}{after}", mark(2 * i), mark(2 * i + 1));
        Message { content, ..message.clone() }
    });
    let rendered = match template.render_uncut(&marked.collect::<Vec<_>>(), options, tokenizer.special()) {
        Ok(rendered) => rendered,
        // The template rendered the plain messages, so it objects to the marks.
        Err(_) => return Ok(Err("the messages cannot be located: the template examines their text".into())),
    };
    let mut found: Vec<Vec<usize>> = vec![Vec::new(); 2 * messages.len()];
    let mut bare = String::with_capacity(rendered.len());
    for character in rendered.chars() {
        match (character as u32).checked_sub(MARKS).and_then(|index| found.get_mut(index as usize)) {
            Some(places) => places.push(bare.len()),
            None => bare.push(character),
        }
    }
    let unlocated = |index: usize, reason: &str| {
        let role = &messages[index].role;
        Ok(Err(format!("message {index} ({role}) cannot be located in the prompt: the template {reason}")))
    };
    let mut ranges: Vec<Range<usize>> = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        let range = match (found[2 * index].as_slice(), found[2 * index + 1].as_slice()) {
            (&[start], &[end]) if start <= end => start..end,
            (&[], &[end]) => remaining_end(&bare, message.content.trim(), end),
            (&[], &[]) => return unlocated(index, "leaves it out"),
            (_, &[]) => return unlocated(index, "leaves out its end"),
            _ => return unlocated(index, "uses it more than once"),
        };
        if let Some(other) = ranges.iter().position(|other| other.start < range.end && range.start < other.end) {
            return unlocated(index, &format!("puts it into message {other}"));
        }
        ranges.push(range);
    }
    if bare != text {
        return Ok(Err("the messages cannot be located in the prompt: the template changes their text".into()));
    }
    Ok(Ok(ranges))
}

/// The longest end of `content` that stands before byte `end` of the text, without leading
/// whitespace.
fn remaining_end(text: &str, content: &str, end: usize) -> Range<usize> {
    let same = text[..end].chars().rev().zip(content.chars().rev()).take_while(|(a, b)| a == b);
    let start = end - same.map(|(character, _)| character.len_utf8()).sum::<usize>();
    let blank = text[start..end].len() - text[start..end].trim_start().len();
    start + blank..end
}

/// The parts of a prompt in bytes.
struct Layout<'a> {
    messages: &'a [Message],
    /// Messages in the order of the prompt, with the bytes of their contents.
    contents: Vec<(usize, Range<usize>)>,
    /// The text that ends the last message of the prompt.
    last_footer: String,
    /// Where the generation prompt starts.
    prompt_start: usize,
}

impl Layout<'_> {
    /// `whole` is the text before it was cut to `length` bytes for `continue_final_message`.
    fn new<'a>(
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
        messages: &'a [Message],
        options: &ChatOptions,
        whole: &str,
        length: usize,
        contents: Vec<Range<usize>>,
    ) -> Result<Layout<'a>> {
        let bare = ChatOptions { add_generation_prompt: false, ..options.clone() };
        let without_prompt = template.render_uncut(messages, &bare, tokenizer.special())?;
        let end = if whole.starts_with(&without_prompt) { without_prompt.len() } else { whole.len() };
        let mut contents: Vec<_> = contents.into_iter().enumerate().collect();
        contents.sort_by_key(|(_, content)| content.start);
        let last_footer = contents.last().and_then(|(_, last)| whole.get(last.end..end)).unwrap_or_default().to_owned();
        for (_, content) in &mut contents {
            *content = content.start.min(length)..content.end.min(length);
        }
        Ok(Layout { messages, contents, last_footer, prompt_start: end.min(length) })
    }

    /// Rounds the parts to tokens.
    fn spans(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        tokens: &[u32],
    ) -> Result<std::result::Result<ChatSpans, String>> {
        let (same, offsets) = tokenizer.encode_with_offsets(text)?;
        if same != tokens {
            return Ok(Err("the messages cannot be located: the tokenizer gives no offsets for its tokens".into()));
        }
        // Some tokenizers leave whitespace out of offsets: "\n" has an empty range at its end.
        let after = |byte: usize| offsets.partition_point(|token| token.end <= byte);
        let prompt_start = after(self.prompt_start);
        let mut spans: Vec<Option<MessageSpan>> = vec![None; self.messages.len()];
        let mut start = 0;
        for (place, (index, content)) in self.contents.iter().enumerate() {
            let first = after(content.start).max(start);
            let last = match content.is_empty() {
                true => first,
                false => offsets.partition_point(|token| token.start < content.end).max(first),
            };
            let end = match self.contents.get(place + 1) {
                None => prompt_start.max(last),
                Some((_, next)) => {
                    let limit = after(next.start).max(last);
                    let end = match self.footer_length(&text[content.end..next.start]) {
                        Some(length) => after(content.end + length),
                        None => self.end_marker(tokenizer, tokens, last..limit),
                    };
                    end.clamp(last, limit)
                }
            };
            let role = self.messages[*index].role.clone();
            spans[*index] = Some(MessageSpan { role, header: start..first, content: first..last, footer: last..end });
            start = end;
        }
        let messages = spans.into_iter().flatten().collect();
        Ok(Ok(ChatSpans { messages, generation_prompt: start..tokens.len() }))
    }

    /// The bytes of a footer like the last one at the start of a gap between two contents.
    /// Whitespace before it belongs to a message that the template does not trim.
    fn footer_length(&self, gap: &str) -> Option<usize> {
        if !self.last_footer.is_empty() && gap.starts_with(&self.last_footer) {
            return Some(self.last_footer.len());
        }
        let footer = self.last_footer.trim_start();
        let is_same = !footer.is_empty() && gap.trim_start().starts_with(footer);
        is_same.then(|| gap.len() - gap.trim_start().len() + footer.len())
    }

    /// The end of the footer between two contents that does not look like the last footer: after
    /// its first special token and the line break that follows. Without a special token, all tokens
    /// are the next header's.
    fn end_marker(&self, tokenizer: &Tokenizer, tokens: &[u32], gap: Range<usize>) -> usize {
        let Some(marker) = gap.clone().find(|&token| tokenizer.is_special(tokens[token])) else { return gap.start };
        let is_line_break = |&token: &usize| tokenizer.token_bytes(tokens[token]).iter().all(|&byte| byte == b'\n');
        (marker + 1..gap.end).take_while(is_line_break).last().unwrap_or(marker) + 1
    }
}

/// The error for positions of messages in a prompt that is not a chat.
pub(crate) fn not_a_chat(selected: &MessagePositions, row: usize) -> Error {
    Error::usage(format!("the positions {selected} name messages, and row {row} is not a chat"), Remedy::GiveChat)
}
