//! Per-family tables from GGUF name stems (`attn_q`) to Hugging Face stems (`self_attn.q_proj`).

/// Pairs of (GGUF stem, Hugging Face stem).
type Stems = &'static [(&'static str, &'static str)];

/// The name tables of a family.
pub(super) struct Family {
    /// Tensors outside the layers.
    global: Stems,
    /// Prefix of the layer index in the checkpoint.
    layer_prefix: &'static str,
    /// Tensors of a layer; the tables are searched in order.
    per_layer: &'static [Stems],
    /// Tensors of one expert, in files that store experts separately.
    per_expert: Stems,
}

const GLOBAL: Stems = &[("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];
const ATTENTION: Stems = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
];
const MLP: Stems = &[("ffn_gate", "mlp.gate_proj"), ("ffn_up", "mlp.up_proj"), ("ffn_down", "mlp.down_proj")];
const MLP_NORM: Stems = &[("ffn_norm", "post_attention_layernorm")];
const SANDWICH_NORMS: Stems = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];
const MIXTRAL: Stems = &[
    ("ffn_gate_inp", "block_sparse_moe.gate"),
    ("ffn_gate_exps", "block_sparse_moe.experts.gate"),
    ("ffn_up_exps", "block_sparse_moe.experts.up"),
    ("ffn_down_exps", "block_sparse_moe.experts.down"),
];
/// Early Mixtral files store experts separately: `blk.0.ffn_gate.7.weight`.
const MIXTRAL_EXPERT: Stems = &[("ffn_gate", "w1"), ("ffn_down", "w2"), ("ffn_up", "w3")];
const QWEN_MOE: Stems = &[
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.experts.gate"),
    ("ffn_up_exps", "mlp.experts.up"),
    ("ffn_down_exps", "mlp.experts.down"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
];

const LLAMA: Family = Family {
    global: GLOBAL,
    layer_prefix: "model.layers",
    per_layer: &[ATTENTION, MLP_NORM, MLP, MIXTRAL],
    per_expert: MIXTRAL_EXPERT,
};
const QWEN: Family = Family {
    global: GLOBAL,
    layer_prefix: "model.layers",
    per_layer: &[ATTENTION, MLP_NORM, MLP, QWEN_MOE],
    per_expert: &[],
};
const GEMMA: Family =
    Family { global: GLOBAL, layer_prefix: "model.layers", per_layer: &[ATTENTION, MLP_NORM, MLP], per_expert: &[] };
const GEMMA_2: Family = Family {
    global: GLOBAL,
    layer_prefix: "model.layers",
    per_layer: &[ATTENTION, SANDWICH_NORMS, MLP],
    per_expert: &[],
};
const PHI_2: Family = Family {
    global: &[("token_embd", "model.embed_tokens"), ("output_norm", "model.final_layernorm"), ("output", "lm_head")],
    layer_prefix: "model.layers",
    per_layer: &[&[
        ("attn_norm", "input_layernorm"),
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("attn_output", "self_attn.dense"),
        ("ffn_up", "mlp.fc1"),
        ("ffn_down", "mlp.fc2"),
    ]],
    per_expert: &[],
};
const PHI_3: Family = Family {
    global: GLOBAL,
    layer_prefix: "model.layers",
    per_layer: &[&[
        ("attn_norm", "input_layernorm"),
        ("attn_qkv", "self_attn.qkv_proj"),
        ("attn_output", "self_attn.o_proj"),
        ("ffn_norm", "post_attention_layernorm"),
        ("ffn_up", "mlp.gate_up_proj"),
        ("ffn_down", "mlp.down_proj"),
    ]],
    per_expert: &[],
};
const GPT_2: Family = Family {
    global: &[
        ("token_embd", "transformer.wte"),
        ("position_embd", "transformer.wpe"),
        ("output_norm", "transformer.ln_f"),
        ("output", "lm_head"),
    ],
    layer_prefix: "transformer.h",
    per_layer: &[&[
        ("attn_norm", "ln_1"),
        ("attn_qkv", "attn.c_attn"),
        ("attn_output", "attn.c_proj"),
        ("ffn_norm", "ln_2"),
        ("ffn_up", "mlp.c_fc"),
        ("ffn_down", "mlp.c_proj"),
    ]],
    per_expert: &[],
};
const GPT_NEOX: Family = Family {
    global: &[
        ("token_embd", "gpt_neox.embed_in"),
        ("output_norm", "gpt_neox.final_layer_norm"),
        ("output", "embed_out"),
    ],
    layer_prefix: "gpt_neox.layers",
    per_layer: &[&[
        ("attn_norm", "input_layernorm"),
        ("attn_qkv", "attention.query_key_value"),
        ("attn_output", "attention.dense"),
        ("ffn_norm", "post_attention_layernorm"),
        ("ffn_up", "mlp.dense_h_to_4h"),
        ("ffn_down", "mlp.dense_4h_to_h"),
    ]],
    per_expert: &[],
};
const BLOOM: Family = Family {
    global: &[
        ("token_embd", "transformer.word_embeddings"),
        ("token_embd_norm", "transformer.word_embeddings_layernorm"),
        ("output_norm", "transformer.ln_f"),
        ("output", "lm_head"),
    ],
    layer_prefix: "transformer.h",
    per_layer: &[&[
        ("attn_norm", "input_layernorm"),
        ("attn_qkv", "self_attention.query_key_value"),
        ("attn_output", "self_attention.dense"),
        ("ffn_norm", "post_attention_layernorm"),
        ("ffn_up", "mlp.dense_h_to_4h"),
        ("ffn_down", "mlp.dense_4h_to_h"),
    ]],
    per_expert: &[],
};

/// The name tables of an architecture.
pub(super) fn family(arch: &str) -> Option<Family> {
    Some(match arch {
        "llama" => LLAMA,
        "qwen2" | "qwen3" | "qwen2moe" | "qwen3moe" => QWEN,
        "gemma" => GEMMA,
        "gemma2" | "gemma3" => GEMMA_2,
        "phi2" => PHI_2,
        "phi3" => PHI_3,
        "gpt2" => GPT_2,
        "gptneox" => GPT_NEOX,
        "bloom" => BLOOM,
        _ => return None,
    })
}

impl Family {
    /// The checkpoint name of a GGUF tensor; `None` if this family has no such tensor or layer.
    pub(super) fn name(&self, stored: &str, layers: usize) -> Option<String> {
        let (stem, ending) = stored.rsplit_once('.')?;
        if !matches!(ending, "weight" | "bias") {
            return None;
        }
        let find = |stems: Stems, stem: &str| stems.iter().find(|(from, _)| *from == stem).map(|(_, to)| *to);
        let Some(rest) = stem.strip_prefix("blk.") else {
            return Some(format!("{}.{ending}", find(self.global, stem)?));
        };
        let (layer, stem) = rest.split_once('.')?;
        // Digits only, no sign or leading zeros, so that no two tensors map to the same name.
        let number: usize =
            layer.parse().ok().filter(|number: &usize| *number < layers && number.to_string() == layer)?;
        let prefix = self.layer_prefix;
        if let Some(to) = self.per_layer.iter().find_map(|stems| find(stems, stem)) {
            return Some(format!("{prefix}.{number}.{to}.{ending}"));
        }
        let (stem, expert) = stem.split_once('.')?;
        let expert: usize = expert.parse().ok().filter(|number: &usize| number.to_string() == expert)?;
        let to = find(self.per_expert, stem)?;
        Some(format!("{prefix}.{number}.block_sparse_moe.experts.{expert}.{to}.{ending}"))
    }
}
