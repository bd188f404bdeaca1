"""Compares the TransformerLens API of pellucid with TransformerLens itself, on the golden models
with committed weights.

    pip install transformer_lens ../../python
    python lens.py                     # or: python lens.py gpt2 llama

For each model: every cached activation under its hook name, decompositions and logit attributions,
raw weights, and processed weights. Prints the largest differences, and exits with an error if one
is too large.
"""
import os
import sys
import tempfile
import warnings
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
warnings.simplefilter("ignore")

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

import pellucid

logging.disable_progress_bar()
logging.set_verbosity_error()

MODELS = Path(__file__).parent / "models"
TOKENIZER = tempfile.mkdtemp()
TOKENS = np.array([[1, 5, 9, 3, 7], [2, 8, 6, 4, 9]])
TOLERANCE = 1e-4
WEIGHTS = "W_Q W_K W_V W_O W_in W_out W_E W_pos W_U b_Q b_K b_V b_O b_in b_out b_U".split()

NOT_COMPARED = ("attn_scores",)
"""Name suffixes: masked scores are -inf in Pellucid, and the lowest finite float in TransformerLens."""


def placeholder_tokenizer():
    """A tokenizer that is never used: inputs are token ids, but the bridge requires one."""
    words = {f"w{token}": token for token in range(96)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, "w0")), eos_token="w0", bos_token="w0", pad_token="w0")
    tokenizer.save_pretrained(TOKENIZER)
    return PreTrainedTokenizerFast.from_pretrained(TOKENIZER)


def bridge(name):
    hf = AutoModelForCausalLM.from_pretrained(MODELS / name, attn_implementation="eager").eval()
    return TransformerBridge.boot_transformers(str(MODELS / name), hf_model=hf, tokenizer=placeholder_tokenizer(), device="cpu")


def differences(ours, theirs):
    """Returns the largest difference for each common name, and the names whose shapes differ."""
    found, other_shapes = {}, []
    for name in ours:
        if name not in theirs.cache_dict or name.endswith(NOT_COMPARED):
            continue
        mine, their = ours[name], theirs.cache_dict[name].detach().float().numpy()
        if their.shape != mine.shape and their.size == mine.size:
            their = their.reshape(mine.shape)
        if their.shape != mine.shape:
            other_shapes.append((name, mine.shape, their.shape))
        else:
            found[name] = float(np.abs(mine - their).max())
    return found, other_shapes


def report(label, found):
    """Prints and returns the largest of these differences."""
    worst = max(found, key=found.get, default=None)
    if worst is None:
        print(f"  {label:<38} nothing to compare")
        return 0.0
    print(f"  {label:<38} {len(found):4} compared, largest difference {found[worst]:.1e} at {worst}")
    return found[worst]


def raw(name, model):
    theirs = bridge(name)
    with torch.no_grad():
        logits, cache = theirs.run_with_cache(torch.tensor(TOKENS))
    mine, ours = model.run_with_cache(TOKENS)
    worst = report("logits", {"logits": float(np.abs(mine - logits.numpy()).max())})
    found, other_shapes = differences(ours, cache)
    worst = max(worst, report("activations", found))
    for hook, here, there in other_shapes:
        print(f"    {hook}: {here} here, {there} there")
    return max(worst, report("weights", weights(model, theirs)))


def weights(model, theirs):
    """Returns the largest difference of each weight that the bridge has."""
    found = {}
    for weight in WEIGHTS:
        try:
            here, there = getattr(model, weight), getattr(theirs, weight)
        except (AttributeError, ValueError, TypeError, RuntimeError) as absent:
            print(f"    {weight}: {str(absent).splitlines()[0][:100]}")
            continue
        there = there.detach().numpy()
        if weight in ("W_K", "W_V", "b_K", "b_V"):
            there = there.repeat(here.shape[1] // there.shape[1], axis=1)  # the bridge has one per KV head
        if there.shape == here.shape:
            found[weight] = float(np.abs(here - there).max())
        else:
            print(f"    {weight}: {here.shape} here, {there.shape} there")
    return found


def processed(name, model):
    theirs = bridge(name)
    theirs.enable_compatibility_mode(disable_warnings=True)
    centered = model.cfg.normalization_type == "LN"
    steps = {"fold_ln": True, "center_writing_weights": centered, "center_unembed": True, "fold_value_biases": True}
    mine = model.processed(**steps)
    worst = report(f"weights after {', '.join(mine.record)}", weights(mine, theirs))
    with torch.no_grad():
        logits, cache = theirs.run_with_cache(torch.tensor(TOKENS))
    here, ours = model.run_with_cache(TOKENS)
    worst = max(worst, report("logits", {"logits": float(np.abs(mine.logits(here) - logits.numpy()).max())}))
    found, _ = differences(mine.cache(ours), cache)
    worst = max(worst, report("activations", found))
    stack, labels = ours.decompose_resid(return_labels=True)
    their_stack, their_labels = cache.decompose_resid(return_labels=True)
    assert labels == their_labels, (labels, their_labels)
    attributions = ours.logit_attrs(stack, 3, 4)
    their_attributions = cache.logit_attrs(their_stack, 3, 4).detach().numpy()
    worst = max(worst, report("logit attributions", dict(zip(labels, np.abs(attributions - their_attributions).max(axis=(1, 2)).tolist()))))
    return worst


def main(names):
    worst = 0.0
    for name in names:
        print(name)
        model = pellucid.load(MODELS / name)
        for compared in (raw, processed):
            worst = max(worst, compared(name, model))
    if worst > TOLERANCE:
        sys.exit(f"a difference of {worst:.1e} is more than {TOLERANCE:.0e}")


if __name__ == "__main__":
    main(sys.argv[1:] or ["gpt2", "gpt_neox", "llama", "mixtral"])
