"""Writes encodings/blocks.bin: random blocks of every encoding and the values they decode to.

The reference is the Python package `gguf` (pip install gguf numpy). Layout, little endian, once for
each encoding: u32 ggml type, u32 number of blocks, the blocks, then the values as f32.
"""

import pathlib
import struct

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

# In the order of `Encoding::ALL`, with the byte offsets of a block's f16 scales (IQ1_M splits its
# one scale over four words).
FORMATS = {
    "F32": [], "F16": [], "BF16": [], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ2_XXS": [0], "IQ2_XS": [0],
    "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0], "IQ1_S": [0], "IQ1_M": [], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [],
    "TQ1_0": [52], "TQ2_0": [64],
}

rng = np.random.default_rng(7)
out = bytearray()
for name, scales in FORMATS.items():
    kind = GGMLQuantizationType[name]
    length, size = GGML_QUANT_SIZES[kind]
    # A few blocks each; more of the plain floats, whose blocks have one element.
    count = {1: 100, 32: 12}.get(length, 6)
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    if name == "F32":
        blocks = rng.standard_normal(count, dtype=np.float32).view(np.uint8).reshape(count, size)
    elif name == "F16":
        values = rng.standard_normal(count).astype(np.float16)
        values[:4] = [0.0, -0.0, 6e-8, 65504.0]  # including a subnormal and the largest finite value
        blocks = values.view(np.uint8).reshape(count, size)
    elif name == "BF16":
        blocks = quants.quantize(rng.standard_normal((count, 1), dtype=np.float32), kind)
    elif name == "MXFP4":
        blocks[:, 0] = np.r_[0, 1, 2, 250, rng.integers(110, 140, count - 4)]
    elif name == "IQ1_M":
        bits = (rng.standard_normal(count) * 0.1).astype(np.float16).view(np.uint16)
        words = blocks[:, 48:].copy().view(np.uint16)
        for i in range(4):
            words[:, i] = (words[:, i] & 0x0FFF) | ((bits >> (4 * i) & 15) << 12)
        blocks[:, 48:] = words.view(np.uint8)
    for at in scales:
        blocks[:, at:at + 2] = (rng.standard_normal(count) * 0.1).astype(np.float16).view(np.uint8).reshape(count, 2)
    values = quants.dequantize(blocks, kind).astype(np.float32)
    assert np.isfinite(values).all(), name
    out += struct.pack("<II", kind.value, count) + blocks.tobytes() + values.tobytes()

path = pathlib.Path(__file__).parent / "encodings" / "blocks.bin"
path.write_bytes(out)
print(path, len(out), "bytes")
