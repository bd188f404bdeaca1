//! Storage layouts of sparse autoencoders, as named in reports.

use serde::Serialize;

macro_rules! layouts {
    ($($(#[$doc:meta])* $variant:ident = $name:literal;)*) => {
        /// Storage layout of sparse autoencoders.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, schemars::JsonSchema)]
        #[serde(rename_all = "snake_case")]
        #[schemars(rename = "Layout")]
        pub enum SaeLayout {
            $($(#[$doc])* $variant,)*
        }

        impl SaeLayout {
            /// Name in JSON.
            pub fn name(self) -> &'static str {
                match self { $(SaeLayout::$variant => $name,)* }
            }
        }
    };
}

layouts! {
    /// SAELens: `cfg.json` and `sae_weights.safetensors`.
    Saelens = "saelens";
    /// Gemma Scope: `params.npz`.
    GemmaScope = "gemma_scope";
    /// Gemma Scope 2: `config.json` and `params.safetensors`, or `params_layer_0.safetensors` … of
    /// a cross-layer transcoder or crosscoder.
    GemmaScope2 = "gemma_scope2";
    /// Llama Scope: `hyperparams.json` and `checkpoints/`, or `config.json` and
    /// `sae_weights.safetensors`.
    LlamaScope = "llama_scope";
    /// dictionary_learning: `config.json` and `ae.pt`.
    DictionaryLearning = "dictionary_learning";
    /// sparsify: `cfg.json` and `sae.safetensors`.
    Sparsify = "sparsify";
    /// circuit-tracer, per-layer transcoders: `layer_0.safetensors` and `config.yaml`.
    CircuitTracerPlt = "circuit_tracer_plt";
    /// circuit-tracer, cross-layer transcoders: `W_enc_0.safetensors`, `W_dec_0.safetensors`.
    CircuitTracerClt = "circuit_tracer_clt";
    /// Attention autoencoders: pairs of `NAME.pt` and `NAME_cfg.json`.
    HookZ = "hook_z";
    /// Qwen-Scope: `layer0.sae.pt` …; k and width are in `config.json` or the repository's name.
    QwenScope = "qwen_scope";
    /// A single checkpoint `NAME-SAE-l19.pt` (Goodfire, DeepSeek-R1).
    Goodfire = "goodfire";
    /// Temporal autoencoders: `conf.yaml` and `latest_ckpt.safetensors`.
    Temporal = "temporal";
    /// llama.cpp's control vectors: a GGUF file of steering directions.
    ControlVector = "control_vector";
    /// A release whose directories are named after sites, with unrecognized contents.
    Sites = "sites";
}
