//! The built-in model, embedded in the binary: a small Llama that writes simple children's stories,
//! so that every command works without a network. `builtin/README.md` describes its training.

use crate::tokenizer::Sidecars;

/// Its name on the command line.
pub const NAME: &str = "builtin";
/// Its `config.json`.
pub const CONFIG: &[u8] = include_bytes!("../builtin/config.json");
/// Its weights, bf16.
pub const WEIGHTS: &[u8] = include_bytes!("../builtin/model.safetensors");
/// Its `tokenizer.json`.
pub const TOKENIZER: &[u8] = include_bytes!("../builtin/tokenizer.json");

const TOKENIZER_CONFIG: &[u8] = include_bytes!("../builtin/tokenizer_config.json");
const GENERATION_CONFIG: &[u8] = include_bytes!("../builtin/generation_config.json");

/// The other files that the tokenizer reads.
pub(crate) fn sidecars() -> Sidecars<'static> {
    Sidecars {
        tokenizer_config: Some(TOKENIZER_CONFIG),
        generation_config: Some(GENERATION_CONFIG),
        config: Some(CONFIG),
        ..Sidecars::default()
    }
}
