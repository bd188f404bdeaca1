"""Attention heads: where each attends to from the last position, and the effect of ablating it.

It prints:

    logit difference Tom - Lily: 4.36; heads with the largest effect:
    head   attends to        decrease if ablated
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
difference = logits[0, -1, tom] - logits[0, -1, lily]

# Ablate each head (zero its z) in a row of its own; all rows run in one pass.
with model.trace([prompt] * len(heads)) as t:
    for row, (layer, head) in enumerate(heads):
        t.layers[layer].z[row, :, head] = 0
    last = t.logits[:, -1].save()
decreases = [difference - (row[tom] - row[lily]) for row in last.value]

print(f"logit difference Tom - Lily: {difference:.2f}; heads with the largest effect:")
print("head   attends to        decrease if ablated")
for (layer, head), decrease in sorted(zip(heads, decreases, strict=True), key=lambda pair: -abs(pair[1]))[:6]:
    row = cache["pattern", layer][0, head, -1]
    position = int(row.argmax())
    print(f"L{layer}H{head}   {position:>2} {words[position]:<8} {row[position]:.2f}  {decrease:+.2f}")
