"""Other sizes for every type: width 48, 6 heads, 3 KV heads, 4 layers, 110 tokens, top 3 of 5 experts.

`generate.py OUT fresh` generates one case of each type with these sizes and other weights. The
tests must pass on them, too.
"""
SIZES = dict(
    vocab_size=110, hidden_size=48, intermediate_size=56, num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=3,
    n_embd=48, n_layer=4, n_head=6, n_inner=56, d_model=48, n_layers=4, n_heads=6, ffn_dim=56, word_embed_proj_dim=48,
    attention_heads=6, num_layers=4, num_heads=6, dff=56, decoder_layers=4, decoder_attention_heads=6, decoder_ffn_dim=56,
    encoder_layers=4, encoder_attention_heads=6, num_local_experts=5, num_experts=5, n_routed_experts=5, moe_num_experts=5,
    num_experts_per_tok=3, moe_k=3, moe_topk=3, num_kv_heads=3, ffn_hidden_size=56, lru_width=48,
    mamba_n_heads=6, mamba_d_ssm=96, mamba_num_heads=6, linear_num_key_heads=3, linear_num_value_heads=6, linear_num_heads=6,
)
PER_LAYER = ("layer_types", "no_rope_layers", "mlp_layer_types", "layer_rope_theta", "block_types", "num_attention_heads_per_layer", "layers_block_type")

# Exceptions by type.
FRESH = {
    "codegen": dict(n_head=4), "phimoe": dict(num_experts_per_tok=2),  # its routing always selects two
    "diffllama": dict(num_key_value_heads=2),
    "mamba2": dict(num_heads=12),
    "falcon_h1": dict(mamba_d_ssm=48),
    "zamba2": dict(n_mamba_heads=6, num_key_value_heads=6),
    "llama4_text": dict(num_experts_per_tok=1),
    "gpt_neo": dict(attention_types=[[["global", "local"], 2]]),
    "laguna": dict(num_attention_heads_per_layer=[6, 9, 6, 3]),
    "dbrx": dict(attn_config=dict(kv_n_heads=3, clip_qkv=1.0, rope_theta=500.0), ffn_config=dict(ffn_hidden_size=24, moe_num_experts=5, moe_top_k=3)),
}


def grown(model_type, values):
    own, out = FRESH.get(model_type, {}), {}
    for key, value in values.items():
        if key in own: value = own[key]
        elif key == "vision_config": pass
        elif isinstance(value, dict) and key.endswith("_config"): value = grown(model_type, value)
        elif value == "drop" or value is None: pass
        elif key == "num_key_value_heads" and value in (1, 4): value = 1 if value == 1 else 6  # MQA stays MQA, MHA stays MHA
        elif key in ("intermediate_size", "num_experts_per_tok") and values[key] != {"intermediate_size": 48, "num_experts_per_tok": 2}[key]: pass
        elif key in PER_LAYER and len(value) == 3: value = [*value, value[1]]
        elif key in SIZES: value = SIZES[key]
        out[key] = value
    return out
