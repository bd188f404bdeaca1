"""Benchmark of hooks on a batch: 4 prompts of 40 tokens with a hook on every attention pattern.

    python benches/hooks.py HF_DIRECTORY [--rounds N]

Compares `run_with_hooks` of Pellucid and of TransformerLens 3 (TransformerBridge, eager attention) on the
same f32 weights, one thread each. Both hooks must see the same patterns and return the same logits.
Variants alternate within each round; the reported CPU seconds are the minimum over rounds. Target: Pellucid
takes at most 0.6 times the CPU seconds of TransformerLens. The bar was set for SmolLM2-135M (30 layers).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import pellucid

ROWS, TOKENS, TARGET = 4, 40, 0.6


def with_pellucid(path: str, prompts: np.ndarray) -> Callable[[], tuple[np.ndarray, float]]:
    """Returns a function that runs the hooks and returns the logits and the sum of the patterns."""
    model = pellucid.load(path, dtype="f32", threads=1)

    def run() -> tuple[np.ndarray, float]:
        sums: list[float] = []

        def hook(pattern: Any, hook: Any) -> None:
            sums.append(float(pattern[:, :, -1, 0].sum()))

        logits = model.run_with_hooks(prompts, fwd_hooks=[(lambda name: name.endswith("pattern"), hook)])
        if len(sums) != model.n_layers:
            raise SystemExit(f"{len(sums)} hook calls for {model.n_layers} layers")
        return np.asarray(logits), sum(sums)

    return run


def with_transformer_lens(path: str, prompts: np.ndarray) -> Callable[[], tuple[np.ndarray, float]]:
    """Like `with_pellucid`."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import tokenizers
    import torch
    import transformers
    from transformer_lens.model_bridge import TransformerBridge

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    hf = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    # The bridge requires a tokenizer that was loaded from a directory, but token ids never pass through it.
    empty = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, unk_token="?"))
    with tempfile.TemporaryDirectory() as directory:
        special = {"eos_token": "?", "bos_token": "?", "pad_token": "?"}
        transformers.PreTrainedTokenizerFast(tokenizer_object=empty, **special).save_pretrained(directory)
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(directory)
        model = TransformerBridge.boot_transformers(path, hf_model=hf, tokenizer=tokenizer, device="cpu")
    tokens = torch.tensor(prompts)

    def run() -> tuple[np.ndarray, float]:
        sums: list[float] = []

        def hook(pattern: Any, hook: Any) -> None:
            sums.append(float(pattern[:, :, -1, 0].sum()))

        logits = model.run_with_hooks(tokens, fwd_hooks=[(lambda name: name.endswith("hook_pattern"), hook)])
        if len(sums) != model.cfg.n_layers:
            raise SystemExit(f"{len(sums)} hook calls for {model.cfg.n_layers} layers")
        return logits.numpy(), sum(sums)

    return run


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a Hugging Face directory")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    prompts = np.random.default_rng(0).integers(100, 2000, (ROWS, TOKENS))
    variants = {
        "Pellucid": with_pellucid(options.model, prompts),
        "TransformerLens": with_transformer_lens(options.model, prompts),
    }
    best = dict.fromkeys(variants, float("inf"))
    found: dict[str, tuple[np.ndarray, float]] = {}
    for _ in range(options.rounds):
        for name, run in variants.items():
            started = time.process_time()
            found[name] = run()
            best[name] = min(best[name], time.process_time() - started)
    (ours, our_sum), (theirs, their_sum) = found.values()
    off = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
    if off > 1e-4 or abs(our_sum - their_sum) > 1e-4 * abs(their_sum):
        raise SystemExit(f"results differ: logits by {off:.2g}, patterns {our_sum} and {their_sum}")
    for name, seconds in best.items():
        print(f"{name:<16} {seconds:7.3f} CPU s")
    ratio = best["Pellucid"] / best["TransformerLens"]
    print(f"ratio {ratio:.2f} (target: at most {TARGET})")
    raise SystemExit(0 if ratio <= TARGET else 1)


if __name__ == "__main__":
    main()
