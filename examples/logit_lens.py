"""Logit lens: the prediction from the residual stream before each layer and after the last.

It prints:

    resid       top tokens                  p( Tom)  rank
    0_pre        to| and| for                 0.000   249
    1_pre        the| a| be                   0.000    53
    2_pre        the| his| her                0.002    14
    3_pre        the| his| Lily               0.002    15
    4_pre        his| her| the                0.003    11
    5_pre        her| the| him                0.002     7
    final_post   Tom| Max| her                0.656     0
"""

import numpy as np
import pellucid

model = pellucid.load()
prompt = "Lily and Tom went to the park. Lily gave the ball to"
answer = model.to_single_token(" Tom")

logits, cache = model.run_with_cache(prompt, names_filter=["blocks.*.hook_resid_pre", "resid_post5"])
probs, labels = cache.logit_lens(pos_slice=-1, return_labels=True)

print(f"{'resid':<10}  {'top tokens':<26}  p( Tom)  rank")
for label, row in zip(labels, probs[:, 0], strict=True):
    best = "|".join(model.to_string(token) for token in np.argsort(-row)[:3])
    print(f"{label:<10}  {best:<26}  {row[answer]:7.3f}  {(row > row[answer]).sum():4}")
