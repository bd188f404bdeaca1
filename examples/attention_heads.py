"""Attention heads: where each looks from the last position, and what the answer loses without it.

It prints:

    Tom is ahead of Lily by 4.36; the heads that matter most:
    head   looks at          loss without it
    L4H1    8  Lily    0.92  +5.04
    L0H3    9  gave    0.64  +3.57
    L5H3    2  Tom     0.95  +3.06
    L0H2    9  gave    0.17  -1.11
    L2H2    9  gave    0.73  -0.95
    L1H0    9  gave    0.97  +0.82
"""

import pellucid

model = pellucid.load()
prompt = "Lily and Tom went to the park. Lily gave the ball to"
tom, lily = model.to_single_token(" Tom"), model.to_single_token(" Lily")
words = model.to_str_tokens(prompt)
heads = [(layer, head) for layer in range(model.cfg.n_layers) for head in range(model.cfg.n_heads)]

_, cache = model.run_with_cache(prompt, return_type=None, names_filter="blocks.*.attn.hook_pattern")
logits = model(prompt)
whole = logits[0, -1, tom] - logits[0, -1, lily]

# One row for each head, with its part of z set to zero; all of them run in one pass.
with model.trace([prompt] * len(heads)) as t:
    for row, (layer, head) in enumerate(heads):
        t.layers[layer].z[row, :, head] = 0
    last = t.logits[:, -1].save()
losses = [whole - (row[tom] - row[lily]) for row in last.value]

print(f"Tom is ahead of Lily by {whole:.2f}; the heads that matter most:")
print("head   looks at          loss without it")
for (layer, head), loss in sorted(zip(heads, losses, strict=True), key=lambda pair: -abs(pair[1]))[:6]:
    row = cache["pattern", layer][0, head, -1]
    place = int(row.argmax())
    print(f"L{layer}H{head}   {place:>2} {words[place]:<8} {row[place]:.2f}  {loss:+.2f}")
