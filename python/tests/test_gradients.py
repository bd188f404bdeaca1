"""Gradients (behavior 19), against finite differences."""

import numpy as np
import pytest
from conftest import BIRD, DOG, STORY

import pellucid


def loss_of(t, model):
    logits = t.logits[:, -1]
    return logits[:, model.to_single_token(" She")] - logits[:, model.to_single_token(" He")]


def test_a_gradient_matches_finite_differences(model):
    with model.trace(STORY) as t:
        stream = t.layers[2].resid_post
        loss = loss_of(t, model)
        with loss.backward():
            gradient = stream.grad.save()
        value, activation = loss.save(), stream.save()
    direction = np.random.default_rng(0).normal(size=activation.value.shape).astype(np.float32)
    step = 1e-2
    losses = []
    for sign in (1, -1):
        with model.trace(STORY) as t:
            t.layers[2].resid_post = activation.value + sign * step * direction
            losses.append(loss_of(t, model).save())
    finite_difference = (float(losses[0].value) - float(losses[1].value)) / (2 * step)
    assert gradient.value.shape == activation.value.shape
    assert np.isclose((gradient.value * direction).sum(), finite_difference, rtol=1e-2)
    assert np.isfinite(value.value)


def test_one_pass_has_gradients_at_many_sites(model):
    with model.trace(STORY) as t:
        sites = [t.layers[layer].resid_post for layer in range(model.n_layers)]
        loss = loss_of(t, model)
        gradients = [gradient.save() for gradient in t.gradient(loss, sites)]
        named = t.gradient(loss, "blocks.1.hook_resid_post").save()
    assert all(gradient.value.any() for gradient in gradients)
    assert np.array_equal(named.value, gradients[1].value)
    # Only the last position of the last layer reaches the loss.
    assert not gradients[-1].value[:-1].any()


def test_gradients_of_the_sum_of_logits(model):
    with model.trace(STORY) as t:
        with t.logits.sum().backward():
            gradient = t.layers[-1].resid_post.grad.save()
            ones = t.logits.grad.save()
    assert gradient.value.any()
    assert (ones.value == 1.0).all()


def test_two_losses_have_two_gradients(model):
    with model.trace(STORY) as t:
        loss = loss_of(t, model)
        stream = t.layers[3].resid_post
        with loss.backward():
            one = stream.grad.save()
        with (loss * 3.0).backward():
            three = stream.grad.save()
    assert np.allclose(three.value, 3 * one.value, rtol=1e-4, atol=1e-6)


def test_a_gradient_is_edited_in_the_backward_pass(model):
    with model.trace(STORY) as t:
        with loss_of(t, model).backward():
            t.layers[4].resid_post.grad[:] = 0
            late, early = t.layers[4].resid_post.grad.save(), t.layers[1].resid_post.grad.save()
    assert not late.value.any()
    assert not early.value.any()
    with model.trace(STORY) as t:
        loss = loss_of(t, model)
        with loss.backward():
            plain = t.layers[1].resid_post.grad.save()
    with model.trace(STORY) as t:
        with loss_of(t, model).backward():
            t.layers[4].resid_post.grad *= 2.0
            doubled = t.layers[1].resid_post.grad.save()
    assert np.allclose(doubled.value, 2 * plain.value, rtol=1e-4, atol=1e-6)


def test_gradients_of_several_rows(model):
    with model.trace([DOG, BIRD]) as t:
        loss = loss_of(t, model).sum()
        gradient = t.gradient(loss, t.layers[2].resid_post).save()
    alone = []
    for prompt in (DOG, BIRD):
        with model.trace(prompt, recompute=True) as t:
            alone.append(t.gradient(loss_of(t, model), t.layers[2].resid_post).save())
    for row, one in zip(gradient.value, alone, strict=True):
        assert np.allclose(row, one.value, rtol=1e-4, atol=1e-6)


def test_the_gradient_of_a_weight_is_the_sum_over_tokens_and_rows(model):
    with model.trace([DOG, BIRD]) as t:
        loss = loss_of(t, model).sum()
        with loss.backward():
            down = t.weight_grad("layers.3.mlp.down").save()
            gain = t.weight_grad("final_norm.gain").save()
            by_output = t.layers[3].mlp_out.grad.save()
        read = t.layers[3].mlp_act.save()
        twice = t.weight_grad("layers.3.mlp.down", of=2.0 * loss).save()
    expected = sum(dy.T @ x for dy, x in zip(by_output.value, read.value, strict=True))
    assert down.value.shape == model.weights["layers.3.mlp.down"] == expected.shape
    assert np.allclose(down.value, expected, atol=1e-5 * np.abs(expected).max())
    assert np.allclose(twice.value, 2 * down.value, rtol=1e-5)
    assert gain.value.shape == (model.d_model,)
    assert gain.value.any()


def test_invalid_gradients_of_weights(model):
    with pytest.raises(pellucid.PlanError, match=r"did you mean `layers\.3\.mlp\.down`"), model.trace(DOG) as t:
        t.weight_grad("layers.3.mlp.dwon", of=loss_of(t, model)).save()
    with pytest.raises(pellucid.RecordError, match="backward"), model.trace(DOG) as t:
        t.weight_grad("layers.3.mlp.down").save()
    with pytest.raises(pellucid.PlanError, match="a second time"), model.trace(DOG) as t:
        lens = t.unembed(t.layers[2].resid_post)[:, -1, 0]
        t.weight_grad("final_norm.gain", of=lens).save()
