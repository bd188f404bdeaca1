//! Spans of requests, and lanes that hold them without overlap.

use super::Schedule;
use std::collections::HashMap;

/// The time of a request, in seconds from the scheduler's start.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestSpans {
    /// Index of the request in the schedule.
    pub request: usize,
    /// Submission.
    pub submitted: f64,
    /// Consecutive passes of the same kind, joined.
    pub spans: Vec<Span>,
    /// The lane: two requests of a lane do not overlap.
    pub lane: usize,
}

/// Consecutive passes in which a request took part in the same way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// Whether prompt tokens were computed; otherwise generated ones.
    pub is_prompt: bool,
    /// Start of the first pass.
    pub start: f64,
    /// End of the last pass.
    pub end: f64,
    /// Number of passes.
    pub passes: usize,
    /// Tokens of the request in these passes.
    pub tokens: usize,
}

impl RequestSpans {
    /// Start of its first pass.
    pub fn start(&self) -> f64 {
        self.spans.first().map_or(self.submitted, |span| span.start)
    }

    /// End of its last pass.
    pub fn end(&self) -> f64 {
        self.spans.last().map_or(self.submitted, |span| span.end)
    }

    /// Tokens in passes with prompt tokens, or in the others.
    pub fn tokens(&self, is_prompt: bool) -> usize {
        self.spans.iter().filter(|span| span.is_prompt == is_prompt).map(|span| span.tokens).sum()
    }
}

/// Returns the spans of every request that was in a pass, in the order of their first pass.
pub fn spans(schedule: &Schedule) -> Vec<RequestSpans> {
    let mut found: Vec<RequestSpans> = Vec::new();
    let mut index_of: HashMap<u64, usize> = HashMap::new();
    // The index of the last pass of each request: a gap starts a new span.
    let mut last_pass: Vec<usize> = Vec::new();
    for (number, pass) in schedule.passes.iter().enumerate() {
        let (start, end) = (pass.start.as_secs_f64(), (pass.start + pass.duration).as_secs_f64());
        for share in &pass.requests {
            let index = *index_of.entry(share.request).or_insert_with(|| {
                let request = share.request as usize;
                let submitted = schedule.requests.get(request).map_or(start, |r| r.submitted.as_secs_f64());
                found.push(RequestSpans { request, submitted: submitted.min(start), spans: Vec::new(), lane: 0 });
                last_pass.push(number);
                found.len() - 1
            });
            let (spans, last) = (&mut found[index].spans, &mut last_pass[index]);
            let (is_prompt, tokens) = (share.prompt_tokens > 0, share.prompt_tokens + share.decode_tokens);
            match spans.last_mut() {
                Some(span) if span.is_prompt == is_prompt && *last + 1 >= number => {
                    (span.end, span.passes, span.tokens) = (end, span.passes + 1, span.tokens + tokens);
                }
                _ => spans.push(Span { is_prompt, start, end, passes: 1, tokens }),
            }
            *last = number;
        }
    }
    found
}

/// Gives each request the first lane that is free from its first pass on; returns the number of
/// lanes. The lanes are then as many as requests ran at once.
pub fn assign_lanes(requests: &mut [RequestSpans]) -> usize {
    let mut ends: Vec<f64> = Vec::new();
    for request in requests {
        let free = ends.iter().position(|end| *end <= request.start());
        request.lane = free.unwrap_or(ends.len());
        match free {
            Some(lane) => ends[lane] = request.end(),
            None => ends.push(request.end()),
        }
    }
    ends.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::ScheduledRequest;
    use pellucid_engine::{PassRecord, PassShare};
    use std::time::Duration;

    fn pass(start: u64, shares: &[(u64, usize, usize)]) -> PassRecord {
        let share = |&(request, prompt_tokens, decode_tokens)| PassShare { request, prompt_tokens, decode_tokens };
        PassRecord {
            start: Duration::from_secs(start),
            duration: Duration::from_secs(1),
            requests: shares.iter().map(share).collect(),
            waiting: 0,
            kv_bytes: 0,
            capture_bytes: 0,
        }
    }

    #[test]
    fn passes_of_a_kind_are_joined_and_a_gap_or_a_change_starts_a_span() {
        let passes = vec![
            pass(0, &[(0, 8, 0)]),
            pass(1, &[(0, 4, 0), (1, 4, 0)]),
            pass(2, &[(0, 0, 1)]),
            pass(3, &[(0, 0, 1), (1, 3, 0)]),
            pass(4, &[(2, 5, 0), (1, 0, 1)]),
        ];
        let requests = vec![ScheduledRequest::default(); 3];
        let mut found = spans(&Schedule { model: String::new(), passes, requests });
        let of = |index: usize| -> Vec<_> {
            found[index].spans.iter().map(|s| (s.is_prompt, s.start, s.end, s.passes, s.tokens)).collect()
        };
        assert_eq!(of(0), [(true, 0.0, 2.0, 2, 12), (false, 2.0, 4.0, 2, 2)]);
        assert_eq!(of(1), [(true, 1.0, 2.0, 1, 4), (true, 3.0, 4.0, 1, 3), (false, 4.0, 5.0, 1, 1)]);
        assert_eq!((found[1].tokens(true), found[1].tokens(false)), (7, 1));
        assert_eq!(assign_lanes(&mut found), 2);
        assert_eq!(found.iter().map(|request| request.lane).collect::<Vec<_>>(), [0, 1, 0]);
    }
}
