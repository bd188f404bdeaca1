"""Benchmark of a patching sweep: every layer and position of a short prompt.

    python benches/sweep.py MODEL [--hf DIR] [--rounds N]

Compares branches of one run, separate traces, and (with `--hf` and torch and transformers
installed) transformers with forward hooks on the same weights. All must compute the same logits.
Variants alternate within each round; reported times are the minimum over rounds.
"""

from __future__ import annotations

import argparse
import itertools
import time
from typing import Any

import numpy as np

import pellucid

# Pairs of prompts; a sweep needs one in which both have equally many tokens.
PROMPTS = [
    ("The capital of France is the old city of", "The capital of Russia is the old city of"),
    ("Tom has a red ball and plays with the", "Sam has a red ball and plays with the"),
]


def prompt_pair(model: pellucid.Model) -> tuple[list[int], list[int]]:
    """Returns the tokens of the first pair of prompts that are equally long for this tokenizer."""
    for pair in PROMPTS:
        clean, corrupt = (model.to_tokens(prompt) for prompt in pair)
        if len(clean) == len(corrupt):
            return clean, corrupt
    raise SystemExit(f"{model.name}: no pair of prompts has equally many tokens")


def by_transformers(path: str, clean: list[int], corrupt: list[int]) -> Any:
    """Returns a function that runs the sweep in transformers with forward hooks."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_grad_enabled(False)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    layers = model.model.layers
    states = model(torch.tensor([clean]), output_hidden_states=True).hidden_states
    tokens = torch.tensor([corrupt])

    def sweep() -> list[np.ndarray]:
        logits = []
        for layer, position in itertools.product(range(len(layers) - 1), range(len(corrupt))):

            def patch(module: Any, inputs: Any, output: Any, layer: int = layer, position: int = position) -> Any:
                hidden = output[0] if isinstance(output, tuple) else output
                hidden = hidden.clone()
                hidden[:, position] = states[layer + 1][:, position]
                return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

            handle = layers[layer].register_forward_hook(patch)
            logits.append(model(tokens, use_cache=False, logits_to_keep=1).logits[0, -1].numpy())
            handle.remove()
        return logits

    return sweep


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "model", nargs="?", help="a directory, a GGUF file or a pulled name; the built-in model by default"
    )
    parser.add_argument("--hf", help="a Hugging Face directory with the same weights")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    model = pellucid.load(options.model, dtype="f32")
    clean, corrupt = prompt_pair(model)
    with model.trace(clean) as t:
        resid = [t.layers[layer].resid_post.save() for layer in range(model.n_layers)]
    # Skips the last layer: in transformers, its `hidden_states` entry is after the final norm.
    cells = list(itertools.product(range(model.n_layers - 1), range(len(corrupt))))

    def patch(t: Any, layer: int, position: int) -> Any:
        t.layers[layer].resid_post[:, position] = resid[layer].value[position]
        return t.logits[:, -1].save()

    def separate_traces() -> list[np.ndarray]:
        found = []
        for layer, position in cells:
            with model.trace(corrupt) as t:
                logits = patch(t, layer, position)
            found.append(logits.value)
        return found

    variants: dict[str, Any] = {
        "branches": lambda: [logits.value for logits in model.sweep(corrupt, patch, cells)],
        "separate traces": separate_traces,
    }
    if options.hf:
        variants["transformers with hooks"] = by_transformers(options.hf, clean, corrupt)
    best = dict.fromkeys(variants, float("inf"))
    expected: list[np.ndarray] | None = None
    for _ in range(options.rounds):
        for name, variant in variants.items():
            started = time.perf_counter()
            found = variant()
            best[name] = min(best[name], time.perf_counter() - started)
            expected = expected or found
            worst = max(float(np.abs(a - b).max()) for a, b in zip(found, expected, strict=True))
            if worst > 2e-3:
                raise SystemExit(f"{name}: logits differ by {worst:.3g}")
    print(f"{len(cells)} patches of {len(corrupt)} tokens on {model.name}")
    for name, seconds in best.items():
        print(f"{name:<24} {seconds * 1e3:9.1f} ms  {seconds / best['branches']:6.1f} x branches")


if __name__ == "__main__":
    main()
