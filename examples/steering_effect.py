"""Steering vectors: happy and sad words in 100 stories of the built-in model, by scale.

The vectors are extracted from the pairs of examples/steering/mood.jsonl and added after layer 2.

    scale  happy  sad
       -2      2   53
       -1      6   40
        0     25   20
        1     51    3
        2     64    0
"""

import json
import re
from pathlib import Path

import pellucid

PROMPTS = [
    "One day, Lily went to the park.",
    "Tom had a red ball.",
    "Once upon a time, there was a cat.",
    "Mia and Max went to the beach.",
]
HAPPY, SAD = r"\b(happy|smil|laugh|fun\b|glad)", r"\b(sad|cr(y|ied)|upset|scared)"

model = pellucid.load()
lines = (Path(__file__).parent / "steering" / "mood.jsonl").read_text().splitlines()
mood = model.extract_steering(map(json.loads, lines)).select([2])
print("scale  happy  sad")
for scale in (-2, -1, 0, 1, 2):
    stories = model.generate(
        PROMPTS * 25, max_new=40, temperature=0.8, steer=scale * mood
    ).text
    happy, sad = (
        sum(bool(re.search(words, story)) for story in stories)
        for words in (HAPPY, SAD)
    )
    print(f"{scale:>5}  {happy:>5}  {sad:>3}")
