//! The suites that come with the lab.

use crate::Result;
use crate::suite::Suite;

/// Name and text of every suite that comes with the lab.
const SUITES: &[(&str, &str)] = &[
    ("capture", include_str!("../suites/capture.toml")),
    ("peers", include_str!("../suites/peers.toml")),
    ("speed", include_str!("../suites/speed.toml")),
    ("startup", include_str!("../suites/startup.toml")),
    ("trace", include_str!("../suites/trace.toml")),
];

/// The Python program of `lab tracing-cost`.
pub const TRACING_COST: &str = include_str!("../peers/tracing_cost.py");

/// The names of all suites.
pub fn names() -> impl Iterator<Item = &'static str> {
    SUITES.iter().map(|(name, _)| *name)
}

/// Earlier names of suites, which are still accepted.
const OLD_NAMES: &[(&str, &str)] = &[("load", "startup")];

/// The present name of a suite: of results that were written under an earlier one, too.
pub fn present_name(name: &str) -> &str {
    OLD_NAMES.iter().find(|(old, _)| *old == name).map_or(name, |(_, present)| present)
}

/// A suite by its name, or by an earlier name of it.
pub fn named(name: &str) -> Option<Result<Suite>> {
    let name = present_name(name);
    SUITES.iter().find(|(known, _)| *known == name).map(|(name, text)| Suite::parse(text, name))
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_suite_can_be_run() {
        for name in super::names() {
            let suite = super::named(name).expect("it is there").unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(suite.name, name);
            assert!(!suite.title.is_empty());
        }
        let renamed = super::named("load").expect("an earlier name").expect("a suite");
        assert_eq!(renamed.name, "startup");
    }
}
