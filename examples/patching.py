"""Activation patching: which layers and positions determine who receives the ball.

Writes the clean prompt's residual stream into the corrupted prompt, at one layer and position at a
time. 0 means that the corrupted prompt's logit difference is unchanged, 1 that it becomes the clean
prompt's. All patches run as rows of one pass.

It prints:

    position    layer 0  layer 1  layer 2  layer 3  layer 4  layer 5
      0 Tom        -0.6     -0.6     -0.7     -0.4     -0.4     -0.4
      1  and        0.0      0.0      0.2     -0.1     -0.1      0.0
      2  Lily       0.6      0.6      0.6      0.3      0.3      0.5
      3  went       0.0      0.0      0.0      0.0      0.0      0.0
      4  to         0.0      0.0      0.0      0.0      0.0      0.0
      5  the        0.0      0.0      0.0      0.0      0.0      0.0
      6  park       0.0      0.0      0.0      0.0      0.0      0.0
      7 .           0.0      0.0      0.0      0.0      0.0      0.0
      8  Tom        0.9      0.9      0.9      1.0      1.0      0.0
      9  gave       0.0      0.0      0.0      0.0      0.0      0.0
     10  the        0.0      0.0      0.0      0.0      0.0      0.0
     11  ball       0.0      0.0      0.0      0.0      0.0      0.0
     12  to         0.0      0.0      0.0     -0.1     -0.2      0.9
"""

from typing import Any

import pellucid

model = pellucid.load()
clean = "Lily and Tom went to the park. Lily gave the ball to"
corrupted = "Tom and Lily went to the park. Tom gave the ball to"
tom, lily = model.to_single_token(" Tom"), model.to_single_token(" Lily")
words = model.to_str_tokens(corrupted)

_, cache = model.run_with_cache(clean, return_type=None, names_filter="blocks.*.hook_resid_pre")


def difference(logits: Any) -> Any:
    """The logit difference Tom - Lily."""
    return logits[..., tom] - logits[..., lily]


saved = {}
with model.trace() as t:
    for layer in range(model.n_layers):
        for position in range(len(words)):
            with t.row(corrupted):
                t.layers[layer].resid_pre[:, position] = cache["resid_pre", layer][0, position]
                saved[layer, position] = difference(t.logits[:, -1, :]).save()

low = difference(model(corrupted)[0, -1])
high = difference(model(clean)[0, -1])
print(f"{'position':<12}" + "".join(f"layer {layer}  " for layer in range(model.n_layers)).rstrip())
for position, word in enumerate(words):
    effects = [float((saved[layer, position].value - low) / (high - low)) for layer in range(model.n_layers)]
    print(f"{position:>3} {word:<8}" + "".join(f"{round(effect, 1) + 0.0:7.1f}  " for effect in effects).rstrip())
