#!/usr/bin/env python3
"""Trains the sparse autoencoder of the built-in model: TopK on the residual stream after layer 3.

    train.py stories.txt.gz OUT [--layer 3] [--features 2048] [--k 16] [--stories 3000] [--epochs 6]

`stories.txt.gz` is the corpus of the built-in model (../sample.py makes one like it): one story per line, with newlines
written as \\n, compressed or not. OUT gets `cfg.json` and `sae_weights.safetensors` in the layout of SAELens, f16. The
script prints the quality on the held-out stories, computed with the weights as stored. The same corpus and options on
the same machine give the same files. Needs torch, safetensors and pellucid.

The recipe is that of Gao et al., "Scaling and evaluating sparse autoencoders" (2024): TopK, decoder rows of norm 1, and
an auxiliary loss in which features that have not fired for a while reconstruct the error of the others.
"""

import argparse
import gzip
import json
import os
import time

import numpy as np
import pellucid
import torch
from safetensors.torch import save_file
from torch.nn import functional

HELD_OUT = 280  # the first stories (2 %), which the model did not train on either
CONTEXT = 256
BATCH = 4096
RATE = 2e-3
DEAD_AFTER = 200_000  # tokens without firing
AUX_K, AUX_WEIGHT = 64, 1 / 32
ROWS_PER_RUN = 64


# ---- activations -----------------------------------------------------------------------------------------------------


def read_stories(path):
    open_text = gzip.open if path.endswith(".gz") else open
    with open_text(path, "rt", encoding="utf8") as file:
        return [line.rstrip("\n").replace("\\n", "\n") for line in file if line.strip()]


def tokenize(model, stories):
    return [[int(i) for i in np.asarray(model.to_tokens(story)).reshape(-1)[:CONTEXT]] for story in stories]


def capture(model, rows, layer):
    """Returns the residual stream after `layer` of all tokens of all rows, [tokens, d_model]."""
    parts = []
    for start in range(0, len(rows), ROWS_PER_RUN):
        with model.trace(rows[start : start + ROWS_PER_RUN]) as t:
            saved = t.layers[layer].resid_post.save()
        parts.extend(np.array(value, dtype=np.float32) for value in saved.value)
    return torch.from_numpy(np.concatenate(parts))


# ---- autoencoder -----------------------------------------------------------------------------------------------------


class TopK(torch.nn.Module):
    """f = relu of the k largest of (x - b_dec) W_enc + b_enc; xhat = f W_dec + b_dec."""

    def __init__(self, mean, features, k):
        super().__init__()
        self.k = k
        rows = functional.normalize(torch.randn(features, len(mean)), dim=1)
        self.W_dec = torch.nn.Parameter(rows)
        self.W_enc = torch.nn.Parameter(rows.T.contiguous().clone())
        self.b_enc = torch.nn.Parameter(torch.zeros(features))
        self.b_dec = torch.nn.Parameter(mean.clone())

    def pre(self, x):
        return (x - self.b_dec) @ self.W_enc + self.b_enc

    def decode(self, values, indices):
        """Sum of the chosen decoder rows, without the bias."""
        return functional.embedding_bag(indices, self.W_dec, per_sample_weights=values, mode="sum")

    def forward(self, x):
        pre = self.pre(x)
        values, indices = pre.topk(self.k, sorted=False)
        values = values.relu()
        return self.decode(values, indices) + self.b_dec, values, indices, pre

    @torch.no_grad()
    def normalize_decoder(self):
        self.W_dec.copy_(functional.normalize(self.W_dec, dim=1))

    @torch.no_grad()
    def project_decoder_gradient(self):
        """Removes the part of the gradient that only changes the norms of decoder rows."""
        along = (self.W_dec.grad * self.W_dec).sum(1, keepdim=True)
        self.W_dec.grad -= along * self.W_dec


def rate_at(done):
    """Learning rate factor: warm-up for 2 %, constant until 60 %, then linear decay."""
    return min(done / 0.02, 1.0, (1.0 - done) / 0.4)


def train(x, features, k, epochs):
    """Trains on activations `x`, scaled to mean norm sqrt(d); returns the autoencoder in the units of `x`."""
    size = x.norm(dim=1).mean() / x.shape[1] ** 0.5
    x = x / size
    variance = (x - x.mean(0)).square().sum(1).mean()
    sae = TopK(x.mean(0), features, k)
    optimizer = torch.optim.Adam(sae.parameters(), lr=RATE, betas=(0.9, 0.999))
    unused = torch.zeros(features, dtype=torch.long)  # tokens since each feature fired
    steps = len(x) // BATCH * epochs
    step, started = 0, time.time()
    for _ in range(epochs):
        order = torch.randperm(len(x))
        for start in range(0, len(x) - BATCH + 1, BATCH):
            optimizer.param_groups[0]["lr"] = RATE * rate_at((step + 1) / (steps + 1))
            batch = x[order[start : start + BATCH]]
            recon, values, indices, pre = sae(batch)
            error = batch - recon
            loss = error.square().sum(1).mean() / variance
            dead = (unused > DEAD_AFTER).nonzero().squeeze(1)
            total = loss
            if len(dead):
                aux, chosen = pre[:, dead].topk(min(AUX_K, len(dead)), sorted=False)
                missed = error.detach() - sae.decode(aux.relu(), dead[chosen])
                total = loss + AUX_WEIGHT * missed.square().sum(1).mean() / error.detach().square().sum(1).mean()
            optimizer.zero_grad()
            total.backward()
            sae.project_decoder_gradient()
            optimizer.step()
            sae.normalize_decoder()
            unused += BATCH
            unused[indices[values > 0]] = 0
            step += 1
            if step % 200 == 0:
                seconds = time.time() - started
                print(f"step {step}/{steps} FVU {loss.item():.4f} dead {len(dead)} {seconds:.0f} s", flush=True)
    # Decoder rows keep norm 1, so activations take the units of the residual stream.
    with torch.no_grad():
        sae.b_enc.mul_(size)
        sae.b_dec.mul_(size)
    return sae


# ---- quality ---------------------------------------------------------------------------------------------------------


def cross_entropy(logits, rows):
    """Mean loss of the next tokens."""
    parts = [
        functional.cross_entropy(torch.from_numpy(np.array(logit[:-1])), torch.tensor(row[1:]), reduction="sum")
        for logit, row in zip(logits, rows, strict=True)
    ]
    return sum(part.item() for part in parts) / sum(len(row) - 1 for row in rows)


def loss_with(model, rows, layer, replacement=None):
    """Loss of the model with the residual stream after `layer` replaced, row by row."""
    logits, position = [], 0
    for row in rows:
        with model.trace(row) as t:
            if replacement is not None:
                t.layers[layer].resid_post = replacement[position : position + len(row)].numpy()
            saved = t.logits.save()
        position += len(row)
        logits.append(saved.value)
    return cross_entropy(logits, rows)


@torch.no_grad()
def evaluate(model, sae, rows, layer, x):
    recon, values, indices, _ = (part.detach() for part in sae(x))
    active = values > 0
    counts = torch.bincount(indices[active], minlength=sae.W_dec.shape[0])
    density = counts / len(x)
    mean = x.mean(0)
    variance = (x - mean).square().sum()
    base = loss_with(model, rows, layer)
    spliced = loss_with(model, rows, layer, recon)
    zero = loss_with(model, rows, layer, torch.zeros_like(x))
    average = loss_with(model, rows, layer, mean.expand_as(x).contiguous())
    return {
        "tokens": len(x),
        "explained_variance": round(1 - ((x - recon).square().sum() / variance).item(), 4),
        "cosine": round(functional.cosine_similarity(x, recon).mean().item(), 4),
        "l0": round(active.sum(1).float().mean().item(), 2),
        "features_never_active": int((counts == 0).sum()),
        "features_active_on_over_10_percent": int((density > 0.1).sum()),
        "median_density": round(density.median().item(), 5),
        "ce": round(base, 4),
        "ce_spliced": round(spliced, 4),
        "ce_zero_ablated": round(zero, 4),
        "ce_mean_ablated": round(average, 4),
        "ce_recovered_against_zero": round((zero - spliced) / (zero - base), 4),
        "ce_recovered_against_mean": round((average - spliced) / (average - base), 4),
    }


# ---- files -----------------------------------------------------------------------------------------------------------


def save(sae, layer, out):
    """Rounds the weights to f16, in `sae` too, and writes both files."""
    weights = {name: p.detach().half().contiguous() for name, p in sae.named_parameters()}
    sae.load_state_dict({name: weight.float() for name, weight in weights.items()})
    save_file(weights, os.path.join(out, "sae_weights.safetensors"))
    features, d_in = sae.W_dec.shape
    config = {
        "architecture": "topk",
        "d_in": d_in,
        "d_sae": features,
        "k": sae.k,
        "dtype": "float16",
        "device": "cpu",
        "apply_b_dec_to_input": True,
        "normalize_activations": "none",
        "reshape_activations": "none",
        "rescale_acts_by_decoder_norm": False,
        "metadata": {
            "model_name": "builtin",
            "hook_name": f"blocks.{layer}.hook_resid_post",
            "hook_head_index": None,
            "context_size": CONTEXT,
            "prepend_bos": False,
        },
    }
    with open(os.path.join(out, "cfg.json"), "w", encoding="utf8") as file:
        file.write(json.dumps(config, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stories")
    parser.add_argument("out")
    parser.add_argument("--layer", type=int, default=3)
    parser.add_argument("--features", type=int, default=2048)
    parser.add_argument("--k", type=int, default=16)
    parser.add_argument("--stories", dest="count", type=int, default=3000, help="stories to train on")
    parser.add_argument("--epochs", type=int, default=6)
    arguments = parser.parse_args()
    os.makedirs(arguments.out, exist_ok=True)
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)

    started = time.time()
    model = pellucid.load()
    rows = tokenize(model, read_stories(arguments.stories)[: HELD_OUT + arguments.count])
    held_out, rows = rows[:HELD_OUT], rows[HELD_OUT:]
    x = capture(model, rows, arguments.layer)
    print(f"{len(x)} tokens captured in {time.time() - started:.0f} s", flush=True)
    sae = train(x, arguments.features, arguments.k, arguments.epochs)
    save(sae, arguments.layer, arguments.out)
    quality = evaluate(model, sae, held_out, arguments.layer, capture(model, held_out, arguments.layer))
    print(json.dumps(quality, indent=2))
    print(f"{time.time() - started:.0f} s in total")


if __name__ == "__main__":
    main()
