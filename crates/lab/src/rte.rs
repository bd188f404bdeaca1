//! Four yes/no questions about passages, from the RTE challenges (`workloads/README.md`).

use serde::Deserialize;

/// The examples as JSON lines: `premise`, `hypothesis`, and `label` (0 is yes).
pub const EXAMPLES: &str = include_str!("../workloads/rte.jsonl");

/// Interpretune's prompt. The premise and `Does` have no separator, as there.
pub const PROMPT: &str =
    "{premise}Does the previous passage imply that {hypothesis}? Answer with only one word, either Yes or No.";

/// Texts of the labels.
pub const LABELS: [&str; 2] = ["Yes", "No"];

#[derive(Deserialize)]
struct Example {
    premise: String,
    hypothesis: String,
}

/// Returns the prompts.
pub fn prompts() -> impl Iterator<Item = String> {
    let parse = |line| serde_json::from_str::<Example>(line).expect("a line of workloads/rte.jsonl is an example");
    let fill =
        |example: Example| PROMPT.replace("{premise}", &example.premise).replace("{hypothesis}", &example.hypothesis);
    EXAMPLES.lines().map(parse).map(fill)
}
