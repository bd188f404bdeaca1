"""What a patching sweep costs: every layer and position of a nine-token prompt.

    python benches/sweep.py MODEL [--hf DIR] [--rounds N]

As branches of one run, as traces of their own, and (with a Hugging Face directory of the same weights, where torch and transformers can be
imported) through transformers with hooks. All must find the same logits. Rounds take turns; times are the least of the rounds.
"""

from __future__ import annotations

import argparse
import itertools
import time
from typing import Any

import numpy as np

import pellucid

CLEAN, CORRUPT = "The capital of France is the old city of", "The capital of Russia is the old city of"


def by_transformers(path: str, clean: list[int], corrupt: list[int]) -> Any:
    """A function that does the sweep with hooks."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_grad_enabled(False)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    layers = model.model.layers
    states = model(torch.tensor([clean]), output_hidden_states=True).hidden_states
    tokens = torch.tensor([corrupt])

    def sweep() -> list[np.ndarray]:
        found = []
        for layer, position in itertools.product(range(len(layers) - 1), range(len(corrupt))):

            def patch(module: Any, inputs: Any, output: Any, layer: int = layer, position: int = position) -> Any:
                hidden = output[0] if isinstance(output, tuple) else output
                hidden = hidden.clone()
                hidden[:, position] = states[layer + 1][:, position]
                return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

            handle = layers[layer].register_forward_hook(patch)
            found.append(model(tokens, use_cache=False, logits_to_keep=1).logits[0, -1].numpy())
            handle.remove()
        return found

    return sweep


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "model", nargs="?", help="a directory, a GGUF file or a pulled name; the built-in model without"
    )
    parser.add_argument("--hf", help="a Hugging Face directory with the same weights")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    model = pellucid.load(options.model, dtype="f32")
    clean, corrupt = model.to_tokens(CLEAN), model.to_tokens(CORRUPT)
    with model.trace(clean) as t:
        kept = [t.layers[layer].resid_post.save() for layer in range(model.layers)]
    # The last layer's stream goes straight to the logits: its patches are left out for all, since hooks see it after the final norm.
    places = list(itertools.product(range(model.layers - 1), range(len(corrupt))))

    def patch(t: Any, layer: int, position: int) -> Any:
        t.layers[layer].resid_post[:, position] = kept[layer].value[position]
        return t.logits[:, -1].save()

    def alone() -> list[np.ndarray]:
        found = []
        for layer, position in places:
            with model.trace(corrupt) as t:
                logits = patch(t, layer, position)
            found.append(logits.value)
        return found

    ways: dict[str, Any] = {
        "branches": lambda: [logits.value for logits in model.sweep(corrupt, patch, places)],
        "traces of their own": alone,
    }
    if options.hf:
        ways["transformers with hooks"] = by_transformers(options.hf, clean, corrupt)
    least = dict.fromkeys(ways, float("inf"))
    expected: list[np.ndarray] | None = None
    for _ in range(options.rounds):
        for name, way in ways.items():
            started = time.perf_counter()
            found = way()
            least[name] = min(least[name], time.perf_counter() - started)
            expected = expected or found
            worst = max(float(np.abs(a - b).max()) for a, b in zip(found, expected, strict=True))
            if worst > 2e-3:
                raise SystemExit(f"{name} finds other logits, by {worst:.3g}")
    print(f"{len(places)} patches of {len(corrupt)} tokens on {model.name}")
    for name, seconds in least.items():
        print(f"{name:<24} {seconds * 1e3:9.1f} ms  {seconds / least['branches']:6.1f} times the branches")


if __name__ == "__main__":
    main()
