"""Shared fixtures: the built-in model, real weights, tiny models and prompts."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import pellucid

# Torch is optional; its tests run only if it is installed.
collect_ignore = [] if find_spec("torch") else ["test_torch.py"]

STORY = "Once upon a time, there was a little girl named Lily."
"""13 tokens; the built-in model continues with " She loved to play outside"."""
DOG = "Tom saw a dog. The"
BIRD = "Lily saw a bird in the tree. The"
REPOSITORY = Path(__file__).resolve().parents[2]
GOLDEN = REPOSITORY / "tests" / "golden" / "models"


@pytest.fixture(scope="session")
def model() -> pellucid.Model:
    """The built-in model."""
    return pellucid.load()


@pytest.fixture(scope="session")
def smollm2() -> pellucid.Model:
    """SmolLM2-135M: real trained weights, downloaded by name on the first run and cached."""
    return pellucid.load(pellucid.pull("smollm2-135m"))


@pytest.fixture(scope="session")
def logits(model):
    """The last position's logits of a prompt."""

    def of(prompt, model=model) -> np.ndarray:
        with model.trace(prompt) as t:
            last = t.logits[:, -1].save()
        return last.value

    return of


@pytest.fixture(scope="session", params=["gpt2", "gpt_neox", "llama", "mixtral"])
def family(request) -> pellucid.Model:
    """Tiny models: LayerNorm and learned positions, parallel blocks, grouped-query attention, MoE."""
    return pellucid.load(GOLDEN / request.param)


@pytest.fixture(scope="session")
def gpt2() -> pellucid.Model:
    """A tiny model with LayerNorm, biases everywhere and learned positions."""
    return pellucid.load(GOLDEN / "gpt2")


@pytest.fixture
def pair() -> list[str]:
    """Two prompts of 13 tokens; the built-in model continues with the name that occurs only once."""
    return [
        "Lily and Tom went to the park. Lily gave the ball to",
        "Tom and Lily went to the park. Tom gave the ball to",
    ]


@pytest.fixture
def tokens() -> np.ndarray:
    """Two rows of token ids that are valid in every model."""
    return np.array([[1, 5, 9, 3, 7], [2, 8, 6, 4, 9]])
