"""More cases: the other decoder types of transformers, and switches that change the computation.

Same format as cases.py. The default case of a type already has the features of its real checkpoints
(multipliers other than 1, alternating layer kinds, routers with a correction); each variant changes
one more switch.
"""
from cases import ALTERNATING, CASES, Case, rope

TYPES = """
ministral ministral3 gemma vaultgemma phi phi3 gpt_neo gpt_neox_japanese gptj codegen gpt_bigcode falcon mpt stablelm
starcoder2 olmo olmo2 olmo3 cohere cohere2 granite granite_swa glm glm4 nemotron persimmon xglm biogpt openai-gpt ctrl
apertus arcee exaone4 helium hunyuan_v1_dense hyperclovax jais2 seed_oss smollm3 ernie4_5 minicpm3 modernbert-decoder
bitnet diffllama doge cwm nanochat youtu mellum
qwen2_moe qwen3_moe olmoe phimoe granitemoe granitemoeshared granitemoe_swa deepseek_v2 deepseek_v3 glm4_moe
glm4_moe_lite dbrx jetmoe gpt_oss llama4_text dots1 ernie4_5_moe hunyuan_v1_moe minimax minimax_m2 flex_olmo afmoe
exaone_moe solar_open aria_text cohere2_moe hy_v3 laguna mimo_v2_flash axk1
mamba mamba2 falcon_mamba rwkv recurrent_gemma jamba bamba falcon_h1 granitemoehybrid nemotron_h lfm2 lfm2_moe qwen3_next
qwen3_5_text qwen3_5_moe_text olmo_hybrid kimi_linear zamba2
bart mbart pegasus blenderbot marian trocr whisper bert roberta electra xlm-roberta camembert
""".split()

# Cases that also record their sublayers (`full`).
FULL = """
arcee-bias cohere-bias gemma-bias glm-full-rotary glm-unbiased gptj-full-rotary granite-bias helium-bias olmo-bias olmo2-bias
phi3-partial phi3-sliding qwen3_moe-normalised qwen3_moe-step qwen3_moe-dense-layers seed_oss-out-bias smollm3-sliding stablelm-bias
stablelm-parallel starcoder2-sliding starcoder2-unbiased cohere2-bias ernie4_5-bias exaone4-full glm4-unbiased gpt_bigcode-mha
gpt_bigcode-unscaled hyperclovax-default-scale hyperclovax-no-post-norm jais2-unbiased nemotron-bias olmo3-yarn olmoe-normalised
rwkv-rescaled rwkv-wide axk1-groups granitemoehybrid-dense laguna-softcap
""".split()

MORE_TINY = dict(
    max_seq_len=64, max_sequence_length=64, dff=48, intermediate_multiple_size=2,
    kv_lora_rank=16, q_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=12,
    n_routed_experts=4, moe_intermediate_size=24, moe_num_experts=4, moe_k=2, moe_topk=2, shared_expert_intermediate_size=24,
    n_group=1, topk_group=1, first_k_dense_replace=1, n_shared_experts=1, num_shared_experts=1, moe_num_shared_experts=1,
    shared_intermediate_size=24, routed_scaling_factor=1.7, route_scale=1.7, moe_routed_scaling_factor=1.7, router_scaling_factor=1.7,
    rotary_dim=4, decoder_layers=3, decoder_attention_heads=4, decoder_ffn_dim=48, decoder_start_token_id=1,
    encoder_layers=3, encoder_attention_heads=4, encoder_ffn_dim=16, max_target_positions=64, max_source_positions=8, num_mel_bins=4,
    mamba_d_state=8, mamba_n_heads=4, mamba_d_head=16, mamba_n_groups=1, mamba_chunk_size=4, mamba_d_ssm=64, mamba_dt_rank=4,
    state_size=8, time_step_rank=4, chunk_size=4, use_mamba_kernels=False,
    linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8,
    conv_L_cache=3, block_auto_adjust_ff_dim=False, query_pre_attn_scalar=12,
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, kv_channels=8, type_vocab_size=2,
    embedding_multiplier=3.0, residual_multiplier=0.5, attention_multiplier=0.2, logits_scaling=2.0,
)
MLA = dict(head_dim=4, num_key_value_heads=4)
LINEAR = dict(layer_types=["linear_attention", "full_attention", "linear_attention"])
QWEN_HYBRID = dict(**LINEAR, rope_parameters=dict(rope_type="default", rope_theta=500.0, partial_rotary_factor=0.5))
TWO_ROPES = dict(rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=2000.0), sliding_attention=dict(rope_type="default", rope_theta=50.0)))
DECODER = dict(is_decoder=True, max_position_embeddings=64)
ROBERTA = dict(is_decoder=True, max_position_embeddings=66, pad_token_id=1, bos_token_id=0)
EXPERTS = dict(intermediate_size=24)
LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
YARN = dict(factor=8.0, beta_fast=4.0, beta_slow=1.0, original_max_position_embeddings=16)
CAPS = dict(attn_logit_softcapping=5.0, final_logit_softcapping=3.0)

MORE_PER_TYPE = {
    # dense
    "ministral": ALTERNATING,
    "ministral3": rope("yarn", **{**YARN, "original_max_position_embeddings": 8}, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1),
    "vaultgemma": dict(**ALTERNATING, **CAPS),
    "phi": dict(partial_rotary_factor=0.5), "persimmon": dict(partial_rotary_factor=0.5), "stablelm": dict(partial_rotary_factor=0.5),
    "phi3": dict(original_max_position_embeddings=64),
    "gpt_neo": dict(attention_types=[[["global", "local"], 1], [["global"], 1]], window_size=4),
    "gpt_neox_japanese": rope("default", partial_rotary_factor=0.5),
    "falcon": dict(new_decoder_architecture=True, num_kv_heads=2, ffn_hidden_size=48),
    "mpt": dict(expansion_ratio=2),
    "olmo3": dict(**ALTERNATING, **TWO_ROPES),
    "cohere": dict(logit_scale=0.5), "cohere2": dict(**ALTERNATING, logit_scale=0.5),
    "granite_swa": dict(**ALTERNATING, layer_rope_theta=[500.0, 0.0, 50.0]),
    "apertus": rope("llama3", **LLAMA3), "cwm": dict(**ALTERNATING, **rope("llama3", **LLAMA3)),
    "exaone4": ALTERNATING,
    "smollm3": dict(no_rope_layers=[1, 0, 1], layer_types=["full_attention"] * 3),
    "minicpm3": dict(**MLA, scale_emb=3, scale_depth=1.4, dim_model_base=16, v_head_dim=8),
    "youtu": dict(**MLA, pad_token_id=None),  # transformers zeroes the pad row of this type when loading
    "modernbert-decoder": dict(layer_types=ALTERNATING["layer_types"], local_attention=8, **TWO_ROPES),
    "nanochat": dict(final_logit_softcapping=3.0),
    "doge": dict(keep_window_size=64),
    "mellum": dict(**ALTERNATING, **TWO_ROPES, mlp_layer_types=["sparse", "dense", "sparse"]),
    # mixtures of experts
    **{k: EXPERTS for k in ("olmoe", "phimoe", "granitemoe", "granitemoeshared", "jetmoe", "flex_olmo", "hunyuan_v1_moe", "aria_text")},
    "granitemoe_swa": dict(**EXPERTS, **ALTERNATING, layer_rope_theta=[500.0, 0.0, 50.0]),
    "deepseek_v2": MLA, "deepseek_v3": MLA, "axk1": MLA,
    "glm4_moe_lite": dict(**MLA, mlp_layer_types=["dense", "sparse", "sparse"]),
    "dbrx": dict(attn_config=dict(kv_n_heads=2, clip_qkv=1.0, rope_theta=500.0), ffn_config=dict(ffn_hidden_size=24, moe_num_experts=4, moe_top_k=2)),
    "gpt_oss": dict(**EXPERTS, **ALTERNATING, **rope("yarn", **YARN, truncate=False)),
    "llama4_text": dict(intermediate_size=24, no_rope_layers=[1, 0, 1], attention_chunk_size=4, layer_types=["chunked_attention", "full_attention", "chunked_attention"],
                        moe_layers=[1, 2], interleave_moe_layer_step=2, intermediate_size_mlp=48, floor_scale=4, num_experts_per_tok=1),
    "dots1": dict(layer_types=["sliding_attention", "full_attention", "full_attention"], sliding_window=4),
    "minimax": dict(**EXPERTS, **LINEAR, block_size=4, full_attn_alpha_factor=1.3, full_attn_beta_factor=0.8, linear_attn_alpha_factor=1.2,
                    linear_attn_beta_factor=0.7, mlp_alpha_factor=1.1, mlp_beta_factor=0.9),
    "minimax_m2": dict(**EXPERTS, **rope("default", partial_rotary_factor=0.5)),
    "afmoe": ALTERNATING,
    "exaone_moe": ALTERNATING,
    "cohere2_moe": dict(**ALTERNATING, **EXPERTS, logit_scale=0.5, mlp_layer_types=["dense", "sparse", "sparse"], prefix_dense_intermediate_size=48),
    "laguna": dict(**ALTERNATING, num_attention_heads_per_layer=[4, 6, 4], rope_parameters=dict(
        full_attention=dict(rope_type="default", rope_theta=2000.0, partial_rotary_factor=0.5),
        sliding_attention=dict(rope_type="default", rope_theta=50.0, partial_rotary_factor=1.0))),
    "mimo_v2_flash": dict(**ALTERNATING, head_dim=12, v_head_dim=8, num_key_value_heads=1, rope_parameters=dict(
        full_attention=dict(rope_type="default", rope_theta=2000.0, partial_rotary_factor=0.334),
        sliding_attention=dict(rope_type="default", rope_theta=50.0, partial_rotary_factor=0.334))),
    # recurrent and hybrid
    "mamba2": dict(num_heads=8, head_dim=8, expand=2, n_groups=2),
    "rwkv": dict(rescale_every=6),
    "recurrent_gemma": dict(block_types=["recurrent", "attention", "recurrent"], attention_window_size=4, lru_width=32, logits_soft_cap=3.0),
    "jamba": dict(attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=0, intermediate_size=24),
    "bamba": dict(attn_layer_indices=[1], mamba_n_groups=2),
    "falcon_h1": dict(mamba_d_ssm=32, mamba_d_head=8, lm_head_multiplier=0.6, mlp_multipliers=[0.8, 1.3], key_multiplier=0.7, attention_out_multiplier=0.9,
                      attention_in_multiplier=1.2, ssm_multipliers=[0.8, 1.2, 0.9, 1.1, 0.7], ssm_in_multiplier=1.3, ssm_out_multiplier=0.6),
    "granitemoehybrid": dict(**EXPERTS, layer_types=["mamba", "attention", "mamba"], mamba_d_head=8, mamba_expand=1),
    "nemotron_h": dict(layer_types=["linear_attention", "moe", "full_attention", "mlp"], num_hidden_layers="drop", mamba_num_heads=4, mamba_head_dim=8, ssm_state_size=8,
                       n_groups=2, expand=1, moe_shared_expert_intermediate_size=24, intermediate_size=48),
    "lfm2": dict(layer_types=["conv", "full_attention", "conv"]),
    "lfm2_moe": dict(layer_types=["conv", "full_attention", "conv"], num_dense_layers=1),
    **{k: QWEN_HYBRID for k in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")},
    "olmo_hybrid": LINEAR,
    "kimi_linear": dict(**MLA, **LINEAR, q_lora_rank=None, linear_head_dim=8, linear_num_heads=4, mlp_layer_types=["dense", "sparse", "sparse"]),
    "zamba2": dict(layers_block_type=["linear_attention", "hybrid", "hybrid"], n_mamba_heads=8, adapter_rank=4, num_key_value_heads=4, mamba_expand=1),
    # decoders of encoder-decoder models, and encoder families as decoders
    "bert": DECODER, "electra": dict(**DECODER, embedding_size=20), "roberta": ROBERTA, "xlm-roberta": ROBERTA, "camembert": ROBERTA,
}

# type -> {switch: config overrides}; the case is named type-switch
LONG = dict(short_factor=[1.0, 1.1, 1.3, 1.5], long_factor=[1.2, 2.0, 3.0, 4.0])
VARIANTS = {
    "llama": {
        "rope-dynamic": dict(max_position_embeddings=10, **rope("dynamic", factor=2.0)),
        "rope-longrope": rope("longrope", **LONG, original_max_position_embeddings=8, factor=8.0),
        "rope-longrope-short": rope("longrope", **LONG, original_max_position_embeddings=32, factor=2.0),
        "rope-yarn-mscale": rope("yarn", **YARN, mscale=0.7, mscale_all_dim=0.4),
        "rope-yarn-factor": rope("yarn", **YARN, attention_factor=0.8),
        "mha": dict(num_key_value_heads=4), "gelu": dict(hidden_act="gelu"), "eps": dict(rms_norm_eps=0.1),
        "mlp-bias": dict(mlp_bias=True), "attention-bias": dict(attention_bias=True),
    },
    "mistral": {"headdim": dict(head_dim=12)},
    "qwen2": {"tied": dict(tie_word_embeddings=True)},
    "qwen3": {"bias": dict(attention_bias=True), "window": dict(use_sliding_window=True, sliding_window=4, max_window_layers=1), "tied": dict(tie_word_embeddings=True)},
    "gemma2": {"uncapped": dict(attn_logit_softcapping=None, final_logit_softcapping=None), "bias": dict(attention_bias=True)},
    "gemma3_text": {"caps": CAPS, "bias": dict(attention_bias=True)},
    "gemma": {"bias": dict(attention_bias=True)},
    "ministral3": {"sliding": dict(sliding_window=4)},
    "phi": {"qk-norm": dict(qk_layernorm=True)},
    "phi3": {
        "sliding": dict(sliding_window=4), "partial": dict(partial_rotary_factor=0.5),
        "longrope": dict(original_max_position_embeddings=8, **rope("longrope", **LONG)),
        "longrope-short": dict(original_max_position_embeddings=32, **rope("longrope", **LONG)),
    },
    "gpt2": {"layer-scaled": dict(scale_attn_by_inverse_layer_idx=True), "unscaled": dict(scale_attn_weights=False), "relu": dict(activation_function="relu"),
             "upcast": dict(reorder_and_upcast_attn=True, scale_attn_by_inverse_layer_idx=True), "untied": dict(tie_word_embeddings=False)},
    "gpt_neox": {"unbiased": dict(attention_bias=False), "full-rotary": dict(rotary_pct=1.0), "gelu-tanh": dict(hidden_act="gelu_new"),
                 "rope-linear": rope("linear", factor=4.0, partial_rotary_factor=0.5)},
    "gptj": {"full-rotary": dict(rotary_dim=8)},
    "gpt_bigcode": {"mha": dict(multi_query=False), "unscaled": dict(scale_attn_weights=False)},
    "opt": {"unbiased": dict(enable_bias=False), "plain-norm": dict(layer_norm_elementwise_affine=False), "gelu": dict(activation_function="gelu"),
            "no-final-norm": dict(_remove_final_layer_norm=True), "proj-prenorm": dict(word_embed_proj_dim=20), "untied": dict(tie_word_embeddings=False)},
    "bloom": {"post-norm-residual": dict(apply_residual_connection_post_layernorm=True), "6heads": dict(hidden_size=48, n_head=6)},
    "falcon": {
        "7b": dict(new_decoder_architecture=False, multi_query=True, parallel_attn=True, num_kv_heads="drop"),
        "rw": dict(new_decoder_architecture=False, multi_query=False, parallel_attn=False, alibi=True, bias=True, num_kv_heads="drop"),
        "alibi": dict(new_decoder_architecture=False, multi_query=True, parallel_attn=True, alibi=True, num_kv_heads="drop"),
        "serial": dict(new_decoder_architecture=False, multi_query=True, parallel_attn=False, num_kv_heads="drop"),
        "11b": dict(num_ln_in_parallel_attn=1), "bias": dict(bias=True),
    },
    "mpt": {"clip": dict(attn_config=dict(clip_qkv=0.7)), "scale": dict(attn_config=dict(softmax_scale=0.9)), "6heads": dict(d_model=48, n_heads=6)},
    "stablelm": {"bias": dict(use_qkv_bias=True), "qk-norm": dict(qk_layernorm=True), "parallel": dict(use_parallel_residual=True)},
    "starcoder2": {"sliding": dict(sliding_window=4), "unbiased": dict(use_bias=False), "untied": dict(tie_word_embeddings=False)},
    "olmo": {"clip": dict(clip_qkv=0.7), "bias": dict(attention_bias=True)},
    "olmo2": {"bias": dict(attention_bias=True)},
    "olmo3": {"yarn": dict(rope_parameters={**TWO_ROPES["rope_parameters"], "full_attention": dict(rope_type="yarn", rope_theta=2000.0, **YARN)})},
    "cohere": {"qk-norm": dict(use_qk_norm=True), "bias": dict(attention_bias=True)},
    "cohere2": {"bias": dict(attention_bias=True)},
    "granite": {"bias": dict(attention_bias=True, mlp_bias=True), "tied": dict(tie_word_embeddings=True)},
    "glm": {"unbiased": dict(attention_bias=False), "full-rotary": dict(partial_rotary_factor=1.0)},
    "glm4": {"unbiased": dict(attention_bias=False)},
    "nemotron": {"bias": dict(attention_bias=True, mlp_bias=True)},
    "persimmon": {"no-qk-norm": dict(qk_layernorm=False)},
    "xglm": {"unscaled": dict(scale_embedding=False)},
    "biogpt": {"unscaled": dict(scale_embedding=False)},
    "openai-gpt": {"silu": dict(afn="silu"), "relu": dict(afn="relu")},
    "arcee": {"bias": dict(attention_bias=True, mlp_bias=True)},
    "exaone4": {"full": dict(sliding_window=None, layer_types=["full_attention"] * 3)},
    "helium": {"bias": dict(attention_bias=True, mlp_bias=True)},
    "hunyuan_v1_dense": {"alpha": rope("dynamic", alpha=4.0, factor=1.0), "bias": dict(attention_bias=True)},
    "hyperclovax": {"no-post-norm": dict(use_post_norm=False), "default-scale": dict(attention_multiplier=None)},
    "jais2": {"unbiased": dict(attention_bias=False, mlp_bias=False)},
    "seed_oss": {"out-bias": dict(attention_out_bias=True, mlp_bias=True), "unbiased": dict(attention_bias=False)},
    "smollm3": {"sliding": dict(use_sliding_window=True, **ALTERNATING), "untied": dict(tie_word_embeddings=False)},
    "ernie4_5": {"bias": dict(use_bias=True)},
    "minicpm3": {"bias": dict(attention_bias=True, mlp_bias=True), "longrope": rope("longrope", short_factor=[1.0, 1.3], long_factor=[1.2, 3.0], original_max_position_embeddings=8)},
    "modernbert-decoder": {"bias": dict(attention_bias=True, mlp_bias=True, norm_bias=True), "no-head-bias": dict(decoder_bias=False)},
    "doge": {"masked": dict(keep_window_size=4), "bias": dict(attention_bias=True, mlp_bias=True), "sliding": dict(sliding_window=4),
             "moe": dict(is_moe=True, num_experts=16, num_experts_per_tok=4)},
    "diffllama": {"bias": dict(attention_bias=True)}, "bitnet": {"bias": dict(attention_bias=True)},
    "nanochat": {"bias": dict(attention_bias=True)}, "apertus": {"bias": dict(attention_bias=True)},
    "youtu": {"not-interleaved": dict(rope_interleave=False), "bias": dict(attention_bias=True), "no-q-lora": dict(q_lora_rank=None)},
    "mellum": {"not-normalised": dict(norm_topk_prob=False)},
    "mixtral": {"sliding": dict(sliding_window=4)},
    "qwen2_moe": {"normalised": dict(norm_topk_prob=True), "dense-layers": dict(mlp_only_layers=[1]), "step": dict(decoder_sparse_step=2),
                  "unbiased": dict(qkv_bias=False), "window": dict(use_sliding_window=True, sliding_window=4, max_window_layers=1)},
    "qwen3_moe": {"normalised": dict(norm_topk_prob=True), "dense-layers": dict(mlp_only_layers=[1]), "step": dict(decoder_sparse_step=2),
                  "bias": dict(attention_bias=True), "window": dict(use_sliding_window=True, sliding_window=4)},
    "olmoe": {"normalised": dict(norm_topk_prob=True), "clip": dict(clip_qkv=0.7)},
    "phimoe": {"bias": dict(attention_bias=True, lm_head_bias=True), "sliding": dict(sliding_window=4),
               "longrope": rope("longrope", **LONG, original_max_position_embeddings=8, short_mscale=1.2, long_mscale=1.3)},
    "granitemoeshared": {"unshared": dict(shared_intermediate_size=0)},
    "granitemoe_swa": {"unshared": dict(shared_intermediate_size=0), "one-rope": dict(layer_rope_theta=None)},
    "granite_swa": {"one-rope": dict(layer_rope_theta=None), "bias": dict(attention_bias=True, mlp_bias=True)},
    "deepseek_v2": {"no-q-lora": dict(q_lora_rank=None), "groups": dict(topk_method="group_limited_greedy", n_routed_experts=6, n_group=3, topk_group=2),
                    "yarn": rope("yarn", **YARN, mscale=0.7, mscale_all_dim=0.7), "bias": dict(attention_bias=True)},
    "deepseek_v3": {"no-q-lora": dict(q_lora_rank=None), "groups": dict(n_routed_experts=6, n_group=3, topk_group=2), "not-normalised": dict(norm_topk_prob=False),
                    "yarn": rope("yarn", **YARN, mscale=1.0, mscale_all_dim=0.7), "not-interleaved": dict(rope_interleave=False), "bias": dict(attention_bias=True)},
    "glm4_moe": {"qk-norm": dict(use_qk_norm=True), "bias": dict(attention_bias=True), "groups": dict(n_routed_experts=6, n_group=3, topk_group=2), "not-normalised": dict(norm_topk_prob=False)},
    "glm4_moe_lite": {"not-interleaved": dict(rope_interleave=False), "no-q-lora": dict(q_lora_rank=None)},
    "axk1": {"groups": dict(n_routed_experts=6, n_group=3, topk_group=2), "yarn": rope("yarn", **YARN, mscale=1.0, mscale_all_dim=0.7)},

    "gpt_oss": {"plain-rope": rope("default"), "unbiased": dict(attention_bias=False)},
    "llama4_text": {"no-qk-norm": dict(use_qk_norm=False), "untempered": dict(attn_temperature_tuning=False), "top2": dict(num_experts_per_tok=2), "bias": dict(attention_bias=True)},
    "dots1": {"normalised": dict(norm_topk_prob=True), "groups": dict(n_routed_experts=6, n_group=3, topk_group=2)},
    "ernie4_5_moe": {"bias": dict(use_bias=True), "interval": dict(moe_layer_start_index=0, moe_layer_interval=2)},
    "hunyuan_v1_moe": {"alpha": rope("dynamic", alpha=4.0, factor=1.0)},
    "afmoe": {"mup": dict(mup_enabled=True), "bias": dict(attention_bias=True)},
    "exaone_moe": {"not-normalised": dict(norm_topk_prob=False), "groups": dict(num_experts=6, n_group=3, topk_group=2)},
    "solar_open": {"groups": dict(n_routed_experts=6, n_group=3, topk_group=2), "bias": dict(attention_bias=True)},
    "aria_text": {"bias": dict(attention_bias=True, mlp_bias=True)},
    "cohere2_moe": {"sigmoid": dict(expert_selection_fn="sigmoid"), "unshared": dict(num_shared_experts=0), "shared-sum": dict(shared_expert_combination_strategy="sum"),
                    "sigmoid-raw": dict(expert_selection_fn="sigmoid", norm_topk_prob=False), "rms": dict(rms_norm_eps=1e-5)},
    "hy_v3": {"bias": dict(attention_bias=True, mlp_bias=True)},
    "laguna": {"softcap": dict(moe_router_logit_softcapping=2.0), "per-element": dict(gating="per-element"), "bias": dict(attention_bias=True)},
    "mimo_v2_flash": {"not-normalised": dict(norm_topk_prob=False), "bias": dict(attention_bias=True), "unscaled": dict(attention_value_scale=None)},
    "minimax": {"unit-factors": {k: 1 for k in ("full_attn_alpha_factor", "full_attn_beta_factor", "linear_attn_alpha_factor", "linear_attn_beta_factor", "mlp_alpha_factor", "mlp_beta_factor")}},
    "mamba": {"bias": dict(use_bias=True), "no-conv-bias": dict(use_conv_bias=False)},
    "mamba2": {"bias": dict(use_bias=True), "no-conv-bias": dict(use_conv_bias=False), "clamped": dict(time_step_limit=(0.01, 0.05))},
    "falcon_mamba": {"bias": dict(use_bias=True)},
    "rwkv": {"rescaled": dict(rescale_every=2), "wide": dict(attention_hidden_size=48)},
    "recurrent_gemma": {"bias": dict(attention_bias=True), "wide": dict(lru_width=48)},
    "jamba": {"no-conv-bias": dict(mamba_conv_bias=False, mamba_proj_bias=True), "dense": dict(num_experts=1)},
    "bamba": {"bias": dict(attention_bias=True, mlp_bias=True, mamba_proj_bias=True)},
    "falcon_h1": {"rms": dict(mamba_rms_norm=True), "rms-after": dict(mamba_rms_norm=True, mamba_norm_before_gate=False), "bias": dict(attention_bias=True, mlp_bias=True, mamba_proj_bias=True, projectors_bias=True)},
    "granitemoehybrid": {"rope": dict(position_embedding_type="rope"), "dense": dict(num_local_experts=0), "bias": dict(attention_bias=True, mamba_proj_bias=True)},
    "nemotron_h": {"latent": dict(moe_latent_size=16), "bias": dict(attention_bias=True, mlp_bias=True, mamba_proj_bias=True, use_bias=True), "groups": dict(n_routed_experts=6, n_group=3, topk_group=2)},
    "lfm2": {"bias": dict(conv_bias=True), "adjusted": dict(block_auto_adjust_ff_dim=True, block_multiple_of=8, block_ffn_dim_multiplier=2.0)},
    "lfm2_moe": {"bias": dict(conv_bias=True), "no-expert-bias": dict(use_expert_bias=False), "not-normalised": dict(norm_topk_prob=False)},
    "qwen3_next": {"dense-layers": dict(mlp_only_layers=[1]), "not-normalised": dict(norm_topk_prob=False), "bias": dict(attention_bias=True)},
    "qwen3_5_text": {"bias": dict(attention_bias=True)},
    "olmo_hybrid": {"no-neg": dict(linear_allow_neg_eigval=False), "bias": dict(attention_bias=True)},
    "kimi_linear": {"q-lora": dict(q_lora_rank=16), "not-normalised": dict(norm_topk_prob=False)},
    "zamba2": {"rope": dict(use_mem_rope=True), "adapter": dict(use_shared_attention_adapter=True), "two-blocks": dict(num_mem_blocks=2), "bias": dict(add_bias_linear=True)},
    "bart": {"scaled": dict(scale_embedding=True), "relu": dict(activation_function="relu")}, "mbart": {"scaled": dict(scale_embedding=True)},
    "pegasus": {"scaled": dict(scale_embedding=True)}, "blenderbot": {"scaled": dict(scale_embedding=True)}, "marian": {"scaled": dict(scale_embedding=True)},
    "trocr": {"sinusoidal": dict(use_learned_position_embeddings=False), "no-embedding-norm": dict(layernorm_embedding=False), "scaled": dict(scale_embedding=True)},
    "bert": {"relu": dict(hidden_act="relu")}, "electra": {"same-width": dict(embedding_size=32)},
}

# More switches of the same form, other sizes, and texts longer than windows, chunks and the lengths
# at which RoPE scaling changes.
BIAS, BOTH = dict(attention_bias=True), dict(attention_bias=True, mlp_bias=True)
ODD = dict(hidden_size=30, num_attention_heads=6, num_key_value_heads=3, head_dim=10, intermediate_size=45, vocab_size=101)
FURTHER = {
    "axk1": {"not-normalised": dict(norm_topk_prob=False), "not-interleaved": dict(rope_interleave=False), "bias": BIAS},
    "bamba": {"no-conv-bias": dict(mamba_conv_bias=False)}, "falcon_h1": {"no-conv-bias": dict(mamba_conv_bias=False)},
    "granitemoehybrid": {"no-conv-bias": dict(mamba_conv_bias=False)}, "falcon_mamba": {"no-conv-bias": dict(use_conv_bias=False)},
    "nemotron_h": {"no-conv-bias": dict(use_conv_bias=False), "not-normalised": dict(norm_topk_prob=False)},
    "cohere2_moe": {"bias": BIAS}, "cwm": {"bias": BOTH}, "deepseek_v2": {"normalised": dict(norm_topk_prob=True)}, "dots1": {"bias": BIAS},
    "flex_olmo": {"normalised": dict(norm_topk_prob=True), "bias": BIAS}, "glm4_moe_lite": {"not-normalised": dict(norm_topk_prob=False), "bias": BIAS},
    "granitemoe": {"bias": BIAS}, "granitemoeshared": {"bias": BIAS}, "granitemoe_swa": {"bias": BIAS},
    "hunyuan_v1_moe": {"bias": BIAS}, "hyperclovax": {"bias": BOTH}, "kimi_linear": {"bias": BIAS},
    "llama4_text": {"attn-scale": dict(attn_scale=0.6)}, "mellum": {"bias": BIAS}, "olmo3": {"bias": BIAS}, "olmoe": {"bias": BIAS}, "qwen3_5_moe_text": {"bias": BIAS},
    "smollm3": {"bias": BOTH}, "solar_open": {"not-normalised": dict(norm_topk_prob=False)}, "vaultgemma": {"bias": BIAS}, "whisper": {"scaled": dict(scale_embedding=True)},
    "zamba2": {"no-conv-bias": dict(use_conv_bias=False)},
    "gemma": {"exact-gelu": dict(hidden_act="gelu")}, "gemma2": {"exact-gelu": dict(hidden_activation="gelu")}, "falcon": {"relu": dict(activation="relu")},
    "recurrent_gemma": {"silu": dict(hidden_activation="silu")}, "persimmon": {"gelu": dict(hidden_act="gelu")}, "mamba": {"odd": dict(hidden_size=30, state_size=5, conv_kernel=3, time_step_rank=3, vocab_size=101)},
    "llama": {"odd": ODD, "3kv": dict(hidden_size=48, num_attention_heads=6, num_key_value_heads=3)},
    "qwen3": {"odd": ODD}, "mixtral": {"odd": dict(**{**ODD, "hidden_size": 36, "intermediate_size": 44}, num_local_experts=7, num_experts_per_tok=3)}, "gemma3_text": {"odd": ODD}, "olmo2": {"odd": ODD}, "phi3": {"odd": dict(hidden_size=30, num_attention_heads=3, num_key_value_heads=1, intermediate_size=45)},
    "gpt2": {"odd": dict(n_embd=30, n_head=3, n_inner=45)}, "gpt_neox": {"odd": dict(hidden_size=36, num_attention_heads=3, intermediate_size=45)},
    "deepseek_v3": {"odd": dict(hidden_size=36, moe_intermediate_size=20, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=11, kv_lora_rank=13, qk_nope_head_dim=6, v_head_dim=7, n_routed_experts=7, num_experts_per_tok=3)},
}
LONGER = {  # case -> (type, tokens, config)
    "llama-rope-dynamic-long": ("llama", 40, dict(max_position_embeddings=16, **rope("dynamic", factor=4.0))),
    "llama-rope-longrope-long": ("llama", 40, rope("longrope", **LONG, original_max_position_embeddings=32, factor=2.0)),
    "phi3-longrope-long": ("phi3", 40, dict(original_max_position_embeddings=32, **rope("longrope", **LONG))),
    "mistral-sliding-long": ("mistral", 40, dict(sliding_window=7)),
    "gemma2-long": ("gemma2", 40, {}), "gpt_oss-long": ("gpt_oss", 40, {}), "cohere2-long": ("cohere2", 40, {}),
    "llama4_text-long": ("llama4_text", 40, dict(attention_chunk_size=16, floor_scale=8)),
    "recurrent_gemma-long": ("recurrent_gemma", 40, dict(attention_window_size=8)), "minimax-long": ("minimax", 40, {}), "mamba2-long": ("mamba2", 40, {}),
    **{f"{t}-long": (t, 70, dict(max_position_embeddings=128)) for t in ("qwen3_next", "olmo_hybrid", "kimi_linear")},  # past a chunk of 64
}

# Factors that make soft caps take effect, and attention non-uniform if it reads embeddings without
# a norm.
UNNORMED = {r"(q|k)_proj\.weight|c_attn\.weight": 3.0, "positions_embed|embed_positions": 3.0}
BOOST = {"vaultgemma": {r"(q|k)_proj\.weight": 2.0, "embed_tokens": 3.0}, "recurrent_gemma": {"embed_tokens": 3.0}, "nanochat": {"lm_head": 3.0},
         "openai-gpt": UNNORMED, "marian": UNNORMED, "trocr": UNNORMED}


def boost(model_type):
    return CASES[model_type].boost if model_type in CASES else BOOST.get(model_type, {})


MORE = {t: Case(t, boost=boost(t)) for t in TYPES}
MORE |= {f"{t}-{switch}": Case(t, config, boost=boost(t)) for t, switches in VARIANTS.items() for switch, config in switches.items()}
MORE |= {f"{t}-{switch}": Case(t, config, boost=boost(t)) for t, switches in FURTHER.items() for switch, config in switches.items()}
MORE |= {name: Case(t, config, boost=boost(t), tokens=tokens) for name, (t, tokens, config) in LONGER.items()}
for name, case in MORE.items(): case.full = name in TYPES or name in FULL
for name in ("falcon-rw", "falcon-alibi"): MORE[name].attention = "sdpa"  # the eager path adds the bias twice, the default path once
