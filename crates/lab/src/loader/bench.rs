//! A benchmark: a question, the answer that it must get, and the clock around the question alone.

use super::Category;
use crate::counting;
use crate::protocol::Allocations;
use std::collections::BTreeMap;
use std::time::Instant;

/// How many times fewer iterations a benchmark gets that takes milliseconds instead of microseconds.
const SLOW: usize = 10;

/// A question with the answer that it must get.
pub struct Benchmark {
    /// Its name.
    pub name: String,
    /// What it is about.
    pub category: Category,
    /// The function that is timed.
    pub function: &'static str,
    /// What else is good to know.
    pub metadata: BTreeMap<String, String>,
    /// The answer that it must get, in words.
    pub expected: String,
    /// One iteration in so many is done.
    pub one_in: usize,
    ask: Box<dyn FnMut(How) -> Sample>,
}

/// What an iteration is for. Counting disturbs timing, so one iteration does one of the two.
#[derive(Clone, Copy, PartialEq)]
enum How {
    Timed,
    Counted,
}

/// What an iteration gave.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Nanoseconds of the question alone.
    pub nanoseconds: u64,
    /// The answer, in words.
    pub observed: String,
    /// What the question allocated, where that was counted and the executable can count.
    pub allocations: Option<Allocations>,
}

impl Benchmark {
    /// A question that needs nothing done before it. `say` puts the answer into words, outside the time.
    pub fn new<T>(
        name: impl Into<String>,
        category: Category,
        function: &'static str,
        expected: impl Into<String>,
        mut run: impl FnMut() -> T + 'static,
        say: impl Fn(&T) -> String + 'static,
    ) -> Benchmark {
        Benchmark::prepared(name, category, function, expected, || (), move |()| run(), say)
    }

    /// A question for which `prepare` makes something new each time, outside the time.
    pub fn prepared<P, T>(
        name: impl Into<String>,
        category: Category,
        function: &'static str,
        expected: impl Into<String>,
        mut prepare: impl FnMut() -> P + 'static,
        mut run: impl FnMut(P) -> T + 'static,
        say: impl Fn(&T) -> String + 'static,
    ) -> Benchmark {
        let ask = move |how: How| {
            let given = prepare();
            let (answer, nanoseconds, allocations) = match how {
                How::Timed => {
                    let started = Instant::now();
                    let answer = std::hint::black_box(run(given));
                    (answer, started.elapsed().as_nanos() as u64, None)
                }
                How::Counted => {
                    let (answer, found) = counting::during(|| run(given));
                    (answer, 0, found)
                }
            };
            Sample { nanoseconds, observed: say(&answer), allocations }
        };
        let (name, expected) = (name.into(), expected.into());
        Benchmark { name, category, function, metadata: BTreeMap::new(), expected, one_in: 1, ask: Box::new(ask) }
    }

    /// The same with something more to know about it.
    pub fn with(mut self, key: &str, value: impl Into<String>) -> Benchmark {
        self.metadata.insert(key.into(), value.into());
        self
    }

    /// The same, as one that takes milliseconds.
    pub fn slow(mut self) -> Benchmark {
        self.one_in = SLOW;
        self
    }

    /// Asks once, and takes the time.
    pub fn timed(&mut self) -> Sample {
        (self.ask)(How::Timed)
    }

    /// Asks once, and counts allocations.
    pub fn counted(&mut self) -> Sample {
        (self.ask)(How::Counted)
    }
}
