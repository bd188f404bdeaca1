"""Steering specs and conditions: the same results as the plans that they stand for."""

from __future__ import annotations

import numpy as np
import pytest

import pellucid

STORY = "Tom saw a dog. The"
SITE = "layers.2.resid_post"


@pytest.fixture(scope="module")
def model() -> pellucid.Model:
    return pellucid.load()


def direction() -> np.ndarray:
    return np.sin(np.arange(128, dtype=np.float32))


def spec(**operation: object) -> dict[str, object]:
    return {"layers": {"2": {"operations": [operation]}}}


def test_a_spec_equals_its_taps(model: pellucid.Model) -> None:
    v = direction()
    add = spec(type="add", vector=v, scale=2.0)
    taps = [{"site": SITE, "add": {"vector": v.tolist(), "scale": 2.0}}]
    by_spec = model.run(STORY, capture=SITE, steer=add)[SITE]
    assert np.array_equal(by_spec, model.run(STORY, taps, capture=SITE)[SITE])
    assert not np.array_equal(by_spec, model.run(STORY, capture=SITE)[SITE])
    # A spec is accepted wherever a plan is.
    assert np.array_equal(by_spec, model.run(STORY, add, capture=SITE)[SITE])
    assert np.array_equal(by_spec, model.edit(add).run(STORY, capture=SITE)[SITE])
    steered = model.generate(STORY, max_new=6, steer=add).result
    assert steered.tokens == model.edit(add).generate(STORY, max_new=6).result.tokens
    empty = spec(type="add", vector=v, scale=0.0)
    assert model.generate(STORY, max_new=6, steer=empty).text == model.generate(STORY, max_new=6).text


def test_marks_agree_with_the_activations(model: pellucid.Model) -> None:
    v = direction()
    when = {"site": SITE, "direction": v, "above": 0.0}
    prompts = [STORY, "Lily saw a bird."]
    captures = model.run(prompts, [{"when": when, "mark": "up"}], capture=SITE)
    expected = [
        (row, position) for row, h in enumerate(captures[SITE]) for position in range(len(h)) if h[position] @ v > 0
    ]
    assert expected
    assert [(mark.row, mark.position) for mark in captures.marks] == expected
    assert {(mark.name, mark.site) for mark in captures.marks} == {("up", SITE)}
    assert all(
        np.isclose(mark.value, captures[SITE][mark.row][mark.position] @ v, atol=1e-4) for mark in captures.marks
    )
    generated = model.generate(prompts, max_new=3, steer=[{"when": when, "mark": "up"}]).result
    for row, result in enumerate(generated):
        in_prompt = [mark.position for mark in result.marks if mark.position < len(result.prompt)]
        assert in_prompt == [position for of, position in expected if of == row]


def test_a_condition_ends_a_row(model: pellucid.Model) -> None:
    stop = [{"when": {"site": SITE, "direction": direction(), "above": -1e9}, "phase": "decode", "stop": True}]
    free = model.generate(STORY, max_new=6, eos=False).result
    result = model.generate(STORY, max_new=6, eos=False, steer=stop).result
    assert (free.finish, result.finish) == ("length", "condition")
    assert result.tokens == free.tokens[:2]


@pytest.mark.parametrize(
    ("steer", "words"),
    [
        (spec(type="add", vector=np.full(128, np.nan)), "NaN"),
        (spec(type="add", vector=np.zeros(128)), "norm 0"),
        (spec(type="add", vector=np.ones(127)), "127"),
        (spec(type="cap", vector=np.ones(128)), "`cap` needs"),
        ({"layers": {"40": {"operations": [{"type": "add", "vector": [1.0] * 128}]}}}, "layers.40"),
        ([{"when": {"site": "logits", "direction": [1.0] * 2048, "above": 0}, "site": SITE, "zero": True}], "too late"),
    ],
)
def test_what_cannot_work_is_refused(model: pellucid.Model, steer: object, words: str) -> None:
    with pytest.raises(pellucid.Error, match=words):
        model.generate(STORY, max_new=2, steer=steer).text  # noqa: B018
