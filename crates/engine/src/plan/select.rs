//! Selections: positions and columns of a tap.

use super::MessagePositions;
use crate::program::{Edge, Layout};
use serde::{Deserialize, Serialize};
use std::ops::{Range, RangeFrom, RangeTo};

/// Positions of a row. They are absolute; negative positions count from the end of the prompt.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum Positions {
    /// Every position.
    #[default]
    All,
    /// The last position of the prompt.
    Last,
    /// The prompt.
    Prompt,
    /// Generated positions.
    Generated,
    /// A list, in this order.
    List(Vec<i64>),
    /// Every `step`-th from `start` up to but not including `end`.
    Slice {
        /// First position; 0 if absent.
        start: Option<i64>,
        /// One past the last position; the end of the row if absent.
        end: Option<i64>,
        /// Step.
        step: usize,
    },
    /// Position of this token in the prompt; resolved to a list before compilation.
    Token(String),
    /// Positions of messages of a chat prompt; resolved to a list before compilation.
    Messages(MessagePositions),
}

/// Phase of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Both.
    #[default]
    All,
    /// Prompt positions.
    Prefill,
    /// Generated positions.
    Decode,
}

impl Positions {
    /// Returns the positions in a row of `prompt` tokens that can grow to `limit`; fails if one
    /// does not exist.
    pub(crate) fn resolve(&self, prompt: usize, limit: usize) -> Result<Vec<usize>, String> {
        let absolute = |n: i64| if n < 0 { n + prompt as i64 } else { n };
        match self {
            Positions::All => Ok((0..limit).collect()),
            Positions::Last => Ok(vec![prompt - 1]),
            Positions::Prompt => Ok((0..prompt).collect()),
            Positions::Generated => Ok((prompt..limit).collect()),
            Positions::List(list) => list
                .iter()
                .map(|&n| match absolute(n) {
                    p if p >= 0 && (p as usize) < limit => Ok(p as usize),
                    _ => Err(format!(
                        "position {n} does not exist in a row of {limit} positions ({prompt} of them prompt)"
                    )),
                })
                .collect(),
            Positions::Slice { start, end, step } => {
                let clamp = |n: i64| absolute(n).clamp(0, limit as i64) as usize;
                let (start, end) = (start.map_or(0, clamp), end.map_or(limit, clamp));
                Ok((start..end).step_by((*step).max(1)).collect())
            }
            Positions::Token(text) => Err(format!(
                "the token {text:?} was not resolved; load the model with a tokenizer, or use numeric positions"
            )),
            Positions::Messages(messages) => Err(format!(
                "the positions {messages} were not resolved; give the prompt as a chat, or use numeric positions"
            )),
        }
    }

    /// Parses `last`, `all`, `3`, `-4:`, `2:10:2`, `0,5,-1`, `message:2`, `role:user`,
    /// `message:-1.header`; anything else is the text of a token.
    ///
    /// ```
    /// use pellucid_engine::Positions;
    /// assert_eq!(Positions::parse("-1"), Positions::List(vec![-1]));
    /// assert_eq!(Positions::parse(" Paris"), Positions::Token(" Paris".into()));
    /// ```
    pub fn parse(text: &str) -> Positions {
        match text {
            "all" => return Positions::All,
            "last" => return Positions::Last,
            "prompt" => return Positions::Prompt,
            "generated" => return Positions::Generated,
            _ => {}
        }
        if let Some(list) = text.split(',').map(|n| n.trim().parse().ok()).collect::<Option<Vec<i64>>>() {
            return Positions::List(list);
        }
        if let Some(messages) = MessagePositions::parse(text) {
            return Positions::Messages(messages);
        }
        slice(text).unwrap_or_else(|| Positions::Token(text.to_string()))
    }
}

impl From<MessagePositions> for Positions {
    fn from(messages: MessagePositions) -> Positions {
        Positions::Messages(messages)
    }
}

impl From<i64> for Positions {
    fn from(position: i64) -> Positions {
        Positions::List(vec![position])
    }
}

impl From<Vec<i64>> for Positions {
    fn from(positions: Vec<i64>) -> Positions {
        Positions::List(positions)
    }
}

impl<const N: usize> From<[i64; N]> for Positions {
    fn from(positions: [i64; N]) -> Positions {
        Positions::List(positions.to_vec())
    }
}

impl From<Range<i64>> for Positions {
    fn from(range: Range<i64>) -> Positions {
        Positions::Slice { start: Some(range.start), end: Some(range.end), step: 1 }
    }
}

impl From<RangeFrom<i64>> for Positions {
    fn from(range: RangeFrom<i64>) -> Positions {
        Positions::Slice { start: Some(range.start), end: None, step: 1 }
    }
}

impl From<RangeTo<i64>> for Positions {
    fn from(range: RangeTo<i64>) -> Positions {
        Positions::Slice { start: None, end: Some(range.end), step: 1 }
    }
}

fn slice(text: &str) -> Option<Positions> {
    let parts: Vec<&str> = text.split(':').map(str::trim).collect();
    if !(2..=3).contains(&parts.len()) {
        return None;
    }
    let bound = |part: &str| if part.is_empty() { Some(None) } else { part.parse().ok().map(Some) };
    let step = match parts.get(2) {
        Some(&"") | None => 1,
        Some(step) => step.parse().ok().filter(|&step| step > 0)?,
    };
    Some(Positions::Slice { start: bound(parts[0])?, end: bound(parts[1])?, step })
}

impl std::fmt::Display for Positions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Positions::All => f.write_str("all"),
            Positions::Last => f.write_str("last"),
            Positions::Prompt => f.write_str("prompt"),
            Positions::Generated => f.write_str("generated"),
            Positions::List(list) => f.write_str(&list.iter().map(i64::to_string).collect::<Vec<_>>().join(",")),
            Positions::Slice { start, end, step } => {
                let bound = |n: &Option<i64>| n.map(|n| n.to_string()).unwrap_or_default();
                write!(f, "{}:{}", bound(start), bound(end))?;
                if *step == 1 { Ok(()) } else { write!(f, ":{step}") }
            }
            Positions::Token(text) => f.write_str(text),
            Positions::Messages(messages) => messages.fmt(f),
        }
    }
}

/// Selected columns of an edge: all, or ranges.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Columns {
    All(usize),
    Some { ranges: Vec<std::ops::Range<usize>>, len: usize, shape: Vec<usize> },
}

impl Columns {
    /// Resolves heads or units to columns of an edge; fails if one does not exist.
    pub(crate) fn new(edge: &Edge, heads: Option<&[usize]>, units: Option<&[usize]>) -> Result<Columns, String> {
        let all = match (heads, units) {
            (None, None) => return Ok(Columns::All(edge.width)),
            (Some(_), Some(_)) => return Err("a tap selects heads or units, not both".into()),
            (None, Some(units)) => {
                check_indices(units, edge.width, "unit")?;
                (units.iter().map(|&u| u..u + 1).collect::<Vec<_>>(), vec![units.len()])
            }
            (Some(heads), None) => {
                let Layout::Heads(count) = edge.layout else {
                    return Err("this site has no heads".into());
                };
                check_indices(heads, count, "head")?;
                let dim = edge.width / count;
                (heads.iter().map(|&h| h * dim..(h + 1) * dim).collect(), vec![heads.len(), dim])
            }
        };
        let (ranges, shape) = all;
        Ok(Columns::Some { len: shape.iter().product(), ranges, shape })
    }

    /// Returns one range of columns.
    pub(crate) fn of_range(range: Range<usize>) -> Columns {
        let len = range.len();
        Columns::Some { ranges: vec![range], len, shape: vec![len] }
    }

    /// Returns the number of selected columns.
    pub(crate) fn len(&self) -> usize {
        match self {
            Columns::All(width) => *width,
            Columns::Some { len, .. } => *len,
        }
    }

    /// Returns the selected columns as ranges.
    pub(crate) fn ranges(&self) -> Vec<std::ops::Range<usize>> {
        match self {
            Columns::All(width) => std::iter::once(0..*width).collect(),
            Columns::Some { ranges, .. } => ranges.clone(),
        }
    }

    /// Returns the selected elements of one token: a borrow if all are selected, else gathered into
    /// `buffer`.
    pub(crate) fn pick<'t>(&self, token: &'t [f32], buffer: &'t mut Vec<f32>) -> &'t [f32] {
        if let Columns::All(_) = self {
            return token;
        }
        buffer.clear();
        self.gather(token, buffer);
        buffer
    }

    /// Appends the selected elements of one token to `out`.
    pub(crate) fn gather(&self, token: &[f32], out: &mut Vec<f32>) {
        match self {
            Columns::All(_) => out.extend_from_slice(token),
            Columns::Some { ranges, .. } => {
                ranges.iter().for_each(|range| out.extend_from_slice(&token[range.clone()]))
            }
        }
    }

    /// Writes the selected elements of one token back.
    pub(crate) fn scatter(&self, values: &[f32], token: &mut [f32]) {
        match self {
            Columns::All(_) => token.copy_from_slice(values),
            Columns::Some { ranges, .. } => {
                let mut at = 0;
                for range in ranges {
                    token[range.clone()].copy_from_slice(&values[at..at + range.len()]);
                    at += range.len();
                }
            }
        }
    }

    /// Returns the shape of the selected columns of `tokens` tokens on an edge.
    pub(crate) fn shape(&self, edge: &Edge, tokens: usize) -> Vec<usize> {
        let inner = match (self, edge.layout) {
            (Columns::Some { shape, .. }, _) => shape.clone(),
            (Columns::All(width), Layout::Heads(heads)) => vec![heads, width / heads],
            (Columns::All(width), _) => vec![*width],
        };
        std::iter::once(tokens).chain(inner).collect()
    }
}

pub(super) fn check_indices(selected: &[usize], count: usize, kind: &str) -> Result<(), String> {
    if selected.is_empty() {
        return Err(format!("an empty list of {kind}s selects nothing"));
    }
    if let Some(index) = selected.iter().find(|&&index| index >= count) {
        return Err(format!("there is no {kind} {index}: this site has {count}"));
    }
    check_distinct(selected, kind)
}

/// Rejects a selection that lists an index twice: an edit would apply once or twice, depending on
/// its kind.
pub(crate) fn check_distinct(selected: &[usize], kind: &str) -> Result<(), String> {
    let mut sorted = selected.to_vec();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("{kind} {} is selected twice", pair[0])),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_resolve_from_the_prompts_end() {
        let at = |text: &str| Positions::parse(text).resolve(5, 8);
        assert_eq!(at("last"), Ok(vec![4]));
        assert_eq!(at("-2:"), Ok(vec![3, 4, 5, 6, 7]));
        assert_eq!(at("1:-1"), Ok(vec![1, 2, 3]));
        assert_eq!(at("generated"), Ok(vec![5, 6, 7]));
        assert_eq!(at("::3"), Ok(vec![0, 3, 6]));
        assert_eq!(at("-1,0,7"), Ok(vec![4, 0, 7]));
        assert!(at("8").unwrap_err().contains("position 8"));
        assert!(at("-6").unwrap_err().contains("position -6"));
    }

    #[test]
    fn positions_round_trip_through_text() {
        for text in [
            "all",
            "last",
            "prompt",
            "generated",
            "3",
            "-4:",
            "2:10:2",
            "0,5,-1",
            ":-1",
            " Paris",
            "message:2",
            "role:user.all",
        ] {
            assert_eq!(Positions::parse(text).to_string(), text);
        }
    }
}
