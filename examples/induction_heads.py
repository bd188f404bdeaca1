"""Induction heads: on a repeated random sequence, which heads attend to the token after the
previous occurrence?

It prints:

    layer  to the previous token     to the token after the previous occurrence
        0  0.06  0.07  0.09  0.11      0.03  0.03  0.02  0.02
        1  0.78  0.96  0.09  0.38      0.00  0.00  0.00  0.00
        2  0.04  0.04  0.10  0.17      0.78  0.84  0.02  0.01
        3  0.31  0.11  0.13  0.13      0.00  0.01  0.01  0.02
        4  0.07  0.11  0.09  0.09      0.04  0.02  0.01  0.01
        5  0.08  0.08  0.09  0.07      0.04  0.04  0.02  0.05
    loss in the first half 10.0, in the second 2.1
"""

import numpy as np
import pellucid

model = pellucid.load()
length = 25
half = np.random.default_rng(0).integers(300, model.cfg.d_vocab, size=(4, length))
tokens = np.concatenate([half, half], axis=1)

_, cache = model.run_with_cache(tokens, return_type=None, names_filter="blocks.*.attn.hook_pattern")
patterns = cache.stack_activation("pattern")  # [layers, batch, heads, queries, keys]


def mean_attention(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Mean attention probability of each head for these (query, key) pairs: `[layers, heads]`."""
    return patterns[..., queries, keys].mean(axis=(1, -1))


second = np.arange(length, 2 * length)
previous = mean_attention(np.arange(1, 2 * length), np.arange(2 * length - 1))
induction = mean_attention(second, second - length + 1)

print("layer  to the previous token     to the token after the previous occurrence")
for layer in range(model.cfg.n_layers):
    before, after = ("  ".join(f"{share:.2f}" for share in shares[layer]) for shares in (previous, induction))
    print(f"{layer:5}  {before}      {after}")

with model.trace(tokens) as t:
    log_probs = t.logits.log_softmax().save()
losses = -np.take_along_axis(np.stack(log_probs.value)[:, :-1], tokens[:, 1:, None], axis=-1)[..., 0]
print(f"loss in the first half {losses[:, : length - 1].mean():.1f}, in the second {losses[:, length:].mean():.1f}")
