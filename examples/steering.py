"""Steering: adds the mean difference between sad and happy prompts to the residual stream during
generation.

It prints:

    factor  p( sad)  continuation
      -0.5    0.000   having a great time playing with her friends. They
       0.0    0.003   having a lot of fun. She saw a big
       0.5    0.129   very sad. Her mom told her to go to
       1.0    0.412   sad because she lost her favorite toy. Her mom
"""

import numpy as np
import pellucid

model = pellucid.load()
happy = ["Lily was very happy. She smiled and", "Tom was so happy and he laughed"]
sad = ["Lily was very sad. She cried and", "Tom was so sad and he cried"]
layer = 4


def mean_activation(prompts: list[str]) -> np.ndarray:
    """The mean of `resid_post` at the last position of the prompts: `[d_model]`."""
    return model.get_token_activations(prompts, layers=[layer])[0].mean(axis=0)


direction = mean_activation(sad) - mean_activation(happy)
sad_token = model.to_single_token(" sad")
prompt = "One day, Lily went to the park. She was"

print("factor  p( sad)  continuation")
for factor in (-0.5, 0.0, 0.5, 1.0):
    steered = model.steer(layer, direction, factor=factor)
    probability = steered.next_token_probs(prompt)[0, sad_token]
    print(f"{factor:6.1f}  {probability:7.3f}  {steered.generate(prompt, max_new=10).text}")
