//! The model inside this program: a small Llama that writes simple children's stories, so that every command works on a
//! fresh machine with no network. `builtin/README.md` says how it was trained.

use crate::tokenizer::Sidecars;

/// What it is called.
pub const NAME: &str = "builtin";
/// Its `config.json`.
pub const CONFIG: &[u8] = include_bytes!("../builtin/config.json");
/// Its weights, bf16.
pub const WEIGHTS: &[u8] = include_bytes!("../builtin/model.safetensors");
/// Its tokenizer.
pub const TOKENIZER: &[u8] = include_bytes!("../builtin/tokenizer.json");

const TOKENIZER_CONFIG: &[u8] = include_bytes!("../builtin/tokenizer_config.json");
const GENERATION_CONFIG: &[u8] = include_bytes!("../builtin/generation_config.json");

/// The files beside its tokenizer.
pub(crate) fn sidecars() -> Sidecars<'static> {
    Sidecars {
        tokenizer_config: Some(TOKENIZER_CONFIG),
        generation_config: Some(GENERATION_CONFIG),
        config: Some(CONFIG),
        ..Sidecars::default()
    }
}
