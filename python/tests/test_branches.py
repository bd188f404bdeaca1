"""Branches are bit-identical to whole runs."""

from itertools import product

import numpy as np
import pytest
from conftest import BIRD, DOG, STORY

import pellucid


def test_a_branch_is_a_trace_from_the_middle(model):
    base = model.base(STORY)
    seen = []
    for block in (base.branch(), model.trace(STORY)):
        with block as t:
            t.layers[3].resid_post[:, 5] *= 2.0
            early, late = t.layers[1].resid_post.save(), t.layers[4].mlp_out.save()
            norm, logits = t.layers[4].resid_post.norm(axis=-1).save(), t.logits[:, -1].save()
        seen.append([value.value for value in (early, late, norm, logits)])
    assert all(np.array_equal(a, b) for a, b in zip(*seen, strict=True))


def test_a_sweep_patches_every_layer_and_position(model):
    with model.trace(DOG) as t:
        clean = t.cache("layers.*.resid_post")

    def patch(t, layer, position):
        t.layers[layer].resid_post[:, position] = clean[f"layers.{layer}.resid_post"][position]
        return t.logits[:, -1].save()

    cells = list(product(range(model.n_layers), range(6)))
    swept = model.sweep(BIRD, patch, cells)
    assert len(swept) == len(cells)
    for (layer, position), logits in zip(cells[::7], swept[::7], strict=True):
        with model.trace(BIRD) as t:
            alone = patch(t, layer, position)
        assert np.array_equal(logits.value, alone.value)


def test_a_base_has_the_models_standing_edits(model):
    with model.edit() as e:
        e.layers[0].resid_post[:, 0] = 0
    (seen,) = e.model.sweep(STORY, lambda t, _: t.logits[:, -1].save(), [0])
    with e.model.trace(STORY) as t:
        expected = t.logits[:, -1].save()
    assert np.array_equal(seen.value, expected.value)


def test_invalid_branches(model):
    with pytest.raises(pellucid.InputError, match="one prompt"):
        model.base([STORY, DOG])
    with pytest.raises(pellucid.PlanError, match="position 99"):
        model.sweep(STORY, lambda t, position: t.layers[0].resid_post[:, position].save(), [1, 99])
    with pytest.raises(ZeroDivisionError):
        model.sweep(STORY, lambda t, _: t.call(lambda h: 1 / 0, t.layers[0].resid_post).save(), [0])
