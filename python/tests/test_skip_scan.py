"""Skipping layers, stopping early, and shapes without weights (behaviors 12 to 14)."""

import numpy as np
import pytest
from conftest import BIRD, DOG, STORY

import pellucid


def test_a_skipped_layer_outputs_the_given_value(model):
    with model.trace(STORY) as t:
        stream = t.layers[0].resid_post
        t.layers[1].skip(stream)
        t.layers[2].skip(t.layers[1].resid_post)
        t.layers[3].skip()
        first, second = t.layers[1].resid_post.save(), t.layers[2].resid_post.save()
        third = t.layers[3].resid_post.save()
        original = stream.save()
    assert all(np.array_equal(skipped.value, original.value) for skipped in (first, second, third))


def test_an_edit_before_a_skipped_layer_does_not_matter(model):
    with model.trace(STORY) as t:
        value = t.layers[0].resid_post * 1.0
        t.layers[1].resid_pre = 0
        t.layers[1].skip(value)
        after = t.layers[1].resid_post.save()
        written = value.save()
    assert np.array_equal(after.value, written.value)


def test_a_skipped_layer_has_no_inner_activations(model):
    with pytest.raises(pellucid.PlanError, match=r"layers\.1"), model.trace(STORY) as t:
        t.layers[1].skip(t.layers[0].resid_post)
        t.layers[1].attn_out.save()


def test_two_prompts_skip_with_their_own_values(model):
    with model.trace() as t:
        with t.row(DOG):
            t.layers[1].skip(t.layers[0].resid_post * 2.0)
            a, twice = t.layers[1].resid_post.save(), (t.layers[0].resid_post * 2.0).save()
        with t.row(BIRD):
            t.layers[1].skip(0.0)
            b = t.layers[1].resid_post.save()
    assert np.array_equal(a.value, twice.value)
    assert not b.value.any()


def test_a_scan_infers_shapes_without_weights():
    model = pellucid.load(lazy=True)
    with model.scan(STORY) as t:
        attention_in, attention_out = t.layers[0].attn_in.save(), t.layers[0].attn_out.save()
        scores = t.layers[0].attn_scores.save()
        t.layers[0].resid_post[:, -1:] = np.zeros((1, model.d_model))
        shorter = t.layers[0].resid_post[:, -1:].save()
        product = (t.layers[1].resid_post @ np.zeros((model.d_model, 7))).save()
    assert attention_in.shape == attention_out.shape == (13, model.d_model)
    assert scores.shape == (scores._info.inner[0], 13, 13)
    assert shorter.shape == (1, model.d_model)
    assert product.shape == (13, 7)
    assert not model.loaded
    with pytest.raises(pellucid.RecordError, match="shapes, not values"):
        attention_in.value  # noqa: B018 - reading it raises
    model.trace(STORY).__enter__().__exit__(None, None, None)
    assert model.loaded


def test_a_scan_rejects_what_a_run_would_reject(model):
    with pytest.raises(pellucid.PlanError, match="shape"), model.scan(STORY) as t:
        t.layers[0].resid_post = np.zeros(7)
    with pytest.raises(pellucid.InputError, match="no input"), model.scan() as t:
        pass


def test_several_prompts_have_several_shapes(model):
    with model.scan([DOG, STORY]) as t:
        stream = t.layers[0].resid_post.save()
        joined = t.layers[0].resid_post[:, -1].mean(axis=0).save()
    assert stream.shape == [(6, model.d_model), (13, model.d_model)]
    assert joined.shape == (model.d_model,)
