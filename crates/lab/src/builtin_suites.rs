//! The suites that come with the lab.

use crate::Result;
use crate::suite::Suite;

/// Name and text of every suite that comes with the lab.
const SUITES: &[(&str, &str)] = &[
    ("ladder", include_str!("../suites/ladder.toml")),
    ("peers", include_str!("../suites/peers.toml")),
    ("saes", include_str!("../suites/saes.toml")),
    ("speed", include_str!("../suites/speed.toml")),
    ("startup", include_str!("../suites/startup.toml")),
    ("trace", include_str!("../suites/trace.toml")),
];

/// Python program of `lab tracing-cost`.
pub const TRACING_COST: &str = include_str!("../peers/tracing_cost.py");

/// Returns the names of all suites.
pub fn names() -> impl Iterator<Item = &'static str> {
    SUITES.iter().map(|(name, _)| *name)
}

/// Former names of suites, still accepted.
const OLD_NAMES: &[(&str, &str)] = &[("load", "startup"), ("capture", "ladder")];

/// Maps a former name of a suite to its current name. Results that were written under a former name
/// need it too.
pub fn present_name(name: &str) -> &str {
    OLD_NAMES.iter().find(|(old, _)| *old == name).map_or(name, |(_, present)| present)
}

/// Returns a suite by its current or a former name.
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
