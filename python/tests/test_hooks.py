"""Hooks: the arrays they receive, the edits they make, and that none stays installed."""

import threading
import traceback

import numpy as np
import pytest

import pellucid


def zero(activation, hook):
    activation[:] = 0


def halve(activation, hook):
    return activation * 0.5


def keep(activation, hook):
    return None


@pytest.fixture(params=["one prompt", "a batch"])
def prompts(request, pair):
    """One prompt and a batch: hooks behave the same for both."""
    return pair[:1] if request.param == "one prompt" else pair


def traced(model, prompts, edit):
    with model.trace(prompts) as t:
        edit(t)
        logits = t.logits.save()
    return np.stack(logits.value)


def test_a_hook_that_returns_nothing_changes_nothing(model, prompts):
    names = ("hook_z", "hook_resid_post", "hook_post", "hook_v", "hook_normalized")
    logits = model.run_with_hooks(prompts, fwd_hooks=[(lambda name: name.endswith(names), keep)])
    assert np.array_equal(logits, model(prompts))


def test_a_hook_sees_the_whole_batch(model, prompts):
    seen = {}

    def look(activation, hook):
        seen[hook.name] = (activation.shape, hook.layer())

    model.run_with_hooks(prompts, fwd_hooks=[("blocks.3.attn.hook_pattern", look), (("z", 2), look)])
    batch = len(prompts)
    assert seen == {
        "blocks.3.attn.hook_pattern": ((batch, 4, 13, 13), 3),
        "blocks.2.attn.hook_z": ((batch, 13, 4, 32), 2),
    }


def test_what_a_hook_returns_or_writes_takes_effect(model, prompts):
    def edit(t):
        for layer in range(model.n_layers):
            t.layers[layer].z *= 0.5
        t.layers[2].mlp_out_post = 0

    hooks = [("blocks.2.hook_mlp_out", zero), (lambda name: name.endswith("hook_z"), halve)]
    assert np.array_equal(model.run_with_hooks(prompts, fwd_hooks=hooks), traced(model, prompts, edit))


def test_one_head_at_one_position(model, prompts):
    def ablate(z, hook):
        z[:, -1, 3] = 0
        return z

    def edit(t):
        t.layers[1].z[:, -1, 3] = 0

    assert np.array_equal(model.run_with_hooks(prompts, fwd_hooks=[("z1", ablate)]), traced(model, prompts, edit))


def test_hooks_at_one_site_apply_in_list_order(model, prompts):
    def one(activation, hook):
        return activation + 1

    def double(activation, hook):
        return activation * 2

    seen = []
    hooks = [("resid_post1", one), ("resid_post1", double), ("resid_post1", lambda stream, hook: seen.append(stream))]
    _, plain = model.run_with_cache(prompts, names_filter="resid_post1")
    model.run_with_hooks(prompts, fwd_hooks=hooks)
    assert np.allclose(seen[0], (plain["resid_post1"] + 1) * 2, atol=1e-5)


def test_later_hooks_see_what_earlier_ones_did(model, prompts):
    seen = []
    hooks = [("resid_post3", lambda stream, hook: seen.append(stream)), ("resid_post1", zero)]
    model.run_with_hooks(prompts, fwd_hooks=hooks)
    assert not seen[0].any()


def test_a_hook_can_mix_prompts(model, pair):
    """Swapping the residual streams of two prompts swaps their logits."""

    def swap(stream, hook):
        return stream[::-1]

    swapped = model.run_with_hooks(pair, fwd_hooks=[("resid_post0", swap)])
    assert np.array_equal(swapped, model(pair)[::-1])

    def average(stream, hook):
        stream[:] = stream.mean(axis=0)

    averaged = model.run_with_hooks(pair, fwd_hooks=[("resid_post2", average)])
    assert np.array_equal(averaged[0], averaged[1])


def test_patching_from_a_cache(model, pair):
    _, clean = model.run_with_cache(pair[0])
    lily, tom = model.to_single_token(" Lily"), model.to_single_token(" Tom")

    def patch(stream, hook):
        stream[:, -1] = clean[hook.name][:, -1]

    corrupted = model(pair[1])[0, -1]
    patched = model.run_with_hooks(pair[1], fwd_hooks=[("resid_post5", patch)])[0, -1]
    assert corrupted[lily] > corrupted[tom]
    assert patched[tom] > patched[lily]
    assert np.allclose(patched, model(pair[0])[0, -1], atol=1e-4)


def test_the_cache_holds_activations_after_hooks(model, prompts):
    hooks = [("resid_post2", zero)]
    _, cache = model.run_with_cache(prompts, names_filter="blocks.*.hook_resid_post", fwd_hooks=hooks)
    assert not cache["resid_post", 2].any()
    assert not cache["resid_post", 5].any()
    assert cache["resid_post", 1].any()


def test_hooks_are_called_when_nothing_is_returned(model, prompts):
    seen = []
    hooks = [(lambda name: name.endswith("hook_z"), lambda z, hook: seen.append(hook.layer()))]
    assert model.run_with_hooks(prompts, return_type=None, fwd_hooks=hooks) is None
    assert seen == list(range(6))
    seen.clear()
    model.run_with_cache(prompts, return_type=None, names_filter="resid_post0", fwd_hooks=hooks)
    assert seen == list(range(6))
    seen.clear()
    model.run_with_hooks(prompts, stop_at_layer=2, fwd_hooks=hooks)
    assert seen == [0, 1]
    with pytest.raises(pellucid.SiteError, match=r"blocks\.4\.attn\.hook_z.*never be called"):
        model.run_with_hooks(prompts, stop_at_layer=2, fwd_hooks=[("z4", keep)])


def test_a_block_of_hooks(model, pair):
    plain = model(pair)
    with model.hooks(fwd_hooks=[("resid_post2", zero)]) as same:
        assert same is model
        assert not model(pair).any()
        assert not model.run_with_cache(pair[0])[1]["resid_post", 3].any()
        assert not model.run_with_hooks(pair, fwd_hooks=[("z4", halve)]).any()
        with model.trace(pair) as t:
            stream = t.layers[2].resid_post.save()
        assert not any(row.any() for row in stream.value)
        assert model.generate(pair[0], max_new=2).text != " Tom."
    assert np.array_equal(model(pair), plain)
    assert model.edits == ()


def test_a_trace_in_a_block_of_hooks_calls_them_once_with_all_prompts(model, pair):
    shapes = []

    def swap(stream, hook):
        shapes.append(stream.shape)
        return stream[::-1]

    expected = model.run_with_hooks(pair, fwd_hooks=[("resid_post0", swap)])
    shapes.clear()
    with model.hooks(fwd_hooks=[("resid_post0", swap)]):
        assert np.array_equal(traced(model, pair, lambda t: None), expected)
        captured = model.run(pair, capture="logits")
    assert np.array_equal(np.stack(captured["logits"]), expected)
    assert shapes == [(2, 13, 128)] * 2

    # Prompts of unequal length do not fit into one array.
    shapes.clear()
    with model.hooks(fwd_hooks=[("resid_post0", swap)]), model.trace([pair[0], pair[1] + " He"]) as t:
        t.logits.save()
    assert shapes == [(1, 13, 128), (1, 14, 128)]


def test_nested_blocks_of_hooks_combine(model, pair):
    with model.hooks(fwd_hooks=[("z1", halve)]):
        with model.hooks(fwd_hooks=[("z2", halve)]):
            both = model(pair)
        one = model(pair)
    assert np.array_equal(both, model.run_with_hooks(pair, fwd_hooks=[("z1", halve), ("z2", halve)]))
    assert np.array_equal(one, model.run_with_hooks(pair, fwd_hooks=[("z1", halve)]))


def test_a_block_that_raises_leaves_no_hook(model, pair):
    plain = model(pair)
    with pytest.raises(RuntimeError, match="mine"):
        with model.hooks(fwd_hooks=[("resid_post2", zero)]):
            raise RuntimeError("mine")
    assert np.array_equal(model(pair), plain)


def test_other_threads_do_not_see_the_hooks(model, pair):
    plain, elsewhere = model(pair), []
    with model.hooks(fwd_hooks=[("resid_post2", zero)]):
        thread = threading.Thread(target=lambda: elsewhere.append(model(pair)))
        thread.start()
        thread.join()
    assert np.array_equal(elsewhere[0], plain)


def test_an_edited_model_does_not_take_the_hooks_with_it(model, pair):
    with model.hooks(fwd_hooks=[("resid_post2", zero)]):
        steered = model.steer(1, np.zeros(128))
    assert np.array_equal(steered(pair), model(pair))


def test_hooks_see_standing_edits(model, pair):
    skipped, seen = model.skip_layers(1, 4), []
    skipped.run_with_hooks(pair[0], fwd_hooks=[("resid_post4", lambda stream, hook: seen.append(stream))])
    _, cache = model.run_with_cache(pair[0], names_filter="resid_post0")
    assert np.array_equal(seen[0], cache["resid_post0"])


def test_generation_under_a_hook(model, pair):
    shapes = []
    with model.hooks(fwd_hooks=[("resid_post2", lambda stream, hook: shapes.append(stream.shape))]):
        text = model.generate(pair[0], max_new=3).text
    assert text == model.generate(pair[0], max_new=3).text
    assert shapes == [(1, 13, 128), (1, 1, 128), (1, 1, 128)]


def test_a_hook_keeps_things_in_its_context(model, pair):
    points = []

    def first(z, hook):
        hook.ctx["mean"] = float(z.mean())
        points.append(hook)

    def second(z, hook):
        points.append(hook)

    model.run_with_hooks(pair, fwd_hooks=[("z1", first), ("z1", second)])
    assert points[0] is points[1]
    assert "mean" in points[1].ctx
    assert "hook_z" in repr(points[0])


def test_a_hook_that_raises_shows_its_own_traceback(model, prompts):
    def faulty(z, hook):
        return z[:, :, 99]

    with pytest.raises(IndexError) as caught:
        model.run_with_hooks(prompts, fwd_hooks=[("z2", faulty)])
    assert "faulty" in "".join(traceback.format_exception(caught.value))
    assert model(prompts).shape == (len(prompts), 13, 2048)


def test_a_hook_that_returns_another_shape(model, prompts):
    with pytest.raises(pellucid.PlanError, match=r"blocks\.2\.attn\.hook_z.*cut.*returned shape \[\d, 2, 4, 32\]"):

        def cut(z, hook):
            return z[:, :2]

        model.run_with_hooks(prompts, fwd_hooks=[("z2", cut)])


def test_a_hook_that_does_not_return_an_array(model, prompts):
    with pytest.raises(pellucid.PlanError, match=r"blocks\.2\.attn\.hook_z.*returned str.*not an array of numbers"):
        model.run_with_hooks(prompts, fwd_hooks=[("z2", lambda z, hook: "text")])


def test_a_hook_that_writes_nan(model, prompts):
    with pytest.raises(pellucid.PlanError, match="NaN"):
        model.run_with_hooks(prompts, fwd_hooks=[("z2", lambda z, hook: z * np.nan)])
