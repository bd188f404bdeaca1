"""The weights of the golden cases: numbers that follow from their names, so that no weights are stored.

A case keeps a manifest (`weights` of its file, case_file.py), one line for each stored tensor:

    {"seed": 0, "files": {
    "model.safetensors": [
    ["model.norm.weight", "F32", [32], 1, 0.3],
    ["model.layers.0.mlp.act_fn.beta", "F32", [], [0.5]]
    ]}}

Five fields are name, type, shape, mean and deviation; four are name, type, shape and the values themselves, for what an architecture
fixes. Element i of a tensor is `mean + deviation * x` with x about normal:

    key   = FNV-1a (64 bits) of "<seed>:<name>"
    bits  = SplitMix64's mixing of key + (i + 1) * 0x9E3779B97F4A7C15
    x     = (the sum of the four 16-bit parts of bits - 131070) / 37837

in single precision from the division on, each step rounded by itself; F16 and BF16 are rounded from that to the nearest, ties to even.
`crates/golden/src/weights.rs` does the same, and both assert the same numbers.
"""
import numpy as np

GAMMA = 0x9E3779B97F4A7C15


def standard(seed, name, count):
    """`count` numbers of mean 0 and deviation 1."""
    key = 0xCBF29CE484222325
    for byte in f"{seed}:{name}".encode():
        key = (key ^ byte) * 0x100000001B3 % 2**64
    with np.errstate(over="ignore"):
        z = np.uint64(key) + (np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(GAMMA)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    parts = sum((z >> np.uint64(shift)) & np.uint64(0xFFFF) for shift in (0, 16, 32, 48)).astype(np.int64)
    return (parts - 131070).astype(np.float32) / np.float32(37837)


def values(seed, line):
    """The numbers of one line of the manifest, as f32 in its shape."""
    name, _, shape, *rule = line
    if len(rule) == 1: return np.array(rule[0], dtype=np.float32).reshape(shape)
    mean, deviation = (np.float32(number) for number in rule)
    return (mean + deviation * standard(seed, name, int(np.prod(shape)))).astype(np.float32).reshape(shape)


def few_digits(x):
    """Few enough that reading the decimal number gives the same f32 everywhere."""
    x = float(f"{x:.4g}")
    return int(x) if x == int(x) else x


def exact(array):
    """Explicit values, each the shortest decimal number of its f32."""
    numbers = [float(str(x)) for x in array.astype(np.float32).ravel()]
    return [int(x) if x == int(x) else x for x in numbers]


# What both languages assert: seed, name, and the bits of the first elements and of element 1000.
KNOWN = [(0, "model.norm.weight"), (7, "h.0.attn.c_attn.weight")]


def known_bits():
    return [[int(x) for x in standard(seed, name, 1001)[[0, 1, 2, 1000]].view(np.uint32)] for seed, name in KNOWN]


KNOWN_BITS = [[0xBF1EFF70, 0x3FAB4034, 0x3F28FA3B, 0x3FA9C936], [0x3F600B7A, 0xBECEF44A, 0x3F348897, 0x3F9A3B34]]
