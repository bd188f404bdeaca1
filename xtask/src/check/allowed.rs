//! Module dependencies that close a cycle and are tolerated for now. An entry that no longer closes
//! a cycle is an error: remove it.

/// A dependency that closes a cycle.
pub struct Allowed {
    /// The crate: its directory, without `crates/`.
    pub crate_name: &'static str,
    /// The module that depends on the other.
    pub from: &'static str,
    /// The module that it depends on.
    pub to: &'static str,
    /// Why it exists.
    pub because: &'static str,
}

const fn allow(crate_name: &'static str, from: &'static str, to: &'static str, because: &'static str) -> Allowed {
    Allowed { crate_name, from, to, because }
}

/// All allowed dependencies.
pub const ALLOWED: &[Allowed] = &[
    allow("cli", "models", "commands", "loading reports through `commands::say`; that function belongs in `progress`"),
    allow("python", "expression", "plan", "they share the error for an unknown word"),
    allow("python", "results", "run", "they share the type of earlier results"),
    allow("python", "prefix", "run", "they share the conversion of tokens"),
];
