"""The compared behaviors (number, method, description) and the prompts."""
import json
from pathlib import Path

import numpy as np

BEHAVIORS = [
    (1, "generates", "three tokens, greedy"),
    (2, "zeroed_block", "the last block's output zeroed: read before, read after, logits"),
    (3, "zeroed_embedding", "embeddings multiplied by zero: read before, read after, logits"),
    (4, "one_of_two_rows", "two prompts, the last block of the first zeroed: the second is unchanged"),
    (5, "own_value_back", "a block's input replaced by its activation from an earlier run"),
    (6, "condition", "a block zeroed only if all elements of another are below a threshold"),
    (7, "attached", "a module attached at block 0, its output zeroed: inner activation, logits"),
    (8, "requests", "five invokes in one run, two of them for all rows: rows of each, logits"),
    (9, "unequal_lengths", "prompts of unequal length in one run: last logits of each"),
    (10, "embeddings_moved", "one prompt's embeddings written into another of the same length"),
    (11, "head_moved", "one head at one position patched from one prompt into another"),
    (12, "skipped", "blocks skipped with an earlier block's output: one, and a chain"),
    (13, "stopped", "a run that stops early: activations before the stop"),
    (14, "scanned", "shapes without a run"),
    (15, "steps", "a block at each step of a generation, and at steps 1 and 2"),
    (16, "ranges", "two prompts with different ranges of steps: number of saved activations"),
    (17, "skipped_step", "a block skipped with zeros at one step of a generation"),
    (18, "called_thrice", "a linear layer applied three times, its second use zeroed"),
    (19, "gradients", "gradients at blocks: of two scaled losses, and zeroed in the backward pass"),
    (20, "cached", "a cache of all blocks, after an edit"),
    (21, "standing", "a standing edit, and its removal"),
    ("", "every_block", "every block's output, attention and MLP inputs and outputs"),
    ("", "steered", "a vector added at the middle block at all positions"),
    ("", "module_called", "final norm and head applied to a middle block's output"),
    ("", "attention_weights", "attention probabilities of every layer"),
    ("", "head_gradient", "the gradient at the input of the output projection"),
    ("", "weight_gradients", "gradients of weights: a projection, a gain, the embedding"),
]

# Behavior 18: a square weight matrix, and the input of its three applications.
WEIGHT = np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32) / 2
INPUT = np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32)


class Prompts:
    """Prompts of token ids within the vocabulary of a model, and the layers that the behaviors use."""

    def __init__(self, path):
        config = json.loads((Path(path) / "config.json").read_text())
        vocab, self.layers = config["vocab_size"], config["num_hidden_layers"]
        def ids(seed, count): return [(seed + 37 * i * i + 11 * i) % (vocab - 10) + 5 for i in range(count)]
        self.first, self.second = ids(3, 9), ids(29, 9)
        self.unequal = [ids(seed, count) for seed, count in ((1, 2), (2, 3), (4, 1), (6, 5))]
        self.middle, self.last = self.layers // 2, self.layers - 1
