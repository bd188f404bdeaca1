#!/usr/bin/env python3
"""Gradients of the golden models, computed by torch.

    gradients.py [case ...]          adds them to the files in cases/ (without names: one case of each type)
    gradients.py --check [case ...]  computes them again and compares

The scalar is the sum of all logits of the case's text, each times a random coefficient:
`standard(seed, "gradient", T * V)` of weights.py. `gradient/<name>` is its gradient, in f32, at
  resid_pre.0, resid_post.<i> [T,D]  the residual stream before the first layer, and after each
  z.<i>, mlp_act.<i>, mixer_out.<i>  as in the reference, for the first layer that has them
`weight_gradient/<name>`, in some cases, is its gradient with respect to a weight, under the
engine's name (WEIGHTS), unless it is analytically zero (`vanishes`). The case of a type is the one
with the shortest name, the first in alphabetical order among equals.
"""
import os, shutil, sys, tempfile
import case_file, generate, weights
import torch
import transformers
from cases import CASES
from dataclasses import replace
from more import MORE

# Every layer also reads the embeddings, so the gradient of resid_pre.0 is taken at the embeddings.
COPIES_EMBEDDINGS = ("zamba", "zamba2")


# For some cases, weights of every kind of op: the engine's name -> the parameter's name, or (name,
# function that selects a part).
def transposed(x): return x.T
def llama(i, **more):
    of = {"attn.norm.gain": "input_layernorm.weight", "attn.q": "self_attn.q_proj.weight", "attn.out": "self_attn.o_proj.weight"}
    return {f"layers.{i}.{k}": f"model.layers.{i}.{v}" for k, v in {**of, **more}.items()}
def block(prefix, i, **names): return {f"layers.{i}.{k.replace('__', '.')}": f"{prefix}.{i}.{v}" for k, v in names.items()}
WEIGHTS = {
    "llama": {**llama(1), "embed": "model.embed_tokens.weight", "head": "lm_head.weight", "final_norm.gain": "model.norm.weight",
              **block("model.layers", 0, mlp__gate="mlp.gate_proj.weight", mlp__down="mlp.down_proj.weight")},
    "gpt2": {"embed": "transformer.wte.weight", "pos_embed": "transformer.wpe.weight", "final_norm.bias": "transformer.ln_f.bias",
             "layers.0.attn.k.bias": ("transformer.h.0.attn.c_attn.bias", lambda x: x[len(x) // 3:][:len(x) // 3]),
             "layers.0.mlp.up": ("transformer.h.0.mlp.c_fc.weight", transposed)},
    "gemma2": {**llama(0), **block("model.layers", 1, mlp__post_norm__gain="post_feedforward_layernorm.weight", mlp__up="mlp.up_proj.weight")},
    "gpt_oss": {**llama(0), **block("model.layers", 0, attn__sinks="self_attn.sinks", mlp__router="mlp.router.weight", mlp__router__bias="mlp.router.bias"),
                "layers.1.mlp.experts.2.down": ("model.layers.1.mlp.experts.down_proj", lambda x: x[2].T),
                "layers.1.mlp.experts.1.up.bias": ("model.layers.1.mlp.experts.gate_up_proj_bias", lambda x: x[1, 1::2])},
    "diffllama": {**llama(1), **block("model.layers", 1, **{f"attn__lambda_{x}": f"self_attn.lambda_{x}" for x in ("q1", "k1", "q2", "k2")})},
    "mamba2": block("backbone.layers", 0, mixer__conv="mixer.conv1d.weight", mixer__conv__bias="mixer.conv1d.bias", mixer__step_bias="mixer.dt_bias",
                    mixer__rate="mixer.A_log", mixer__skip="mixer.D", mixer__norm__gain="mixer.norm.weight", mixer__out="mixer.out_proj.weight"),
    "qwen3_next": block("model.layers", 0, mixer__rate="linear_attn.A_log", mixer__step_bias="linear_attn.dt_bias", mixer__conv="linear_attn.conv1d.weight",
                        mixer__norm__gain="linear_attn.norm.weight", mlp__shared_gate="mlp.shared_expert_gate.weight", mlp__router="mlp.gate.weight"),
    "recurrent_gemma": block("model.layers", 0, mixer__rate="temporal_block.rg_lru.recurrent_param", mixer__input_gate="temporal_block.rg_lru.input_gate_weight",
                             mixer__recurrent_gate__bias="temporal_block.rg_lru.recurrent_gate_bias", mixer__conv="temporal_block.conv_1d.weight"),
    "rwkv": block("rwkv.blocks", 1, mixer__rate="attention.time_decay", mixer__first="attention.time_first", mixer__mix_k="attention.time_mix_key",
                  mlp__mix_gate="feed_forward.time_mix_receptance", mixer__v="attention.value.weight"),
}


def vanishes(weight, model):
    """Whether a weight's gradient is analytically zero, so that only rounding would be compared:
    without RoPE, the bias of the keys adds a constant to all scores of a query, which softmax
    ignores."""
    rotary = any("rotary" in name for name, _ in model.named_modules())
    return weight.endswith("attn.k.bias") and not rotary


def simplest_cases():
    """The simplest case of each model type."""
    found = {}
    names = (os.path.splitext(file)[0] for file in os.listdir(os.path.join(generate.HERE, "cases")))
    for name in sorted(names, key=lambda name: (len(name), name)):
        found.setdefault(committed(name)[0]["model_type"], name)
    return sorted(found.values())


def committed(name): return case_file.read(generate.case_path(generate.HERE, name))


def watch(model):
    """Adds forward hooks; returns a dict that they fill with the activations by name, which retain
    their gradients."""
    activations, current = {}, []
    def keep(name, tensor):
        if name not in activations and tensor.requires_grad:
            tensor.retain_grad()
            activations[name] = tensor
    def first(x): return x if torch.is_tensor(x) else x[0]
    def read(args, kwargs): return args[0] if args else kwargs["hidden_states"]
    layers, _ = generate.trunk(model)
    if model.config.model_type in COPIES_EMBEDDINGS: model.get_input_embeddings().register_forward_hook(lambda _, args, out: keep("resid_pre.0", out))
    if model.config.model_type == "rwkv": layers[0].pre_ln.register_forward_hook(lambda _, args, out: keep("resid_pre.0", out))
    for i, layer in enumerate(layers):
        def entering(_, args, kwargs, i=i):
            current.append(i)
            if i == 0 and model.config.model_type != "rwkv": keep("resid_pre.0", read(args, kwargs))
        layer.register_forward_pre_hook(entering, with_kwargs=True)
        layer.register_forward_hook(lambda _, args, out, i=i: keep(f"resid_post.{i}", first(out)))
        modules = dict(layer.named_modules())
        def find(pattern): return next((m for n, m in modules.items() if pattern.search(n)), None)
        def on_input(module, point, i):
            def hook(_, args, kwargs):
                if current[-1] == i: keep(f"{point}.{i}", read(args, kwargs))
            if module is not None: module.register_forward_pre_hook(hook, with_kwargs=True)
        def on_output(module, point, i):
            def hook(_, args, out):
                if current[-1] == i: keep(f"{point}.{i}", first(out))
            if module is not None: module.register_forward_hook(hook)
        on_input(find(generate.ATTENTION_OUT), "z", i)
        on_input(find(generate.DOWN), "mlp_act", i)
        on_output(find(generate.MIXER_OUT), "mixer_out", i)
    return activations


def gradients(name, model, seed, reference):
    """Returns the gradients at sites and of weights; `reference` has the tensors of the case."""
    generate.reset_rope(model)
    activations = watch(model)
    logits = generate.logits_of(model, reference["ids"])
    (logits * torch.from_numpy(weights.standard(seed, "gradient", logits.numel())).reshape(logits.shape)).sum().backward()
    out = {k: v.grad.reshape(len(reference["ids"]), -1) for k, v in activations.items() if v.grad is not None}
    parameters = dict(model.named_parameters())
    def of_weight(source):
        name, part = source if isinstance(source, tuple) else (source, lambda x: x)
        return part(parameters[name].grad).clone().contiguous()
    of_weights = {k: of_weight(source) for k, source in WEIGHTS.get(name, {}).items() if not vanishes(k, model)}
    def is_recorded(key):
        """Whether to record this gradient: residual streams always, inner points for the first
        layer in the reference."""
        point, layer = key.split(".")
        if point.startswith("resid"): return True
        return key in reference and not any(f"{point}.{i}" in out and f"{point}.{i}" in reference for i in range(int(layer)))
    return {k: v.clone().contiguous() for k, v in out.items() if is_recorded(k)}, of_weights


def main():
    names = [a for a in sys.argv[1:] if not a.startswith("--")]
    check = "--check" in sys.argv
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error(); transformers.logging.disable_progress_bar()
    known, failed = {**CASES, **MORE}, []
    for name in names or simplest_cases():
        d = tempfile.mkdtemp()
        try:
            config, manifest, tensors = committed(name)
            reference = case_file.reference(tensors)
            model, _ = generate.build(replace(known[name], seed=manifest["seed"]), d)
            at_sites, of_weights = gradients(name, model, manifest["seed"], reference)
            found = {case_file.GRADIENT + k: v for k, v in at_sites.items()} | {case_file.WEIGHT_GRADIENT + k: v for k, v in of_weights.items()}
            if check:
                old = {k: v for k, v in tensors.items() if k not in reference}
                if old.keys() != found.keys(): failed.append(f"{name}: tensors {sorted(old.keys() ^ found.keys())}")
                for k in old.keys() & found.keys():
                    off = ((old[k] - found[k]).norm() / old[k].norm().clamp_min(1e-30)).item()
                    if off > 1e-4: failed.append(f"{name}: {k} off by {off:.2g}")
            else: case_file.write(generate.case_path(generate.HERE, name), config, manifest, reference | found)
            print(f"ok   {name:28} {' '.join(sorted(found))}", flush=True)
        except Exception as e:
            failed.append(f"{name}: {type(e).__name__}: {str(e)[:300]}"); print("BAD ", failed[-1], flush=True)
        shutil.rmtree(d)
    print("\n".join(["", f"{len(failed)} failures", *failed]))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
