//! How much is measured: what was typed, then what the environment says, then the defaults.

use super::{Category, NAME};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// The variable for [`Settings::iterations`].
pub const ITERATIONS: &str = "BENCHMARK_ITERATIONS";
/// The variable for [`Settings::warmup`].
pub const WARMUP: &str = "BENCHMARK_WARMUP";
/// The variable that names a real model.
pub const MODEL: &str = "TEST_MODEL_PATH";

/// How much is measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Timed iterations of each benchmark; those that take milliseconds get a tenth.
    pub iterations: usize,
    /// Iterations before them that are not timed.
    pub warmup: usize,
    /// Whether the allocations of every benchmark are counted, and not only of those about memory.
    pub memory_profiling: bool,
    /// The only category that is measured; all where there is none.
    pub category: Option<Category>,
    /// A real model that is inspected and loaded, too.
    pub model: Option<String>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { iterations: 100, warmup: 10, memory_profiling: false, category: None, model: None }
    }
}

impl Settings {
    /// What was typed wins over what `variable` finds in the environment, and that over the defaults.
    ///
    /// # Errors
    /// If a variable that is needed is no number, or if nothing would be timed.
    pub fn new(
        iterations: Option<usize>,
        warmup: Option<usize>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Settings> {
        let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let count = |typed: Option<usize>, name: &str, default: usize| match (typed, set(name)) {
            (Some(typed), _) => Ok(typed),
            (None, Some(text)) => text.trim().parse().map_err(|_| Error::Suite {
                suite: NAME.into(),
                problem: format!("{name} is `{text}`, which is no number of iterations"),
            }),
            (None, None) => Ok(default),
        };
        let default = Settings::default();
        let settings = Settings {
            iterations: count(iterations, ITERATIONS, default.iterations)?,
            warmup: count(warmup, WARMUP, default.warmup)?,
            model: set(MODEL),
            ..default
        };
        if settings.iterations == 0 {
            let problem = format!("0 iterations measure nothing: give --iterations or {ITERATIONS} of at least 1");
            return Err(Error::Suite { suite: NAME.into(), problem });
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_wins_over_the_environment() {
        let variables = |name: &str| match name {
            ITERATIONS => Some("30".into()),
            WARMUP => Some(" 3 ".into()),
            MODEL => Some("m".into()),
            _ => None,
        };
        let both = Settings::new(Some(7), Some(1), variables).expect("settings");
        assert_eq!((both.iterations, both.warmup, both.model.as_deref()), (7, 1, Some("m")));
        let environment = Settings::new(None, None, variables).expect("settings");
        assert_eq!((environment.iterations, environment.warmup), (30, 3));
        let neither = Settings::new(None, None, |_| None).expect("settings");
        assert_eq!(neither, Settings::default());
        assert_eq!((neither.iterations, neither.warmup), (100, 10));
        assert_eq!(Settings::new(None, None, |_| Some(String::new())).expect("empty is unset"), neither);
    }

    #[test]
    fn a_variable_that_is_no_number_is_named_unless_nobody_needs_it() {
        let fault = |iterations: Option<usize>| {
            Settings::new(iterations, None, |name| (name == ITERATIONS).then(|| "many".into()))
        };
        assert!(fault(None).expect_err("refused").to_string().contains("BENCHMARK_ITERATIONS is `many`"));
        assert_eq!(fault(Some(2)).expect("typed").iterations, 2);
        assert!(Settings::new(Some(0), None, |_| None).expect_err("refused").to_string().contains("measure nothing"));
    }
}
