"""Steering: a direction from sad and happy sentences, added to the stream while the model writes.

It prints:

    factor  p( sad)  the model goes on
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
    """The mean of what leaves the layer at the last position of each prompt."""
    return model.get_token_activations(prompts, layers=[layer])[0].mean(axis=0)


direction = mean_activation(sad) - mean_activation(happy)
sad_token = model.to_single_token(" sad")
prompt = "One day, Lily went to the park. She was"

print("factor  p( sad)  the model goes on")
for factor in (-0.5, 0.0, 0.5, 1.0):
    steered = model.steer(layer, direction, factor=factor)
    chance = steered.next_token_probs(prompt)[0, sad_token]
    print(f"{factor:6.1f}  {chance:7.3f}  {steered.generate(prompt, max_new=10).text}")
