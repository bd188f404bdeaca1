"""The weights of the golden cases, computed from tensor names, so that none are committed.

A case has a manifest (`weights` in its file, see case_file.py) with a line for each stored tensor:

    {"seed": 0, "files": {
    "model.safetensors": [
    ["model.norm.weight", "F32", [32], 1, 0.3],
    ["model.layers.0.mlp.act_fn.beta", "F32", [], [0.5]]
    ]}}

Lines of five fields are name, dtype, shape, mean and standard deviation. Lines of four are name,
dtype, shape and the values, for tensors that the architecture fixes. Element i of a tensor is
`mean + deviation * x` with x approximately normal:

    key   = FNV-1a (64 bits) of "<seed>:<name>"
    bits  = SplitMix64's mixing of key + (i + 1) * 0x9E3779B97F4A7C15
    x     = (the sum of the four 16-bit parts of bits - 131070) / 37837

in f32 from the division on, each operation rounded separately; F16 and BF16 are rounded from the
f32 value, to nearest even. `crates/golden/src/weights.rs` implements the same rule, and both assert
the same bits.
"""
import numpy as np

GAMMA = 0x9E3779B97F4A7C15


def standard(seed, name, count):
    """Returns `count` random floats of mean 0 and standard deviation 1, determined by seed and
    name."""
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
    """Returns the tensor of a manifest line, as f32."""
    name, _, shape, *rule = line
    if len(rule) == 1: return np.array(rule[0], dtype=np.float32).reshape(shape)
    mean, deviation = (np.float32(x) for x in rule)
    return (mean + deviation * standard(seed, name, int(np.prod(shape)))).astype(np.float32).reshape(shape)


def few_digits(x):
    """Rounds to four digits, so that every parser of the decimal gives the same f32."""
    x = float(f"{x:.4g}")
    return int(x) if x == int(x) else x


def exact(array):
    """Returns the values as the shortest decimals of their f32."""
    values = [float(str(x)) for x in array.astype(np.float32).ravel()]
    return [int(x) if x == int(x) else x for x in values]


# Seeds and names; KNOWN_BITS are the bits of elements 0, 1, 2 and 1000, which both implementations
# assert.
KNOWN = [(0, "model.norm.weight"), (7, "h.0.attn.c_attn.weight")]


def known_bits():
    return [[int(x) for x in standard(seed, name, 1001)[[0, 1, 2, 1000]].view(np.uint32)] for seed, name in KNOWN]


KNOWN_BITS = [[0xBF1EFF70, 0x3FAB4034, 0x3F28FA3B, 0x3FA9C936], [0x3F600B7A, 0xBECEF44A, 0x3F348897, 0x3F9A3B34]]
