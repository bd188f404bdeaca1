"""The golden cases as data: name -> Case(model_type, config overrides, how to store it).

A case with the name of a model type has that type's defaults; `type-switch` changes one switch.
Overrides apply on top of TINY (the shared sizes, for the fields that the config class has) and
PER_TYPE (settings that make a type tiny and show its features within three layers). `more.py` has
the other types. The default case of a type records every sublayer's output; most switches record
only residual streams, attention and logits, which suffice to show an error.
"""
from dataclasses import dataclass, field


@dataclass
class Case:
    model_type: str
    config: dict = field(default_factory=dict)
    boost: dict = field(default_factory=dict)  # regex of parameter names -> factor, so that a soft cap or a router has an effect
    dtype: str = "float32"                     # of the stored weights; the reference is f32 arithmetic on the rounded weights
    tokens: int = 12
    shards: str | None = None                  # maximum shard size
    legacy: bool = False                       # write config.json as transformers 4 did (rope_theta, rope_scaling, torch_dtype)
    full: bool = False                         # record submodule outputs, too; else residual streams, attention, routers and logits
    attention: str = "eager"                   # transformers' implementation
    seed: int = 0                              # of the weights (weights.py)
    grown: bool = False                        # use the sizes of fresh.py


TINY = dict(
    vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, max_position_embeddings=64, rope_theta=500.0,
    n_embd=32, n_layer=3, n_head=4, n_positions=64, n_ctx=64, n_inner=48, d_model=32, n_layers=3, n_heads=4,
    ffn_dim=48, word_embed_proj_dim=32, attention_heads=4, num_layers=3, num_heads=4,
    num_local_experts=4, num_experts=4, num_experts_per_tok=2, sliding_window=None,
    pad_token_id=0, bos_token_id=1, eos_token_id=2,
    attention_dropout=0.0, dropout=0.0, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0, hidden_dropout=0.0,
    router_aux_loss_coef=0.0, initializer_range=0.2,
)

ALTERNATING = dict(layer_types=["sliding_attention", "full_attention", "sliding_attention"], sliding_window=4)
GEMMA3_ROPE = dict(full_attention=dict(rope_type="default", rope_theta=2000.0),
                   sliding_attention=dict(rope_type="default", rope_theta=50.0))
GEMMA3 = dict(**ALTERNATING, query_pre_attn_scalar=12, rope_parameters=GEMMA3_ROPE)

PER_TYPE = {
    "gpt_neox": dict(rotary_pct=0.5),
    "gemma2": dict(**ALTERNATING, query_pre_attn_scalar=12, attn_logit_softcapping=5.0, final_logit_softcapping=3.0),
    "gemma3_text": GEMMA3,
    "gemma3": dict(
        text_config={**{k: v for k, v in TINY.items() if k in (
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "head_dim", "max_position_embeddings", "pad_token_id", "bos_token_id", "eos_token_id")},
            **GEMMA3},
        vision_config=dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4),
        mm_tokens_per_image=4, boi_token_index=93, eoi_token_index=94, image_token_index=95, pad_token_id=0, bos_token_id=1, eos_token_id=2),
    "mixtral": dict(intermediate_size=24),
}


def rope(kind, **parameters):
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=500.0, **parameters))


LLAMA3_ROPE = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
SHARP = {r"(q|k)_proj\.weight": 2.0}  # attention far from uniform
UNNORMED = {r"(q|k)_proj\.weight": 2.5, r"embed_positions": 3.0}  # attention reads the embeddings without a norm
CAPPED = {r"(q|k)_proj\.weight": 2.0, r"embed_tokens": 3.0}

CASES = {
    "gpt2": Case("gpt2"),
    "llama": Case("llama"),
    "llama-mqa-bias": Case("llama", dict(num_key_value_heads=1, attention_bias=True, mlp_bias=True)),
    "llama-tied": Case("llama", dict(tie_word_embeddings=True)),
    "llama-headdim": Case("llama", dict(head_dim=12)),
    "llama-rope-linear": Case("llama", rope("linear", factor=4.0)),
    "llama-rope-yarn": Case("llama", dict(head_dim=16, **rope("yarn", factor=4.0, beta_fast=4.0, original_max_position_embeddings=16))),
    "llama-rope-llama3": Case("llama", LLAMA3_ROPE),
    "llama-legacy-config": Case("llama", LLAMA3_ROPE, legacy=True),
    "llama-bf16": Case("llama", dtype="bfloat16"),
    "llama-f16": Case("llama", dtype="float16"),
    "llama-sharded": Case("llama", shards="40KB"),
    "llama-long": Case("llama", boost=SHARP, tokens=40),
    "mistral": Case("mistral"),
    "mistral-sliding": Case("mistral", dict(sliding_window=4)),
    "qwen2": Case("qwen2"),
    "qwen2-window": Case("qwen2", dict(use_sliding_window=True, sliding_window=4, max_window_layers=1)),
    "qwen3": Case("qwen3"),
    "gpt_neox": Case("gpt_neox"),
    "gpt_neox-serial": Case("gpt_neox", dict(use_parallel_residual=False)),
    "gemma2": Case("gemma2", boost=CAPPED),
    "gemma3_text": Case("gemma3_text"),
    "gemma3_text-rope-scaled": Case("gemma3_text", dict(rope_parameters={
        **GEMMA3_ROPE, "full_attention": dict(rope_type="linear", factor=8.0, rope_theta=2000.0)})),
    "gemma3_text-legacy-config": Case("gemma3_text", legacy=True),
    "gemma3_text-long": Case("gemma3_text", boost=SHARP, tokens=40),
    "gemma3": Case("gemma3"),
    "opt": Case("opt"),
    "opt-postnorm": Case("opt", dict(do_layer_norm_before=False), boost=UNNORMED),
    "opt-proj": Case("opt", dict(word_embed_proj_dim=20, do_layer_norm_before=False), boost=UNNORMED),
    "bloom": Case("bloom", boost={r"dense(_4h_to_h)?\.weight": 2.0}),
    "mixtral": Case("mixtral"),
    "mixtral-top1": Case("mixtral", dict(num_experts_per_tok=1, num_local_experts=5)),
}

for name, case in CASES.items(): case.full = case.tokens == 12
