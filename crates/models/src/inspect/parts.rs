//! The parts of a multimodal model: their sizes, and which of them a partial load would need.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::report::Report;

/// Input and output modalities of a model besides text.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Modalities {
    /// Whether it is an omni model: several output modalities, or a thinker and a talker.
    pub omni: bool,
    /// Whether the configuration has a vision encoder.
    pub vision: bool,
    /// Whether the configuration has an audio encoder.
    pub audio: bool,
    /// Whether the configuration has a talker (speech output).
    pub talker: bool,
    /// The parts with their sizes, if there are several.
    pub parts: Vec<ModelPart>,
    /// The partial loads of an omni model.
    pub loads: Vec<PartialLoad>,
}

/// A part of a multimodal model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Part")]
pub struct ModelPart {
    /// Function of the part.
    pub role: PartRole,
    /// Number of parameters.
    pub parameters: u64,
    /// Number of tensors.
    pub tensors: usize,
}

/// The function of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Role")]
pub enum PartRole {
    /// Language model.
    Text,
    /// Vision encoder.
    Vision,
    /// Audio encoder.
    Audio,
    /// Projects vision or audio features into the language model's residual stream.
    Projector,
    /// Generates speech tokens.
    Talker,
    /// Vocoder: turns speech tokens into a waveform.
    Voice,
}

/// A subset of an omni model's parts that can be loaded alone.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "Load")]
pub struct PartialLoad {
    /// Which subset.
    pub mode: LoadMode,
    /// The parts in it.
    pub parts: Vec<PartRole>,
    /// Number of parameters in these parts.
    pub parameters: u64,
}

/// Which parts of an omni model are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LoadMode {
    /// Everything but speech output.
    ThinkerOnly,
    /// Speech output only.
    TalkerOnly,
    /// All parts.
    Full,
}

/// Substrings of tensor names and configuration keys, by role; the first match counts.
const NAMES: &[(PartRole, &[&str])] = &[
    (PartRole::Voice, &["token2wav", "code2wav", "vocoder", "bigvgan"]),
    (PartRole::Talker, &["talker", "tts"]),
    (PartRole::Projector, &["projector", "resampler", "aligner", "connector"]),
    (PartRole::Audio, &["audio", "speech_encoder", "apm."]),
    (PartRole::Vision, &["vision", "visual", "vpm.", "image_newline"]),
];

impl PartRole {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            PartRole::Text => "text",
            PartRole::Vision => "vision",
            PartRole::Audio => "audio",
            PartRole::Projector => "projector",
            PartRole::Talker => "talker",
            PartRole::Voice => "voice",
        }
    }

    /// The role of a tensor or sub-configuration of this name.
    fn from_name(name: &str) -> PartRole {
        let entry = NAMES.iter().find(|(_, parts)| parts.iter().any(|part| name.contains(part)));
        entry.map_or(PartRole::Text, |(role, _)| *role)
    }

    fn is_speech_output(self) -> bool {
        matches!(self, PartRole::Talker | PartRole::Voice)
    }
}

impl LoadMode {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            LoadMode::ThinkerOnly => "thinker-only",
            LoadMode::TalkerOnly => "talker-only",
            LoadMode::Full => "full",
        }
    }

    fn includes(self, role: PartRole) -> bool {
        match self {
            LoadMode::ThinkerOnly => !role.is_speech_output(),
            LoadMode::TalkerOnly => role.is_speech_output(),
            LoadMode::Full => true,
        }
    }
}

/// Adds a tensor to its part.
pub(super) fn count(report: &mut Report, name: &str, parameters: u64) {
    let parts = &mut report.modalities.parts;
    let role = PartRole::from_name(name);
    match parts.iter_mut().find(|part| part.role == role) {
        Some(part) => {
            part.parameters = part.parameters.saturating_add(parameters);
            part.tensors += 1;
        }
        None => parts.push(ModelPart { role, parameters, tensors: 1 }),
    }
}

/// Reads the modalities from the configuration.
pub(super) fn read(config: &Value, report: &mut Report) {
    let roles = configured_roles(config, 2);
    let has = |role: PartRole| roles.contains(&role);
    report.modalities.vision = has(PartRole::Vision);
    report.modalities.audio = has(PartRole::Audio);
    report.modalities.talker = has(PartRole::Talker);
}

/// The roles of nested `…_config` objects, up to a depth.
fn configured_roles(config: &Value, depth: usize) -> Vec<PartRole> {
    let parts = config.as_object().into_iter().flatten();
    let parts = parts.filter(|(key, part)| key.ends_with("_config") && part.is_object());
    let mut roles = Vec::new();
    for (key, part) in parts {
        roles.push(PartRole::from_name(key));
        if depth > 1 {
            roles.extend(configured_roles(part, depth - 1));
        }
    }
    roles
}

/// Sorts the parts once all tensors are counted, and computes the partial loads.
pub(super) fn finish(config: &Value, report: &mut Report) {
    let modalities = &mut report.modalities;
    if modalities.omni {
        // Also list parts whose weights are missing.
        for role in configured_roles(config, 2) {
            if modalities.parts.iter().all(|part| part.role != role) {
                modalities.parts.push(ModelPart { role, parameters: 0, tensors: 0 });
            }
        }
    }
    modalities.parts.sort_by_key(|part| part.role);
    if modalities.parts.len() < 2 {
        modalities.parts.clear();
    }
    if modalities.omni && modalities.parts.iter().any(|part| part.role.is_speech_output()) {
        let load = |mode: LoadMode| {
            let included = modalities.parts.iter().filter(|part| mode.includes(part.role));
            let parameters = included.clone().fold(0u64, |sum, part| sum.saturating_add(part.parameters));
            PartialLoad { mode, parts: included.map(|part| part.role).collect(), parameters }
        };
        modalities.loads = [LoadMode::ThinkerOnly, LoadMode::TalkerOnly, LoadMode::Full].map(load).into();
    }
}
