//! The ways to load a thing, in the order in which they are tried, and what becomes of each: what a loader does, told without loading.

use schemars::JsonSchema;
use serde::Serialize;

use super::report::{Category, Format, Report, Support};

/// A way to load a thing.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Strategy {
    /// Which.
    pub name: StrategyName,
    /// What becomes of it.
    pub outcome: Outcome,
    /// Why.
    pub why: String,
}

/// The ways to load, in the order in which they are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StrategyName {
    /// The model's own type is native.
    NativeFamily,
    /// Its type is registered as a native family.
    RegisteredType,
    /// The caller names the family (`--assume`).
    AssumedFamily,
    /// It is an adapter, which is merged into its base model.
    AdapterMerge,
    /// It is a GGUF file, which is read as the model that it was made from.
    Gguf,
    /// Nothing is left.
    Refuse,
}

/// What becomes of a way to load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is how this thing is loaded.
    Taken,
    /// It would be, if it were asked for.
    Offered,
    /// It is the one for this thing, and this copy of it does not load.
    Failed,
    /// It is for other things.
    PassedOver,
}

impl StrategyName {
    /// How people say it.
    pub fn words(self) -> &'static str {
        match self {
            StrategyName::NativeFamily => "native family",
            StrategyName::RegisteredType => "registered type",
            StrategyName::AssumedFamily => "assumed family",
            StrategyName::AdapterMerge => "adapter merge",
            StrategyName::Gguf => "GGUF",
            StrategyName::Refuse => "refuse",
        }
    }
}

impl Outcome {
    fn words(self) -> &'static str {
        match self {
            Outcome::Taken => "taken",
            Outcome::Offered => "offered",
            Outcome::Failed => "failed",
            Outcome::PassedOver => "passed over",
        }
    }
}

/// What becomes of each way, from a finished report.
pub(super) fn considered(report: &Report) -> Vec<Strategy> {
    let strategy = |name, outcome, why: String| Strategy { name, outcome, why };
    let passed = |name, why: &str| strategy(name, Outcome::PassedOver, why.to_owned());
    // The way that is for this thing is taken, or fails with the report's reason.
    let own = |name, why: String| match &report.reason {
        None => strategy(name, Outcome::Taken, why),
        Some(reason) => strategy(name, Outcome::Failed, format!("{why}, but {reason}")),
    };
    let named = report.model_type.as_deref().unwrap_or("none");
    let is_gguf = report.format == Format::Gguf;
    let is_directory = report.format == Format::Directory;
    let is_native = report.support == Support::Native && report.registered_as.is_none();
    let in_tables = report.category != Category::Adapter && is_directory && is_native;
    let mut all = vec![
        if in_tables {
            own(StrategyName::NativeFamily, format!("the type `{named}` is native"))
        } else if is_gguf {
            passed(StrategyName::NativeFamily, "this is a GGUF file")
        } else {
            passed(StrategyName::NativeFamily, &format!("the type `{named}` is not native"))
        },
        match &report.registered_as {
            Some(family) => {
                own(StrategyName::RegisteredType, format!("the type `{named}` is registered as `{family}`"))
            }
            None => passed(StrategyName::RegisteredType, &format!("the type `{named}` is not registered")),
        },
        match &report.assume {
            Some(offer) => {
                let why = format!("`{0}` fits; with --assume {0} it runs as that", offer.family);
                strategy(StrategyName::AssumedFamily, Outcome::Offered, why)
            }
            None => passed(StrategyName::AssumedFamily, "no native family is known to fit, or none is needed"),
        },
        match report.category {
            Category::Adapter => own(StrategyName::AdapterMerge, "it is an adapter".into()),
            _ => passed(StrategyName::AdapterMerge, "it is no adapter"),
        },
        if is_gguf && report.support == Support::Native {
            own(StrategyName::Gguf, format!("a GGUF file of the type `{named}`"))
        } else if is_gguf {
            passed(StrategyName::Gguf, "this GGUF file is of no native type")
        } else {
            passed(StrategyName::Gguf, "this is no GGUF file")
        },
    ];
    if let Some(reason) = &report.reason {
        all.push(strategy(StrategyName::Refuse, Outcome::Taken, reason.clone()));
    }
    all
}

impl Report {
    /// The ways to load this, one a line, with what becomes of each.
    pub fn explanation(&self) -> String {
        let line = |strategy: &Strategy| {
            let (name, outcome) = (strategy.name.words(), strategy.outcome.words());
            format!("  {name:17}{outcome:13}{}\n", super::card::clean(&strategy.why))
        };
        let lines: String = self.strategies.iter().map(line).collect();
        format!("ways to load it, in order\n{lines}")
    }
}
