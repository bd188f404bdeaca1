//! The modes of the benchmark, each a plan.

use pellucid_engine::{Action, Callback, Plan, Positions, SelectedRow, Tap};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What the plan of a generation captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// No plan.
    Baseline,
    /// A capture of every layer that selects no position: everything is armed, nothing is stored.
    ZeroLayer,
    /// A callback at every layer that reads nothing and changes nothing.
    NoopHook,
    /// The middle layer.
    Single,
    /// The middle half of the layers.
    Half,
    /// Every layer.
    AllLayers,
    /// The layers of `--layers`.
    Custom,
}

impl Mode {
    /// All modes with their names in JSON and on the command line.
    pub const ALL: [(Mode, &str); 7] = [
        (Mode::Baseline, "baseline"),
        (Mode::ZeroLayer, "zero-layer"),
        (Mode::NoopHook, "noop-hook"),
        (Mode::Single, "single"),
        (Mode::Half, "half"),
        (Mode::AllLayers, "all-layers"),
        (Mode::Custom, "custom"),
    ];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        Mode::ALL.iter().find(|(mode, _)| *mode == self).map_or("", |(_, name)| name)
    }

    /// Returns the mode of a name.
    pub fn from_name(name: &str) -> Option<Mode> {
        Mode::ALL.iter().find(|(_, known)| *known == name).map(|(mode, _)| *mode)
    }

    /// Returns the layers that it captures, of a model with `depth` layers.
    pub fn layers(self, depth: usize, custom: &[usize]) -> Vec<usize> {
        match self {
            Mode::Baseline | Mode::ZeroLayer | Mode::NoopHook => vec![],
            Mode::Single => vec![depth / 2],
            Mode::Half => (depth / 4..depth / 4 + (depth / 2).max(1)).collect(),
            Mode::AllLayers => (0..depth).collect(),
            Mode::Custom => custom.to_vec(),
        }
    }

    /// Whether it captures activations.
    pub fn captures(self) -> bool {
        !matches!(self, Mode::Baseline | Mode::ZeroLayer | Mode::NoopHook)
    }

    /// Returns the plan of one request, which captures `layers`.
    pub fn plan(self, layers: &[usize]) -> Plan {
        let every = |action: Action| Tap::new("layers.*.resid_post", action);
        match self {
            Mode::Baseline => Plan::default(),
            Mode::ZeroLayer => Plan::of([every(Action::Capture(None)).positions(Positions::List(vec![]))]),
            Mode::NoopHook => Plan::of([every(Action::Call(Callback(Arc::new(|_: &mut [SelectedRow]| ()))))]),
            Mode::Single | Mode::Half | Mode::AllLayers | Mode::Custom => capture_plan(layers),
        }
    }
}

/// Returns a plan that captures `resid_post` of some layers.
pub(super) fn capture_plan(layers: &[usize]) -> Plan {
    Plan::capture(layers.iter().map(|layer| format!("layers.{layer}.resid_post")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_capture_the_layers_of_the_original_benchmark() {
        let of = |mode: Mode| mode.layers(36, &[0, 5, 10]);
        assert_eq!((of(Mode::Single), of(Mode::Custom)), (vec![18], vec![0, 5, 10]));
        assert_eq!(of(Mode::Half), (9..27).collect::<Vec<_>>());
        assert_eq!(of(Mode::AllLayers).len(), 36);
        for (mode, name) in Mode::ALL {
            assert_eq!((Mode::from_name(name), mode.name()), (Some(mode), name));
            assert_eq!(serde_json::to_value(mode).expect("JSON"), name);
            assert_eq!(mode.captures(), !of(mode).is_empty());
            // A model with one layer.
            assert!(mode.layers(1, &[0]).iter().all(|layer| *layer == 0));
        }
    }
}
