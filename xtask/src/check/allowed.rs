//! Module dependencies that close a cycle and are allowed for now. An entry that closes no cycle any more is an error: remove it.

/// A dependency that closes a cycle.
pub struct Allowed {
    /// The crate: its directory, without `crates/`.
    pub crate_name: &'static str,
    /// The module that depends on the other.
    pub from: &'static str,
    /// The module that it depends on.
    pub to: &'static str,
    /// Why it exists, for whoever removes it.
    pub because: &'static str,
}

const fn allow(crate_name: &'static str, from: &'static str, to: &'static str, because: &'static str) -> Allowed {
    Allowed { crate_name, from, to, because }
}

/// All allowed dependencies.
pub const ALLOWED: &[Allowed] = &[
    allow(
        "cli",
        "models",
        "commands",
        "loading reports through `commands::say`; that function belongs beside `progress`",
    ),
    allow("engine", "backend", "exec", "a backend is handed the executor's `Frame` and `Taps`"),
    allow("engine", "exec", "cpu", "a model without another backend gets the CPU"),
    allow("engine", "exec", "grad", "the executor records the gradient tape while it runs"),
    allow("engine", "exec", "prefix", "a model holds its prefix cache"),
    allow("engine", "plan", "exec", "explaining a plan asks the model"),
    allow("engine", "plan", "profile", "explaining a plan uses the profile's count of work"),
    allow("engine", "plan", "value", "compiling a plan asks for the shapes of its values"),
    allow("engine", "program", "site", "a program lists its sites; a site is looked up in a program"),
    allow("engine", "value", "exec", "a value that runs a stretch of layers builds a frame of its own"),
    allow("engine", "value", "grad", "its derivative walks that stretch backward"),
    allow("engine", "weights", "program", "which weights a program needs is asked of its ops"),
    allow("kernels", "memory", "slab", "a lasting buffer may come out of the slab of the thread"),
    allow("kernels", "simd", "encoding", "portable code converts halves with the function of the encodings"),
    allow("lab", "roofline", "session", "the roofline runs the workers of a session"),
    allow("models", "assume", "strategy", "the assumed family is reported as a strategy"),
    allow("models", "error", "strategy", "an error lists the strategies that were tried"),
    allow("models", "identify", "inspect", "both share `Category` and `Support`"),
    allow("models", "strategy", "model", "explaining a load repeats what loading does"),
    allow("models", "tokenizer", "model", "the tokenizer of a GGUF file is read by the model"),
    allow("python", "expression", "record", "they share the error for an unknown word"),
    allow("python", "found", "run", "they share the type of earlier results"),
    allow("python", "prefix", "run", "they share the conversion of tokens"),
];
