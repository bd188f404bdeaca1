"""The forward pass of GPT-2 and Llama in double precision, in numpy.

transformers cannot be the reference: with f64 weights it still computes RMSNorm, softmax and rotary
angles of Llama in f32.
"""
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def attention(q, k, v):
    """Causal attention. q [tokens, heads, dim]; k, v [tokens, kv_heads, dim] → z [tokens, heads · dim]."""
    tokens, heads, dim = q.shape
    k, v = (np.repeat(x, heads // x.shape[1], axis=1) for x in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim)
    scores[:, np.triu(np.ones((tokens, tokens), bool), 1)] = -np.inf
    return np.einsum("hqk,khd->qhd", softmax(scores), v).reshape(tokens, heads * dim)


def gpt2(config, w, ids):
    heads, eps = config["n_head"], config["layer_norm_epsilon"]

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * w[name + ".weight"] + w[name + ".bias"]

    def linear(x, name):
        return x @ w[name + ".weight"] + w[name + ".bias"]

    sites, x = {}, w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][: len(ids)]
    for i in range(config["n_layer"]):
        block = f"transformer.h.{i}."
        q, k, v = np.split(linear(norm(x, block + "ln_1"), block + "attn.c_attn").reshape(len(ids), 3 * heads, -1), 3, axis=1)
        z = attention(q, k, v)
        attn_out = linear(z, block + "attn.c_proj")
        x = x + attn_out
        hidden = linear(norm(x, block + "ln_2"), block + "mlp.c_fc")
        hidden = 0.5 * hidden * (1 + np.tanh(np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3)))
        mlp_out = linear(hidden, block + "mlp.c_proj")
        x = x + mlp_out
        sites |= {f"layers.{i}.z": z, f"layers.{i}.attn_out": attn_out, f"layers.{i}.mlp_out": mlp_out, f"layers.{i}.resid_post": x}
    return sites | {"logits": norm(x, "transformer.ln_f") @ w["transformer.wte.weight"].T}


def llama(config, w, ids):
    heads, kv_heads, eps = config["num_attention_heads"], config["num_key_value_heads"], config["rms_norm_eps"]
    dim = config["hidden_size"] // heads
    theta = config["rope_parameters"]["rope_theta"]
    angles = np.arange(len(ids))[:, None, None] * theta ** (-np.arange(0, dim, 2) / dim)

    def norm(x, name):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * w[name + ".weight"]

    def linear(x, name):
        return x @ w[name + ".weight"].T

    def rotate(x, count):
        a, b = np.split(x.reshape(len(ids), count, dim), 2, axis=-1)
        return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], axis=-1)

    sites, x = {}, w["model.embed_tokens.weight"][ids]
    for i in range(config["num_hidden_layers"]):
        block = f"model.layers.{i}."
        y = norm(x, block + "input_layernorm")
        q, k, v = (linear(y, f"{block}self_attn.{name}_proj") for name in "qkv")
        z = attention(rotate(q, heads), rotate(k, kv_heads), v.reshape(len(ids), kv_heads, dim))
        attn_out = linear(z, block + "self_attn.o_proj")
        x = x + attn_out
        y = norm(x, block + "post_attention_layernorm")
        gate = linear(y, block + "mlp.gate_proj")
        mlp_out = linear(gate / (1 + np.exp(-gate)) * linear(y, block + "mlp.up_proj"), block + "mlp.down_proj")
        x = x + mlp_out
        sites |= {f"layers.{i}.z": z, f"layers.{i}.attn_out": attn_out, f"layers.{i}.mlp_out": mlp_out, f"layers.{i}.resid_post": x}
    return sites | {"logits": norm(x, "model.norm") @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T}


def run(path, prompts):
    """Yields the sites of each prompt: name → [tokens, width], in double precision."""
    config = json.loads((Path(path) / "config.json").read_text())
    weights = {name: value.astype(np.float64) for name, value in load_file(Path(path) / "model.safetensors").items()}
    forward = {"gpt2": gpt2, "llama": llama}[config["model_type"]]
    for prompt in prompts:
        yield forward(config, weights, prompt)
