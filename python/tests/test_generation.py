"""Generation step by step (behaviors 15 to 18)."""

import numpy as np
import pytest
from conftest import BIRD, DOG, STORY

import pellucid

CONTINUATION = " She loved to play outside"


def words(model, arrays):
    return model.to_string([int(array) for array in arrays])


def test_every_step_and_some_steps(model):
    with model.generate(STORY, max_new=5) as t:
        every = t.steps[:].logits[:, -1].argmax(-1).save()
        some = t.steps[1:3].logits[:, -1].argmax(-1).save()
        listed = t.steps[[0, 2]].logits[:, -1].argmax(-1).save()
    assert words(model, every.value) == t.text == CONTINUATION
    assert words(model, some.value) == " loved to"
    assert words(model, listed.value) == " She to"


def test_numbered_steps_equal_a_slice_of_them(model):
    with model.generate(STORY, max_new=3) as t:
        sliced = [t.steps[:3].layers[layer].resid_post.save() for layer in range(model.n_layers)]
        numbered = [
            [t.steps[step].layers[layer].resid_post.save() for step in range(3)] for layer in range(model.n_layers)
        ]
    for layer in range(model.n_layers):
        for step in range(3):
            assert numbered[layer][step].value.shape == (1, model.d_model)
            assert np.array_equal(numbered[layer][step].value, sliced[layer].value[step])


def test_a_capture_has_every_position_that_was_computed(model):
    with model.generate(STORY, max_new=5) as t:
        stream = t.layers[2].resid_post.save()
        cache = t.cache("layers.*.resid_post")
        steps = t.steps[:].layers[2].resid_post.save()
    assert stream.value.shape == (13 + 5 - 1, model.d_model)
    assert all(array.shape == (17, model.d_model) for _, array in cache.items())
    assert len(steps.value) == 5
    assert np.array_equal(np.concatenate(steps.value), stream.value[12:])


def test_two_prompts_with_their_own_steps(model):
    with model.generate(max_new=5) as t:
        with t.row(DOG), t.steps[1:3]:
            two = t.logits[:, -1].argmax(-1).save()
        with t.row(BIRD), t.steps[:3] as s:
            three = s.logits[:, -1].argmax(-1).save()
    assert (len(two.value), len(three.value)) == (2, 3)
    texts = [row.text for row in t.result]
    assert words(model, two.value) in texts[0]
    assert texts[1].startswith(words(model, three.value))


def test_a_layer_is_skipped_at_one_step(model):
    with model.generate(STORY, max_new=4, eos=False) as t:
        t.steps[1].layers[1].skip(0.0)
        steps = t.steps[:3].layers[1].resid_post.save()
    assert [bool(step.any()) for step in steps.value] == [True, False, True]


@pytest.mark.parametrize("step", [1, None], ids=["one step", "every position"])
def test_a_skip_with_a_kv_cache_equals_a_run_over_the_whole_text(model, step):
    with model.generate(STORY, max_new=4, eos=False) as t:
        (t if step is None else t.steps[step]).layers[1].skip(0.0)
        each = t.steps[:].logits.save()
    prompt, tokens = list(t.result.prompt), t.result.tokens
    with model.trace(prompt + tokens[:-1]) as whole:
        if step is None:
            whole.layers[1].skip(0.0)
        else:
            # Step k computes position P + k - 1.
            whole.layers[1].resid_post[:, len(prompt) + step - 1] = 0
        logits = whole.logits[:, len(prompt) - 1 :].save()
    assert np.array_equal(np.concatenate(each.value), logits.value)


def test_an_edit_at_one_step_changes_what_follows_and_nothing_before(model):
    with model.generate(STORY, max_new=5, eos=False) as t:
        t.steps[1].layers[0].resid_post[:] = 0
        read = t.steps[1].layers[0].resid_post.save()
    plain = model.generate(STORY, max_new=5, eos=False).result
    assert not read.value.any()
    assert t.result.tokens[0] == plain.tokens[0]
    assert t.result.tokens != plain.tokens


def test_a_value_of_each_step_is_written_in_the_same_step(model):
    with model.generate(STORY, max_new=4) as t:
        with t.steps[:]:
            t.layers[3].resid_post = t.layers[1].resid_post * 1.0
            early, late = t.layers[1].resid_post.save(), t.layers[3].resid_post.save()
    assert all(np.array_equal(a, b) for a, b in zip(early.value, late.value, strict=True))


def test_one_row_steers_another_step_by_step(model):
    with model.generate(max_new=5) as t:
        with t.row(STORY), t.steps[:]:
            end = t.layers[-1].resid_post
        with t.row(DOG), t.steps[:]:
            t.layers[-1].resid_post = end
    assert [row.text for row in t.result] == [CONTINUATION] * 2


def test_invalid_steps(model):
    with pytest.raises(pellucid.PlanError, match="step"), model.generate(STORY, max_new=3) as t:
        t.steps[-1]
    with pytest.raises(pellucid.PlanError, match="step 5"), model.generate(STORY, max_new=3) as t:
        t.steps[5].logits.save()
    with pytest.raises(pellucid.PlanError, match="of a step"), model.generate(STORY, max_new=3) as t:
        t.steps[1].logits[:, 3].save()


def test_a_step_that_no_row_reached_has_no_value(model):
    eos = model._core.eos[0]
    with model.generate(STORY, max_new=4) as t:
        t.steps[1].logits[:, :, eos] = 1e6
        reached, beyond = t.steps[1].logits[:, -1].argmax(-1).save(), t.steps[3].logits.save()
    assert (t.result.finish, len(t.result.tokens)) == ("eos", 2)
    assert reached.value == eos
    with pytest.raises(pellucid.RecordError, match="no row reached"):
        beyond.value  # noqa: B018 - reading it raises


def test_results_of_generation(model):
    generation = model.generate([DOG, BIRD], max_new=3)
    results = generation.result
    assert [result.finish for result in results] == ["length"] * 2
    assert generation.text == [result.text for result in results]
    assert results[0].prompt == model.to_tokens(DOG)
    assert "Generated" in repr(results[0])
    assert "length" in results[0]._repr_html_()
    stopped = model.generate(STORY, max_new=20, stop=[" to"]).result
    assert model.generate(STORY, max_new=20, stop=" to").text == stopped.text
    assert (stopped.text, stopped.finish) == (" She loved", "stop")
    sampled = [model.generate(STORY, max_new=8, temperature=1.5, seed=seed).text for seed in (1, 1, 2)]
    assert sampled[0] == sampled[1] != sampled[2]


def test_watch_is_called_for_each_token(model):
    calls = []
    result = model.generate(STORY, max_new=4, watch=lambda row, token, text: calls.append((row, token, text))).result
    assert [token for _, token, _ in calls] == result.tokens
    assert "".join(text for _, _, text in calls if text) == result.text
    with pytest.raises(ZeroDivisionError):
        model.generate(STORY, max_new=4, watch=lambda *_: 1 / 0).result  # noqa: B018 - reading it runs it
    assert model.generate(STORY, max_new=5).text == CONTINUATION


def test_the_result_is_not_available_before_the_end(model):
    with pytest.raises(pellucid.RecordError, match="before the block ends"), model.generate(STORY, max_new=3) as t:
        t.result  # noqa: B018 - reading it raises
