"""Gradients in caches, and backward hooks."""

import numpy as np
import pytest

import pellucid


@pytest.fixture
def difference(model):
    """The logit difference between the two names, summed over the prompts."""
    tom, lily = model.to_single_token(" Tom"), model.to_single_token(" Lily")
    return lambda t: (t.logits[:, -1, tom] - t.logits[:, -1, lily]).sum()


def test_a_cache_holds_gradients_of_a_metric(model, pair, difference):
    names = lambda name: name.endswith(("hook_resid_post", "hook_z"))  # noqa: E731
    logits, cache = model.run_with_cache(pair, names_filter=names, incl_bwd=True, metric=difference)
    tom, lily = model.to_single_token(" Tom"), model.to_single_token(" Lily")
    assert np.isclose(cache.metric, (logits[:, -1, tom] - logits[:, -1, lily]).sum(), atol=1e-4)
    gradient = cache["blocks.2.hook_resid_post_grad"]
    assert gradient.shape == cache["resid_post", 2].shape
    with model.trace(pair) as t:
        traced = t.gradient(difference(t), t.layers[2].resid_post).save()
    assert np.array_equal(gradient, np.stack(traced.value))
    assert "blocks.2.attn.hook_z_grad" in list(cache)
    assert "12 activations and 12 gradients" in repr(cache)


def test_a_gradient_matches_finite_differences(model, pair, difference):
    _, cache = model.run_with_cache(pair[0], names_filter="resid_post2", incl_bwd=True, metric=difference)
    direction = np.random.default_rng(0).normal(size=cache["resid_post2"].shape).astype(np.float32)
    values = []
    for sign in (1, -1):
        hooks = [("resid_post2", lambda stream, hook, sign=sign: stream + sign * 1e-2 * direction)]
        values.append(
            model.run_with_cache(pair[0], names_filter="z5", incl_bwd=True, metric=difference, fwd_hooks=hooks)[
                1
            ].metric
        )
    finite_difference = (values[0] - values[1]) / 2e-2
    assert np.isclose((cache["resid_post2_grad"] * direction).sum(), finite_difference, rtol=2e-2, atol=1e-2)


def test_one_prompt_needs_no_sum(model, pair):
    token = model.to_single_token(" Tom")
    logits, cache = model.run_with_cache(
        pair[0], names_filter="z1", incl_bwd=True, metric=lambda t: t.logits[:, -1, token]
    )
    assert np.isclose(cache.metric, logits[0, -1, token], atol=1e-4)
    with pytest.raises(pellucid.PlanError, match=r"one per row \(2 rows\)[\s\S]*sum"):
        model.run_with_cache(pair, names_filter="z1", incl_bwd=True, metric=lambda t: t.logits[:, -1, token])


def test_the_loss_is_a_metric(model, pair):
    loss, cache = model.run_with_cache(pair, return_type="loss", names_filter="resid_post1", incl_bwd=True)
    assert np.isclose(cache.metric, loss)
    assert cache["resid_post1_grad"].any()
    assert not cache["resid_post1_grad"][:, -1].any()  # nothing is predicted from the last position


def test_positions_of_gradients(model, pair, difference):
    _, cache = model.run_with_cache(pair, names_filter="z1", incl_bwd=True, metric=difference)
    _, last = model.run_with_cache(pair, names_filter="z1", incl_bwd=True, metric=difference, pos_slice=-1)
    assert np.array_equal(last["z1_grad"], cache["z1_grad"][:, -1])


@pytest.mark.parametrize("count", [1, 2])
def test_backward_hooks(model, pair, difference, count):
    prompts = pair[:count]
    seen = {}

    def stop(gradient, hook):
        seen[hook.name] = gradient.shape
        return np.zeros_like(gradient)

    names = ["resid_post1", "resid_post3", "resid_post4"]
    _, cache = model.run_with_cache(
        prompts, names_filter=names, incl_bwd=True, metric=difference, bwd_hooks=[("resid_post3", stop)]
    )
    assert seen == {"blocks.3.hook_resid_post": (count, 13, 128)}
    assert not cache["resid_post3_grad"].any()
    assert not cache["resid_post1_grad"].any()
    assert cache["resid_post4_grad"].any()


def test_a_block_of_hooks_on_gradients(model, pair, difference):
    _, plain = model.run_with_cache(pair, names_filter="resid_post1", incl_bwd=True, metric=difference)
    with model.hooks(bwd_hooks=[("resid_post4", lambda gradient, hook: 2 * gradient)]):
        _, doubled = model.run_with_cache(pair, names_filter="resid_post1", incl_bwd=True, metric=difference)
    assert np.allclose(doubled["resid_post1_grad"], 2 * plain["resid_post1_grad"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2])
def test_gradients_do_not_flow_through_python_functions(model, pair, difference, count):
    def double(stream, hook):
        return 2 * stream

    def run(names, function):
        hooks = [("resid_post2", function)]
        return model.run_with_cache(
            pair[:count], names_filter=names, incl_bwd=True, metric=difference, fwd_hooks=hooks
        )[1]

    with pytest.raises(
        pellucid.InputError, match=r"hook_resid_post.*flow through the hook at `blocks\.2\.hook_resid_post`"
    ):
        run("resid_post1", double)
    assert run("resid_post3", double)["resid_post3_grad"].any()
    assert run("resid_post2", double)["resid_post2_grad"].any()
    assert run("resid_post1", lambda stream, hook: None)["resid_post1_grad"].any()


def test_attribution_patching(model, pair, difference):
    """The gradient-based estimate of a patch has its peak where the patch has."""
    clean, corrupted = pair
    names = "blocks.*.hook_resid_pre"
    _, of_clean = model.run_with_cache(clean, names_filter=names)
    _, of_corrupted = model.run_with_cache(corrupted, names_filter=names, incl_bwd=True, metric=difference)
    change = of_clean["resid_pre", 5] - of_corrupted["resid_pre", 5]
    estimate = (change * of_corrupted["blocks.5.hook_resid_pre_grad"]).sum(axis=(0, 2))
    assert estimate.argmax() == 12  # in the last layer, what matters is at the end
