//! The suites that come with the lab.

use crate::Result;
use crate::suite::Suite;

/// Name and text of every suite that comes with the lab.
const SUITES: &[(&str, &str)] = &[
    ("capture", include_str!("../suites/capture.toml")),
    ("load", include_str!("../suites/load.toml")),
    ("peers", include_str!("../suites/peers.toml")),
    ("speed", include_str!("../suites/speed.toml")),
    ("trace", include_str!("../suites/trace.toml")),
];

/// The profile of tracing, a program for Python.
pub const TRACE_PROFILE: &str = include_str!("../peers/trace_profile.py");

/// Their names.
pub fn names() -> impl Iterator<Item = &'static str> {
    SUITES.iter().map(|(name, _)| *name)
}

/// A suite by its name.
pub fn named(name: &str) -> Option<Result<Suite>> {
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
    }
}
