//! The families' tables of names: from stems of the file (`attn_q`) to stems of the checkpoint (`self_attn.q_proj`).

/// Stems of names in the file and in the checkpoint.
type Stems = &'static [(&'static str, &'static str)];

/// A family's names.
pub(super) struct Family {
    /// What is outside the layers.
    whole: Stems,
    /// What comes before the layer's number in the checkpoint.
    layers: &'static str,
    /// What is inside a layer; a later table adds to an earlier one.
    inside: &'static [Stems],
    /// What a single expert has in files that hold each by itself.
    expert: Stems,
}

const WHOLE: Stems = &[("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];
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
/// Early Mixtral files hold each expert by itself: `blk.0.ffn_gate.7.weight`.
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
    whole: WHOLE,
    layers: "model.layers",
    inside: &[ATTENTION, MLP_NORM, MLP, MIXTRAL],
    expert: MIXTRAL_EXPERT,
};
const QWEN: Family =
    Family { whole: WHOLE, layers: "model.layers", inside: &[ATTENTION, MLP_NORM, MLP, QWEN_MOE], expert: &[] };
const GEMMA: Family = Family { whole: WHOLE, layers: "model.layers", inside: &[ATTENTION, MLP_NORM, MLP], expert: &[] };
const GEMMA_2: Family =
    Family { whole: WHOLE, layers: "model.layers", inside: &[ATTENTION, SANDWICH_NORMS, MLP], expert: &[] };
const PHI_2: Family = Family {
    whole: &[("token_embd", "model.embed_tokens"), ("output_norm", "model.final_layernorm"), ("output", "lm_head")],
    layers: "model.layers",
    inside: &[&[
        ("attn_norm", "input_layernorm"),
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("attn_output", "self_attn.dense"),
        ("ffn_up", "mlp.fc1"),
        ("ffn_down", "mlp.fc2"),
    ]],
    expert: &[],
};
const PHI_3: Family = Family {
    whole: WHOLE,
    layers: "model.layers",
    inside: &[&[
        ("attn_norm", "input_layernorm"),
        ("attn_qkv", "self_attn.qkv_proj"),
        ("attn_output", "self_attn.o_proj"),
        ("ffn_norm", "post_attention_layernorm"),
        ("ffn_up", "mlp.gate_up_proj"),
        ("ffn_down", "mlp.down_proj"),
    ]],
    expert: &[],
};
const GPT_2: Family = Family {
    whole: &[
        ("token_embd", "transformer.wte"),
        ("position_embd", "transformer.wpe"),
        ("output_norm", "transformer.ln_f"),
        ("output", "lm_head"),
    ],
    layers: "transformer.h",
    inside: &[&[
        ("attn_norm", "ln_1"),
        ("attn_qkv", "attn.c_attn"),
        ("attn_output", "attn.c_proj"),
        ("ffn_norm", "ln_2"),
        ("ffn_up", "mlp.c_fc"),
        ("ffn_down", "mlp.c_proj"),
    ]],
    expert: &[],
};
const GPT_NEOX: Family = Family {
    whole: &[
        ("token_embd", "gpt_neox.embed_in"),
        ("output_norm", "gpt_neox.final_layer_norm"),
        ("output", "embed_out"),
    ],
    layers: "gpt_neox.layers",
    inside: &[&[
        ("attn_norm", "input_layernorm"),
        ("attn_qkv", "attention.query_key_value"),
        ("attn_output", "attention.dense"),
        ("ffn_norm", "post_attention_layernorm"),
        ("ffn_up", "mlp.dense_h_to_4h"),
        ("ffn_down", "mlp.dense_4h_to_h"),
    ]],
    expert: &[],
};
const BLOOM: Family = Family {
    whole: &[
        ("token_embd", "transformer.word_embeddings"),
        ("token_embd_norm", "transformer.word_embeddings_layernorm"),
        ("output_norm", "transformer.ln_f"),
        ("output", "lm_head"),
    ],
    layers: "transformer.h",
    inside: &[&[
        ("attn_norm", "input_layernorm"),
        ("attn_qkv", "self_attention.query_key_value"),
        ("attn_output", "self_attention.dense"),
        ("ffn_norm", "post_attention_layernorm"),
        ("ffn_up", "mlp.dense_h_to_4h"),
        ("ffn_down", "mlp.dense_4h_to_h"),
    ]],
    expert: &[],
};

/// The names that the tensors of an architecture have.
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
    /// The checkpoint's name for a tensor of the file; `None` if this family has no such tensor, or not so many layers.
    pub(super) fn name(&self, stored: &str, layers: usize) -> Option<String> {
        let (stem, ending) = stored.rsplit_once('.')?;
        if !matches!(ending, "weight" | "bias") {
            return None;
        }
        let find = |stems: Stems, stem: &str| stems.iter().find(|(from, _)| *from == stem).map(|(_, to)| *to);
        let Some(rest) = stem.strip_prefix("blk.") else {
            return Some(format!("{}.{ending}", find(self.whole, stem)?));
        };
        let (layer, stem) = rest.split_once('.')?;
        // Digits only, without a sign or leading zeros: one spelling a layer, so that no two tensors get one name.
        let number: usize =
            layer.parse().ok().filter(|number: &usize| *number < layers && number.to_string() == layer)?;
        let prefix = self.layers;
        if let Some(to) = self.inside.iter().find_map(|stems| find(stems, stem)) {
            return Some(format!("{prefix}.{number}.{to}.{ending}"));
        }
        let (stem, expert) = stem.split_once('.')?;
        let expert: usize = expert.parse().ok().filter(|number: &usize| number.to_string() == expert)?;
        let to = find(self.expert, stem)?;
        Some(format!("{prefix}.{number}.block_sparse_moe.experts.{expert}.{to}.{ending}"))
    }
}
