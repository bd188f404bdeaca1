//! The parts of a model that does more than write: what each takes, and which of them a partial load would need.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::report::Report;

/// What a model takes in and gives out besides text.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Modalities {
    /// Whether it is an omni model: it gives more than one kind of output, or thinks and speaks.
    pub omni: bool,
    /// Whether its configuration has a part that looks.
    pub vision: bool,
    /// Whether its configuration has a part that listens.
    pub audio: bool,
    /// Whether its configuration has a part that speaks.
    pub talker: bool,
    /// Its parts with what they hold, where there are several.
    pub parts: Vec<Part>,
    /// What partial loads of an omni model would take.
    pub loads: Vec<Load>,
}

/// A part of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Part {
    /// What it does.
    pub role: Role,
    /// Numbers in its tensors.
    pub parameters: u64,
    /// Its tensors.
    pub tensors: usize,
}

/// What a part does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads and writes text.
    Text,
    /// Looks.
    Vision,
    /// Listens.
    Audio,
    /// Brings what was seen or heard into the text's stream.
    Projector,
    /// Decides what to say.
    Talker,
    /// Makes it sound.
    Voice,
}

/// A way to load an omni model.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Load {
    /// Which.
    pub mode: LoadMode,
    /// The parts that it would take.
    pub parts: Vec<Role>,
    /// Numbers in them.
    pub parameters: u64,
}

/// How much of an omni model is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LoadMode {
    /// What reads, looks, listens and writes.
    ThinkerOnly,
    /// What speaks.
    TalkerOnly,
    /// Everything.
    Full,
}

/// What the names of tensors and configurations begin with or hold, by role; the first that matches counts.
const NAMES: &[(Role, &[&str])] = &[
    (Role::Voice, &["token2wav", "code2wav", "vocoder", "bigvgan"]),
    (Role::Talker, &["talker", "tts"]),
    (Role::Projector, &["projector", "resampler", "aligner", "connector"]),
    (Role::Audio, &["audio", "speech_encoder", "apm."]),
    (Role::Vision, &["vision", "visual", "vpm.", "image_newline"]),
];

impl Role {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Role::Text => "text",
            Role::Vision => "vision",
            Role::Audio => "audio",
            Role::Projector => "projector",
            Role::Talker => "talker",
            Role::Voice => "voice",
        }
    }

    /// The role of a tensor, or of a configuration, of that name.
    fn of(name: &str) -> Role {
        let found = NAMES.iter().find(|(_, parts)| parts.iter().any(|part| name.contains(part)));
        found.map_or(Role::Text, |(role, _)| *role)
    }

    fn speaks(self) -> bool {
        matches!(self, Role::Talker | Role::Voice)
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

    fn takes(self, role: Role) -> bool {
        match self {
            LoadMode::ThinkerOnly => !role.speaks(),
            LoadMode::TalkerOnly => role.speaks(),
            LoadMode::Full => true,
        }
    }
}

/// Adds a tensor to its part.
pub(super) fn count(report: &mut Report, name: &str, parameters: u64) {
    let parts = &mut report.modalities.parts;
    let role = Role::of(name);
    match parts.iter_mut().find(|part| part.role == role) {
        Some(part) => {
            part.parameters = part.parameters.saturating_add(parameters);
            part.tensors += 1;
        }
        None => parts.push(Part { role, parameters, tensors: 1 }),
    }
}

/// Reads from the configuration what the model takes in and gives out.
pub(super) fn read(config: &Value, report: &mut Report) {
    let roles = configured(config, 2);
    let has = |role: Role| roles.contains(&role);
    report.modalities.vision = has(Role::Vision);
    report.modalities.audio = has(Role::Audio);
    report.modalities.talker = has(Role::Talker);
}

/// The roles of the configurations inside a configuration, up to a depth.
fn configured(config: &Value, depth: usize) -> Vec<Role> {
    let parts = config.as_object().into_iter().flatten();
    let parts = parts.filter(|(key, part)| key.ends_with("_config") && part.is_object());
    let mut roles = Vec::new();
    for (key, part) in parts {
        roles.push(Role::of(key));
        if depth > 1 {
            roles.extend(configured(part, depth - 1));
        }
    }
    roles
}

/// Orders the parts once all tensors are counted, and says what partial loads would take.
pub(super) fn finish(config: &Value, report: &mut Report) {
    let modalities = &mut report.modalities;
    if modalities.omni {
        // Parts whose weights are not here are still parts.
        for role in configured(config, 2) {
            if modalities.parts.iter().all(|part| part.role != role) {
                modalities.parts.push(Part { role, parameters: 0, tensors: 0 });
            }
        }
    }
    modalities.parts.sort_by_key(|part| part.role);
    if modalities.parts.len() < 2 {
        modalities.parts.clear();
    }
    if modalities.omni && modalities.parts.iter().any(|part| part.role.speaks()) {
        let load = |mode: LoadMode| {
            let taken = modalities.parts.iter().filter(|part| mode.takes(part.role));
            let parameters = taken.clone().fold(0u64, |sum, part| sum.saturating_add(part.parameters));
            Load { mode, parts: taken.map(|part| part.role).collect(), parameters }
        };
        modalities.loads = [LoadMode::ThinkerOnly, LoadMode::TalkerOnly, LoadMode::Full].map(load).into();
    }
}
