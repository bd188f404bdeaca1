#!/usr/bin/env python3
"""Generates tiny quantized checkpoints and adapters, with the logits of their dequantized weights.

    quantized.py OUT [case ...]     writes OUT/<case>/ (without names: all)

Needs torch, transformers, safetensors; for some cases also compressed-tensors, bitsandbytes and
peft. No network, no GPU.

Each quantized case is a Llama (width 64, 2 layers) in a published format: config.json with
`quantization_config`, model.safetensors, and reference.safetensors with `ids` [T] and `logits` [T,
V]. The reference is the plain model in f32 with weights that were dequantized here: by the format's
package if it runs on a CPU (compressed_tensors, bitsandbytes), by transformers if it has the code
(mxfp4, FP8), and for GPTQ and AWQ by this script, which keeps the dequantized values when it
quantizes.

An adapter case has base/ (a plain model), adapter/ (as saved by PEFT) and reference.safetensors
with the logits of PEFT's model; `lora` also has merged/: the base with the factors multiplied and
added by numpy in f32, for a bitwise comparison.
"""
import json, os, shutil, sys
os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, GptOssConfig, LlamaConfig

IDS = [5, 17, 40, 8, 31, 33, 22, 43]
OMITTED = ("transformers_version", "_name_or_path", "id2label", "label2id", "chunk_size_feed_forward", "is_encoder_decoder", "output_attentions",
          "output_hidden_states", "return_dict", "pretraining_tp", "use_cache", "initializer_range", "problem_type")
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


# ---- models --------------------------------------------------------------------------------------

def randomize(model, seed=1):
    """Randomizes all parameters, so that none stays at one or zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            p.copy_(noise / p.shape[-1] ** 0.5 if p.dim() > 1 and "sinks" not in name else p + 0.2 * noise)
    return model.eval()


def llama(**changes):
    config = LlamaConfig(**(dict(
        vocab_size=48, hidden_size=64, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, head_dim=8,
        max_position_embeddings=64, tie_word_embeddings=True, rms_norm_eps=1e-5) | changes))
    return randomize(AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager"))


def logits(model):
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0].contiguous()


def is_quantized(name):
    """Whether to quantize a tensor. The last layer's down projection is left out, as with
    `modules_to_not_convert` and `ignore`."""
    return name.endswith(".weight") and name.split(".")[-2] in LINEAR and name != "model.layers.1.mlp.down_proj.weight"


def write(out, model, tensors, quantization):
    """Writes a checkpoint with these tensors, and the logits of the model in its current state."""
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    config = model.config.to_dict()
    config = {k: v for k, v in config.items() if v not in (None, {}) and k not in OMITTED}
    with open(f"{out}/config.json", "w") as f:
        json.dump(config | ({"quantization_config": quantization} if quantization else {}), f, indent=1, sort_keys=True)
        f.write("\n")
    save_file({k: v.contiguous() for k, v in tensors.items()}, f"{out}/model.safetensors", metadata={"format": "pt"})
    save_file({"ids": torch.tensor(IDS), "logits": logits(model)}, f"{out}/reference.safetensors")


def quantize(out, quantization, each, **changes):
    """Replaces every linear layer: `each(name, weight)` returns the tensors to store, by suffix,
    and the dequantized weight."""
    model = llama(**changes)
    weights = {k: v for k, v in model.state_dict().items() if not (k == "lm_head.weight" and model.config.tie_word_embeddings)}
    stored = {}
    for name, weight in weights.items():
        if not is_quantized(name):
            stored[name] = weight.clone().bfloat16() if weight.dim() > 1 else weight.clone()
            weight.copy_(stored[name])
            continue
        parts, dequantized = each(name, weight.detach().clone())
        stored |= {name.removesuffix("weight") + suffix: tensor for suffix, tensor in parts.items()}
        weight.copy_(dequantized)
    write(out, model, stored, quantization)


# ---- GPTQ and AWQ, implemented from their formats ------------------------------------------------

def dense_bits(codes, bits):
    """[n, m] codes → [n · bits / 32, m] words; the codes of a column are consecutive, from the
    lowest bit up."""
    n, m = codes.shape
    bit_array = (codes[:, None, :].astype(np.uint8) >> np.arange(bits)[None, :, None].astype(np.uint8)) & 1
    bit_array = bit_array.reshape(n * bits // 32, 32, m).astype(np.uint64)
    return (bit_array << np.arange(32, dtype=np.uint64)[None, :, None]).sum(1).astype(np.uint32).view(np.int32)


def grouped(w, bits, group, sym, order=None):
    """Returns codes [in, out], scales [groups, out] (f16), zero points, group of each input, and
    the dequantized weight [out, in]."""
    w = w.numpy().T
    order = np.arange(len(w)) // group if order is None else order
    groups, top = order.max() + 1, 2 ** bits - 1
    low = np.stack([w[order == g].min(0) for g in range(groups)])
    high = np.stack([w[order == g].max(0) for g in range(groups)])
    if sym:
        most = np.maximum(-low, high)
        scales, zeros = (2 * most / top).astype(np.float16), np.full(low.shape, 2 ** (bits - 1))
    else:
        scales = ((high - low) / top).astype(np.float16)
        zeros = np.clip(np.round(-low / scales.astype(np.float32)), 0, top)
    zeros = zeros.astype(np.int64)
    s = scales.astype(np.float32)
    codes = np.clip(np.round(w / s[order]) + zeros[order], 0, top).astype(np.int64)
    dequantized = s[order] * (codes - zeros[order]).astype(np.float32)
    return codes, scales, zeros, order, torch.from_numpy(np.ascontiguousarray(dequantized.T))


def gptq(out, bits, group, sym=False, act_order=False, version=1):
    def each(name, w):
        size = w.shape[1] if group == -1 else group
        order = np.random.default_rng(len(name)).permutation(np.arange(w.shape[1]) // size) if act_order else None
        codes, scales, zeros, order, dequantized = grouped(w, bits, size, sym, order)
        stored_zeros = (zeros - 1) % 2 ** bits if version == 1 else zeros
        return {
            "qweight": torch.from_numpy(dense_bits(codes, bits)),
            "qzeros": torch.from_numpy(np.ascontiguousarray(dense_bits(stored_zeros.T, bits).T)),
            "scales": torch.from_numpy(scales),
            "g_idx": torch.from_numpy(order.astype(np.int32)),
        }, dequantized
    quantize(out, dict(quant_method="gptq", bits=bits, group_size=group, sym=sym, desc_act=act_order,
                       checkpoint_format="gptq" if version == 1 else "gptq_v2"), each)


def awq(out):
    ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # the output that each nibble of a word stores
    def pack(codes):
        codes = codes.reshape(codes.shape[0], -1, 8)[:, :, ORDER].astype(np.uint64)
        return torch.from_numpy((codes << (4 * np.arange(8, dtype=np.uint64))).sum(-1).astype(np.uint32).view(np.int32))
    def each(name, w):
        codes, scales, zeros, _, dequantized = grouped(w, 4, 32, sym=False)
        return {"qweight": pack(codes), "qzeros": pack(zeros), "scales": torch.from_numpy(scales)}, dequantized
    quantize(out, dict(quant_method="awq", bits=4, group_size=32, zero_point=True, version="gemm", modules_to_not_convert=None), each)


# ---- bitsandbytes --------------------------------------------------------------------------------

def bnb4(out, kind, nested):
    import bitsandbytes.functional as bnb
    def each(name, w):
        packed, state = bnb.quantize_4bit(w, blocksize=64, quant_type=kind, compress_statistics=nested)
        parts = {"weight": packed} | {f"weight.{k}": v for k, v in state.as_dict(packed=True).items()}
        return parts, bnb.dequantize_4bit(packed, state)
    quantize(out, dict(quant_method="bitsandbytes", load_in_4bit=True, load_in_8bit=False, bnb_4bit_quant_type=kind,
                       bnb_4bit_use_double_quant=nested, bnb_4bit_compute_dtype="bfloat16"), each)


def bnb8(out):
    import bitsandbytes.functional as bnb
    def each(name, w):
        most = w.abs().amax(1)
        codes = torch.round(w * (127 / most)[:, None]).to(torch.int8)
        parts = {"weight": codes, "SCB": most.float(), "weight_format": torch.tensor(0, dtype=torch.uint8)}
        return parts, bnb.int8_vectorwise_dequant(codes, most.float())
    quantize(out, dict(quant_method="bitsandbytes", load_in_4bit=False, load_in_8bit=True, llm_int8_threshold=6.0), each)


# ---- FP8 -----------------------------------------------------------------------------------------

def fp8(out, block):
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize
    def each(name, w):
        if not block:
            scale = w.abs().max() / 448
            codes = (w / scale).to(torch.float8_e4m3fn)
            return {"weight": codes, "weight_scale": scale, "input_scale": torch.tensor(0.1)}, codes.float() * scale
        (rows, cols), (high, wide) = w.shape, block
        tiles = w.reshape(rows // high, high, cols // wide, wide)
        scale = tiles.abs().amax((1, 3)) / 448
        codes = (tiles / scale[:, None, :, None]).reshape(rows, cols).to(torch.float8_e4m3fn)
        return {"weight": codes, "weight_scale_inv": scale}, Fp8Dequantize(None)._dequantize_one(codes, scale, torch.float32)
    quantize(out, dict(quant_method="fp8", activation_scheme="dynamic" if block else "static") | (dict(weight_block_size=list(block)) if block else {}), each)


# ---- compressed-tensors --------------------------------------------------------------------------

def compressed(out, format, **weights):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    from compressed_tensors.quantization.utils import calculate_qparams
    args = QuantizationArgs(**weights)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    compressor = BaseCompressor.get_value_from_registry(format)
    def each(name, w):
        rows, cols = w.shape
        strategy = str(getattr(args.strategy, "value", args.strategy))
        if strategy == "tensor": low, high = w.min().reshape(1), w.max().reshape(1)
        elif strategy == "channel": low, high = w.amin(1, keepdim=True), w.amax(1, keepdim=True)
        elif strategy == "block":
            h, b = args.block_structure
            tiles = w.reshape(rows // h, h, cols // b, b)
            low, high = tiles.amin((1, 3)), tiles.amax((1, 3))
        else:
            tiles = w.reshape(rows, cols // args.group_size, args.group_size)
            low, high = tiles.amin(2), tiles.amax(2)
        state = {"weight": w}
        if format.startswith("nvfp4"):
            state["weight_global_scale"] = (448 * 6 / w.abs().max()).reshape(1).float()
        scale, zero = calculate_qparams(low, high, args, global_scale=state.get("weight_global_scale"))
        if not format.startswith("nvfp4"):
            scale = scale.bfloat16() if format == "pack-quantized" else scale.float()
        state |= {"weight_scale": scale, "weight_zero_point": zero}
        if args.symmetric: state.pop("weight_zero_point")
        packed = compressor.compress(state, scheme)
        if format.startswith("nvfp4"):  # the package would round to bf16
            codes = unpack_fp4_from_uint8(packed["weight_packed"], rows, cols, dtype=torch.float32)
            dequantized = dequantize(codes, packed["weight_scale"].float(), args=args, global_scale=packed["weight_global_scale"])
        else:
            dequantized = compressor.decompress(packed | {"weight_scale": scale.float()}, scheme)["weight"]
            assert dequantized.dtype == torch.float32
        return {k: v for k, v in packed.items() if v is not None}, dequantized
    quantize(out, dict(quant_method="compressed-tensors", format=format, quantization_status="compressed", ignore=["lm_head", "model.layers.1.mlp.down_proj"],
                       config_groups={"group_0": {"targets": ["Linear"], "weights": json.loads(args.model_dump_json(exclude_none=True))}}), each)


# ---- MXFP4 ---------------------------------------------------------------------------------------

def mxfp4(out):
    """gpt_oss with random codes, which covers all of them; transformers dequantizes them for the
    reference."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    model = randomize(AutoModelForCausalLM.from_config(GptOssConfig(
        vocab_size=48, hidden_size=64, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        num_local_experts=2, num_experts_per_tok=1, max_position_embeddings=64, sliding_window=4, tie_word_embeddings=False, pad_token_id=0,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        dtype=torch.float32, attn_implementation="eager"))
    generator, stored, state = torch.Generator().manual_seed(3), {}, model.state_dict()
    for name, weight in state.items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            stored[name] = weight.bfloat16()
            weight.copy_(stored[name])
            continue
        experts, inputs, outputs = weight.shape
        blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(121, 125, (experts, outputs, inputs // 32), generator=generator, dtype=torch.uint8)
        weight.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    # The dequantized weights, too, as [experts, inputs, outputs]; bf16 represents them exactly.
    dequantized = {name: weight.bfloat16() for name, weight in state.items() if f"{name}_blocks" in stored}
    assert all(torch.equal(state[name], weight.float()) for name, weight in dequantized.items())
    write(out, model, stored, dict(quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]))
    save_file(load_file(f"{out}/reference.safetensors") | dequantized, f"{out}/reference.safetensors")


# ---- adapters ------------------------------------------------------------------------------------

def gpt2():
    config = GPT2Config(vocab_size=48, n_embd=16, n_layer=2, n_head=4, n_positions=64, tie_word_embeddings=True)
    return randomize(AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager"))


def adapter(out, base, seed=7, merged=False, untied=False, **config):
    from peft import LoraConfig, get_peft_model
    shutil.rmtree(out, ignore_errors=True)
    tied = base.config.tie_word_embeddings
    weights = {k: v for k, v in base.state_dict().items() if not (k == "lm_head.weight" and tied)}
    if not merged:  # a smaller file; the factors are added in f32 all the same
        for weight in weights.values(): weight.copy_(weight.bfloat16())
        weights = {k: v.bfloat16() for k, v in weights.items()}
    weights = {k: v.clone() for k, v in weights.items()}
    write(f"{out}/base", base, weights, None)
    os.remove(f"{out}/base/reference.safetensors")
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **config))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.requires_grad: p.add_(torch.randn(p.shape, generator=generator) * (0.3 if p.dim() > 1 else 0.1))
    model.eval()
    model.save_pretrained(f"{out}/adapter")
    for name in os.listdir(f"{out}/adapter"):
        if not name.startswith("adapter_"): os.remove(f"{out}/adapter/{name}")
    path = f"{out}/adapter/adapter_config.json"
    with open(path) as f: saved = json.load(f)
    with open(path, "w") as f:
        saved |= {"base_model_name_or_path": "../base", "target_modules": sorted(saved["target_modules"])}
        json.dump(saved, f, indent=1, sort_keys=True)
        f.write("\n")
    # The reference does not merge. PEFT's merging must agree, except that it would merge into a
    # tied embedding.
    truth = logits(model)
    if not untied:
        assert torch.allclose(logits(model.merge_and_unload()), truth, atol=1e-4), out
    save_file({"ids": torch.tensor(IDS), "logits": truth}, f"{out}/reference.safetensors")
    if merged:
        factors = load_file(f"{out}/adapter/adapter_model.safetensors")
        for name, a in factors.items():
            if not name.endswith("lora_A.weight"): continue
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            a, b = a.numpy(), factors[name.replace("lora_A", "lora_B")].numpy()
            scale = np.float32(saved["lora_alpha"] / saved["r"])
            total = np.zeros((b.shape[0], a.shape[1]), np.float32)
            for k in range(len(a)): total = total + b[:, k:k + 1] * a[k:k + 1]
            weight = weights[f"{module}.weight"]
            weights[f"{module}.weight"] = torch.from_numpy(weight.numpy() + total * scale)
        os.makedirs(f"{out}/merged")
        shutil.copy(f"{out}/base/config.json", f"{out}/merged/config.json")
        save_file({k: v.contiguous() for k, v in weights.items()}, f"{out}/merged/model.safetensors", metadata={"format": "pt"})


CASES = {
    "gptq-4": lambda out: gptq(out, 4, 32),
    "gptq-4-order": lambda out: gptq(out, 4, 32, act_order=True),
    "gptq-4-sym-v2": lambda out: gptq(out, 4, -1, sym=True, version=2),
    "gptq-2": lambda out: gptq(out, 2, 32),
    "gptq-3": lambda out: gptq(out, 3, 32),
    "gptq-8": lambda out: gptq(out, 8, -1),
    "awq": awq,
    "bnb-nf4": lambda out: bnb4(out, "nf4", False),
    "bnb-nf4-nested": lambda out: bnb4(out, "nf4", True),
    "bnb-fp4": lambda out: bnb4(out, "fp4", False),
    "bnb-int8": bnb8,
    "fp8-blocks": lambda out: fp8(out, (32, 32)),
    "fp8-tensor": lambda out: fp8(out, None),
    "compressed-float": lambda out: compressed(out, "float-quantized", num_bits=8, type="float", strategy="channel", symmetric=True),
    "compressed-float-block": lambda out: compressed(out, "float-quantized", num_bits=8, type="float", strategy="block", block_structure=[32, 16], symmetric=True),
    "compressed-int": lambda out: compressed(out, "int-quantized", num_bits=8, type="int", strategy="tensor", symmetric=False),
    "compressed-pack": lambda out: compressed(out, "pack-quantized", num_bits=4, type="int", strategy="group", group_size=32, symmetric=True),
    "compressed-pack-zero": lambda out: compressed(out, "pack-quantized", num_bits=4, type="int", strategy="group", group_size=16, symmetric=False),
    "compressed-nvfp4": lambda out: compressed(out, "nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True),
    "mxfp4": mxfp4,
    "lora": lambda out: adapter(out, llama(hidden_size=16, intermediate_size=16, num_key_value_heads=2), merged=True, r=4, lora_alpha=6, target_modules=["q_proj", "v_proj", "down_proj"]),
    "lora-switches": lambda out: adapter(
        out, llama(hidden_size=16, intermediate_size=16, num_key_value_heads=2, attention_bias=True, tie_word_embeddings=False), r=4, lora_alpha=6, use_rslora=True, bias="all", lora_bias=False,
        target_modules=["q_proj", "o_proj", "up_proj", "embed_tokens"], modules_to_save=["lm_head"],
        rank_pattern={"up_proj": 2}, alpha_pattern={"layers.1.self_attn.q_proj": 3}),
    "lora-tied": lambda out: adapter(out, llama(hidden_size=16, intermediate_size=16, num_key_value_heads=2), untied=True, r=2, lora_alpha=3, target_modules=["embed_tokens", "k_proj"]),
    "dora": lambda out: adapter(out, llama(hidden_size=16, intermediate_size=16, num_key_value_heads=2), r=4, lora_alpha=6, use_dora=True, target_modules=["q_proj", "gate_proj"]),
    "lora-gpt2": lambda out: adapter(out, gpt2(), r=4, lora_alpha=6, fan_in_fan_out=True, lora_bias=True, target_modules=["c_attn", "c_fc"]),
}

if __name__ == "__main__":
    out, *names = sys.argv[1:]
    torch.set_num_threads(1)
    for name in names or CASES:
        torch.manual_seed(0)
        CASES[name](f"{out}/{name}")
        size = sum(os.path.getsize(os.path.join(d, f)) for d, _, files in os.walk(f"{out}/{name}") for f in files)
        print(f"{name:26} {size / 1000:7.1f} KB")
