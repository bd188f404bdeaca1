#!/usr/bin/env python3
"""Outputs of single experts, computed by transformers' modules.

    experts.py [case ...]     writes experts.safetensors (without names: one case of each type that has experts)
    experts.py --check        computes them again and compares

For the first layer with experts of each case, on the case's text:
  <case>/layer                    the layer
  <case>/expert_indices [T,K]     the chosen experts of each token, in the order of the module's router
  <case>/expert_weights [T,K]     their weights
  <case>/expert_out [T,K,D]       their outputs before the weights, from one call of the module for each choice
In Llama 4 the weight scales the expert's input, so its outputs contain it.
"""
import inspect, os, shutil, sys, tempfile
import case_file, generate, gradients
import torch
import transformers
from cases import CASES
from dataclasses import replace
from more import MORE
from safetensors.torch import load_file, save_file

FILE = os.path.join(generate.HERE, "experts.safetensors")


def parameters(module): return list(inspect.signature(module.forward).parameters)


def watch(module, found):
    """Records the choices and each expert's output when the module runs."""
    forward = module.forward
    def chosen(hidden, indices, weights):
        if not found:
            if weights.shape != indices.shape: weights = weights.gather(1, indices)
            alone = [forward(hidden, indices[:, k:k + 1], torch.ones_like(weights[:, :1])) for k in range(indices.shape[1])]
            found.update(expert_indices=indices, expert_weights=weights, expert_out=torch.stack([x.flatten(0, -2) for x in alone], 1))
        return forward(hidden, indices, weights)
    module.forward = chosen


def watch_llama4(block, found):
    """Like `watch`, for a block that scales the experts' inputs and runs all experts."""
    def hook(_, args, out):
        scores, _ = block.router(args[0].reshape(-1, block.hidden_dim))
        routed = (args[0].reshape(-1, block.hidden_dim)[None] * scores.T[:, :, None]).reshape(-1, block.hidden_dim)
        every = block.experts(routed).reshape(block.num_experts, len(scores), -1)  # [E, T, D]
        weights, indices = scores.topk(block.top_k, dim=1)
        if not found: found.update(expert_indices=indices, expert_weights=weights, expert_out=every.transpose(0, 1)[torch.arange(len(scores))[:, None], indices])
    block.register_forward_hook(hook)


@torch.no_grad()
def record(model, ids):
    """The choices and outputs of the first layer with experts; empty if its modules have another form."""
    generate.reset_rope(model)
    layers, _ = generate.trunk(model)
    for i, layer in enumerate(layers):
        found = {}
        for name, module in layer.named_modules():
            if type(module).__name__ == "Llama4TextMoe": watch_llama4(module, found)
            elif name.split(".")[-1] == "experts" and len(parameters(module)) == 3 and "ind" in parameters(module)[1]: watch(module, found)
        generate.logits_of(model, ids)
        if found: return {"layer": torch.tensor(i), **found}
    return {}


def main():
    names = [a for a in sys.argv[1:] if not a.startswith("--")]
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error(); transformers.logging.disable_progress_bar()
    known, tensors = {**CASES, **MORE}, {}
    for name in names or gradients.simplest_cases():
        _, manifest, stored = gradients.committed(name)
        reference = case_file.reference(stored)
        if not any(key.startswith("router_logits") for key in reference): continue
        d = tempfile.mkdtemp()
        try: found = record(generate.build(replace(known[name], seed=manifest["seed"]), d)[0], reference["ids"])
        finally: shutil.rmtree(d)
        print(f"{name:28} {list(found['expert_out'].shape) if found else 'experts of another form'}", flush=True)
        tensors |= {f"{name}/{key}": value.contiguous().float().clone() for key, value in found.items()}
    if "--check" in sys.argv:
        old = load_file(FILE)
        off = [key for key in old.keys() | tensors.keys() if key not in old or key not in tensors or (old[key] - tensors[key]).abs().max() > 2e-5]
        print(*off, f"{len(off)} differences", sep="\n")
        sys.exit(bool(off))
    save_file(tensors, FILE)


if __name__ == "__main__":
    main()
