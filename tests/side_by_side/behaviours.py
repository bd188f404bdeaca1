"""What is compared: numbers, names and meanings, and the prompts."""
import json
from pathlib import Path

import numpy as np

BEHAVIOURS = [
    (1, "generates", "three tokens, greedily"),
    (2, "zeroed_block", "the last block's output zeroed: read before, read after, logits"),
    (3, "zeroed_embedding", "embeddings times zero: read before, read after, logits"),
    (4, "one_of_two_rows", "two prompts, the first one's last block zeroed: the second is untouched"),
    (5, "own_value_back", "a block's input replaced by its value of an earlier run"),
    (6, "condition", "a block zeroed only if another is below a bound everywhere"),
    (7, "attached", "a module attached at block 0, its output zeroed: inner value, logits"),
    (8, "requests", "five requests in one run, two of them for all rows: rows of each, logits"),
    (9, "unequal_lengths", "prompts of unequal length in one run: last logits of each"),
    (10, "embeddings_moved", "one prompt's embeddings written into another of the same length"),
    (11, "head_moved", "one head of one position handed from one prompt to another"),
    (12, "skipped", "blocks skipped with an earlier block's output, one and a chain"),
    (13, "stopped", "a run that ends early: what came before the end"),
    (14, "scanned", "shapes without a run"),
    (15, "steps", "a block at each step of a generation, and at steps 1 and 2"),
    (16, "ranges", "two prompts with different ranges of steps: how many values each has"),
    (17, "skipped_step", "a block skipped with zeros at one step of a generation"),
    (18, "called_thrice", "a linear layer applied three times, its second use zeroed"),
    (19, "gradients", "gradients at blocks, of two scales, zeroed on their way"),
    (20, "cached", "a cache of all blocks, after an edit"),
    (21, "standing", "a standing edit, and its removal"),
    ("", "every_block", "every block's output, attention and MLP inputs and outputs"),
    ("", "steered", "a vector added at the middle block at all positions"),
    ("", "module_called", "final norm and head applied to a middle block's output"),
    ("", "attention_weights", "attention's weights of every layer"),
    ("", "head_gradient", "the gradient at what the output projection reads"),
    ("", "weight_gradients", "gradients of weights: a projection, a gain, the embedding"),
]

# The toy of behaviour 18: a square matrix, and what goes through it three times.
WEIGHT = np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32) / 2
INPUT = np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32)


class Prompts:
    """Token ids that every model of a directory has, and its number of layers."""

    def __init__(self, path):
        config = json.loads((Path(path) / "config.json").read_text())
        vocab, self.layers = config["vocab_size"], config["num_hidden_layers"]
        def numbers(seed, count): return [(seed + 37 * i * i + 11 * i) % (vocab - 10) + 5 for i in range(count)]
        self.first, self.second = numbers(3, 9), numbers(29, 9)
        self.unequal = [numbers(seed, count) for seed, count in ((1, 2), (2, 3), (4, 1), (6, 5))]
        self.middle, self.last = self.layers // 2, self.layers - 1
