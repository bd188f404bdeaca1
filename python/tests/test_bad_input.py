"""Bad input raises an error that names the problem, the site and a hint; nothing is silently
ignored.
"""

import gc
import warnings

import numpy as np
import pytest
from conftest import DOG, STORY

import pellucid


def refused(model, write, *, match, kind=pellucid.PlanError, prompts=STORY):
    with pytest.raises(kind, match=match) as caught, model.trace(prompts) as t:
        write(t)
    return caught.value


@pytest.mark.parametrize(
    ("write", "match"),
    [
        (lambda t: t.layers[0].resid_psot.save(), "did you mean"),
        (lambda t: t.resid_post, "layers"),
        (lambda t: t["layers.0.resid_psot"], "did you mean"),
        (lambda t: t.layers[0].pos_embed, "no site"),
        (lambda t: t.layers[6], "layers are 0 to 5"),
        (lambda t: t.layers[-7], "layers are 0 to 5"),
        (lambda t: t["layers.9.resid_post"], "no layer 9"),
        (lambda t: t.layers[0].mlp.middle, "input and output"),
    ],
)
def test_sites_that_do_not_exist(model, write, match):
    error = refused(model, write, match=match, kind=pellucid.SiteError)
    assert isinstance(error, AttributeError)
    assert error.hint


@pytest.mark.parametrize(
    ("write", "match"),
    [
        (lambda t: t.layers[0].resid_post[:, 13].save(), "position 13"),
        (lambda t: t.layers[0].resid_post[:, -14].save(), "position -14"),
        (lambda t: t.layers[0].resid_post[1].save(), "row 1"),
        (lambda t: t.layers[0].z[:, :, 99].save(), "index 99 is out of range"),
        (lambda t: t.layers[0].resid_post[:, :, 128].save(), "index 128 is out of range"),
        (lambda t: t.layers[0].resid_post[:, :, :, 0], "index of 4 axes"),
        (lambda t: t.layers[0].resid_post[:, 1.5], "does not index"),
        (lambda t: t.layers[0].resid_post[:, :, " girl"], "does not index this axis"),
        (lambda t: setattr(t.layers[0], "resid_post", np.zeros(127)), "127"),
        (lambda t: setattr(t.layers[0], "resid_post", np.zeros((12, 128))), "12, 128"),
        (lambda t: (t.layers[0].resid_post + np.zeros(5)).save(), "broadcast"),
        (lambda t: (t.layers[0].resid_post @ np.zeros((5, 5))).save(), "matmul of shapes"),
        (lambda t: t.layers[0].resid_post.topk(129)[0].save(), "topk"),
        (lambda t: t.layers[0].resid_post.reshape(-1, 7).save(), "reshape|shape"),
        (lambda t: t.layers[0].resid_post.sum(axis=7).save(), "axis"),
        (lambda t: setattr(t.layers[1], "resid_post", t.layers[3].resid_post), r"layers\.3\.resid_post"),
        (lambda t: setattr(t.layers[0], "resid_post", "zero"), "not an array"),
        (lambda t: setattr(t.layers[0], "resid_post", object()), "not an array"),
        (lambda t: setattr(t.layers[0], "resid_post", None), "None is not an array"),
        (lambda t: setattr(t.layers[0], "resid_post", [1.0, None]), "not an array"),
        (lambda t: setattr(t.layers[0], "resid_post", np.zeros(128, dtype=complex)), "not an array"),
        (lambda t: t.call(lambda h: None, t.logits).save(), "NoneType is not an array"),
        (lambda t: t.call("softmax", t.logits).save(), "not a function"),
        (lambda t: t.call(lambda: 1.0).save(), "at least one argument"),
    ],
)
def test_invalid_plans(model, write, match):
    def needs_the_end(t):
        t.logits[:, -1].save()
        write(t)

    error = refused(model, needs_the_end, match=match)
    assert isinstance(error, ValueError)
    assert error.problem


def test_errors_name_their_site(model):
    error = refused(model, lambda t: t.layers[0].resid_post[:, 13].save(), match="position 13")
    assert error.site == "layers.0.resid_post"
    assert error.hint
    assert "layers.0.resid_post" in str(error)
    assert "hint:" in str(error)


@pytest.mark.parametrize(
    ("prompts", "match"),
    [
        ([], "no input"),
        ([[]], "row 0 is empty"),
        ([5000], "token 5000"),
        ([-1], "whole numbers"),
        ([1.5], "not a prompt|whole numbers"),
        (7, "not a prompt"),
        ({"a": 1}, "not a prompt"),
        ([1] * 100_000, "positions"),
        ([[1, 2], None], "not a prompt"),
    ],
)
def test_invalid_prompts(model, prompts, match):
    refused(model, lambda t: t.logits.save(), match=match, kind=pellucid.InputError, prompts=prompts)


def test_a_conversation_needs_a_template(model):
    with pytest.raises(pellucid.InputError, match="chat template"):
        model.trace([{"role": "user", "content": "Hi"}])


def test_nan_is_rejected_unless_allowed(model):
    bad = np.full(128, np.nan, np.float32)

    def write(t):
        t.layers[1].resid_post[:, -1] += bad
        t.logits[:, -1].save()

    refused(model, write, match="NaN")
    with model.trace(STORY, allow_nan=True) as t:
        t.layers[1].resid_post[:, -1] += bad
        logits = t.logits[:, -1].save()
    assert np.isnan(logits.value).all()


def test_a_block_without_with_warns(model):
    with pytest.warns(RuntimeWarning, match="never entered"):
        model.trace(STORY)
        gc.collect()
    trace = model.trace(STORY)
    with pytest.raises(pellucid.RecordError, match="outside the block"):
        trace.logits  # noqa: B018 - reading it raises
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        del trace
        gc.collect()


def test_values_before_and_after_the_block(model):
    with model.trace(STORY) as t:
        saved = t.layers[0].resid_post.save()
        unsaved = t.layers[1].resid_post
        with pytest.raises(pellucid.RecordError, match="not run yet"):
            saved.value  # noqa: B018 - reading it raises
    with pytest.raises(pellucid.RecordError, match="not saved"):
        unsaved.value  # noqa: B018 - reading it raises
    with pytest.raises(pellucid.RecordError, match="has ended"):
        unsaved.save()
    with pytest.raises(pellucid.RecordError, match="has ended"):
        t.layers[0].resid_post[:] = 0
    with pytest.raises(pellucid.RecordError, match="has ended"):
        unsaved * 2
    with pytest.raises(pellucid.RecordError, match="runs once"), t:
        pass


def test_saved_values_of_one_prompt_have_no_row_axis_after_the_block(model):
    with model.trace(STORY) as t:
        h = t.layers[0].resid_post.save()
        length = t.layers[0].resid_post.norm().save()
    # Inside the block these mean other elements than in the array, so they are refused.
    for use in (lambda: h[0], lambda: h[:, -1], lambda: h.mean(axis=0), lambda: h.sum(1)):
        with pytest.raises(pellucid.Error, match=r"row axis.*\n.*value\.value"):
            use()
    with pytest.raises(pellucid.RecordError, match="has ended"):
        h.softmax()
    assert np.isclose(float(length), np.linalg.norm(h.value))


def test_values_of_a_block_that_raised(model):
    with pytest.raises(ZeroDivisionError), model.trace(STORY) as t:
        saved = t.layers[0].resid_post.save()
        1 / 0  # noqa: B018 - it raises
    with pytest.raises(pellucid.RecordError, match="ZeroDivisionError") as caught:
        saved.value  # noqa: B018 - reading it raises
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_value_of_another_block_has_to_be_saved(model):
    with model.trace(STORY) as t:
        unsaved = t.layers[0].resid_post
    refused(model, lambda t: setattr(t.layers[0], "resid_post", unsaved), match="not saved", kind=pellucid.RecordError)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"max_new_tokens": 3}, "no option .max_new_tokens"),
        ({"max_new": 0}, "max_new is 0"),
        ({"max_new": -1}, "max_new"),
        ({"max_new": "many"}, "max_new"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 2.0}, "top_p"),
        ({"stop": [""]}, "stop string is empty"),
        ({"max_new": 100_000}, "positions"),
    ],
)
def test_invalid_generation_options(model, options, match):
    with pytest.raises(pellucid.InputError, match=match):
        model.generate(STORY, **options).result  # noqa: B018 - reading it runs it


@pytest.mark.parametrize("steps", [-1, "first", [0, -2], slice(-1, None), 1.5])
def test_steps_are_counted_from_zero(model, steps):
    with pytest.raises(pellucid.PlanError, match="steps count from 0"), model.generate(STORY, max_new=3) as t:
        t.steps[steps]


@pytest.mark.parametrize("options", [{"threads": -1}, {"chunk": -1}, {"chunk": 1.5}])
def test_invalid_counts(model, options):
    with pytest.raises(pellucid.InputError, match="not a valid count"), model.trace(STORY, **options):
        pass


@pytest.mark.parametrize("token", [-1, 2048, 10**12])
def test_invalid_tokens_have_no_text(model, token):
    with pytest.raises(pellucid.InputError, match="no token"):
        model.to_string(token)


def test_a_site_is_named_once(model):
    plan = {"taps": [{"site": "layers.99.z", "zero": True}]}
    with pytest.raises(pellucid.PlanError) as caught:
        model.run(STORY, plan)
    assert str(caught.value).count("layers.99.z") == 1


def test_a_trace_rejects_generation_options(model):
    with pytest.raises(TypeError):
        model.trace(STORY, max_new=3)


@pytest.mark.parametrize(
    ("options", "kind", "match"),
    [
        ({"name": "no/such/model"}, pellucid.Error, "no/such/model"),
        ({"dtype": "int3"}, pellucid.InputError, "int3"),
        ({"threads": 0}, pellucid.InputError, "threads is 0"),
        ({"threads": -1}, pellucid.InputError, "-1 is not a valid count"),
        ({"threads": "two"}, pellucid.InputError, "two is not a valid count"),
        ({"adapters": ["nowhere"]}, pellucid.LoadError, "nowhere"),
        ({"assume": "gpt2"}, pellucid.Error, "gpt2"),
    ],
)
def test_models_that_cannot_be_loaded(options, kind, match):
    with pytest.raises(kind, match=match):
        pellucid.load(**options)


def test_gradients_only_of_scalars_and_at_sites(model):
    with model.trace(STORY) as t:
        stream = t.layers[2].resid_post
        with pytest.raises(pellucid.RecordError, match="no gradient here"):
            stream.grad  # noqa: B018 - reading it raises
        with pytest.raises(pellucid.RecordError, match="at sites"):
            (stream * 2).grad  # noqa: B018 - reading it raises
    refused(model, lambda t: t.gradient(t.logits, t.layers[0].resid_post).save(), match="shape")


def test_prompts_cannot_be_added_after_the_end(model):
    with model.trace(STORY) as t:
        pass
    with pytest.raises(pellucid.RecordError, match="has ended"):
        t.row(DOG)
