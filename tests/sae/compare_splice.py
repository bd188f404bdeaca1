"""Compares spliced runs of the lab's GPT-2-shaped model with torch, in f32 and in f64.

Usage: python compare_splice.py PELLUCID    (needs torch and transformers)

PELLUCID is the command; `pellucid lab run saes` writes the model and its two SAEs into the cache. For four texts
it prints the errors of the logits and of the features against an f64 computation, ours and those of transformers in
f32, and the features that are active in one and not in the other. Exits with 1 if our error is more than twice that
of transformers, or if a feature differs whose pre-activation is at least 1e-3.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

LENGTHS = [50, 87, 123, 160]
LAYERS = [9, 10]


def model_directory():
    cache = os.environ.get("PELLUCID_CACHE") or str(
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pellucid"
    )
    return Path(cache, "lab", "gpt2-shaped-1")


def spliced(directory, rows, dtype):
    """The logits of the last position, and the pre-activations of both SAEs, of each row."""
    model = AutoModelForCausalLM.from_pretrained(
        directory, dtype=dtype, attn_implementation="eager"
    ).eval()
    pre = {}

    def splice(layer, weights):
        def hook(_module, inputs):
            acts = inputs[0] @ weights["W_enc"] + weights["b_enc"]
            pre[layer] = acts[0]
            return (torch.relu(acts) @ weights["W_dec"] + weights["b_dec"],)

        return hook

    for layer in LAYERS:
        weights = load_file(
            directory / "saes" / f"layers.{layer}.z" / "sae_weights.safetensors"
        )
        weights = {name: tensor.to(dtype) for name, tensor in weights.items()}
        # The input of the output projection is `z`, with heads concatenated.
        model.transformer.h[layer].attn.c_proj.register_forward_pre_hook(
            splice(layer, weights)
        )
    results = []
    with torch.no_grad():
        for row in rows:
            logits = model(torch.tensor([row])).logits[0, -1]
            results.append(
                (
                    logits.double(),
                    {layer: values.double() for layer, values in pre.items()},
                )
            )
    return results


def pellucid(command, directory, rows):
    taps = [{"site": f"layers.{layer}.z", "splice": "recon"} for layer in LAYERS]
    taps += [{"site": f"layers.{layer}.z/sae.pre", "capture": True} for layer in LAYERS]
    taps += [{"site": "logits", "positions": "last", "capture": True}]
    saes = [str(directory / "saes" / f"layers.{layer}.z") for layer in LAYERS]
    with tempfile.TemporaryDirectory() as home:
        plan, out = Path(home, "plan.json"), Path(home, "out.safetensors")
        plan.write_text(json.dumps({"saes": saes, "taps": taps}))
        tokens = [
            argument
            for row in rows
            for argument in ("--tokens", ",".join(map(str, row)))
        ]
        arguments = [
            "run",
            "--model",
            str(directory),
            "--plan",
            str(plan),
            "--out",
            str(out),
            *tokens,
        ]
        subprocess.run([command, *arguments], check=True, capture_output=True)
        arrays = load_file(out)
    return [
        (
            arrays[f"{index}/logits"][0].double(),
            {
                layer: arrays[f"{index}/layers.{layer}.z/sae.pre"].double()
                for layer in LAYERS
            },
        )
        for index in range(len(rows))
    ]


def rms(x, y):
    return float(((x - y) ** 2).mean().sqrt())


def main():
    directory = model_directory()
    generator = torch.Generator().manual_seed(0)
    rows = [
        torch.randint(0, 50257, (length,), generator=generator).tolist()
        for length in LENGTHS
    ]
    ours, theirs = (
        pellucid(sys.argv[1], directory, rows),
        spliced(directory, rows, torch.float32),
    )
    exact, failed = spliced(directory, rows, torch.float64), False
    for length, (our_logits, our_pre), (their_logits, their_pre), (logits, pre) in zip(
        LENGTHS, ours, theirs, exact, strict=True
    ):
        errors = [("logits", rms(our_logits, logits), rms(their_logits, logits))]
        errors += [
            (f"pre {n}", rms(our_pre[n], pre[n]), rms(their_pre[n], pre[n]))
            for n in LAYERS
        ]
        for name, mine, other in errors:
            print(
                f"{length:4} tokens  {name:8} rms error {mine:.2e}, transformers {other:.2e}, ratio {mine / other:.2f}"
            )
            failed |= mine > 2 * other
        for layer in LAYERS:
            differs = (our_pre[layer] > 0) != (pre[layer] > 0)
            largest = float(pre[layer][differs].abs().max()) if differs.any() else 0.0
            active = float((pre[layer] > 0).sum(-1).double().mean())
            print(
                f"{length:4} tokens  layer {layer}: {active:.1f} active, {int(differs.sum())} differ (at most {largest:.1e})"
            )
            failed |= largest >= 1e-3
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
