"""Several prompts in one pass (behaviors 8 to 11)."""

import numpy as np
import pytest
from conftest import BIRD, DOG, STORY

import pellucid


def test_each_view_has_its_own_rows_and_the_batch_has_all(model):
    with model.trace() as t:
        with t.row(DOG):
            first = t.layers[2].resid_post.save()
        with t.row([STORY, DOG]):
            second = t.layers[2].resid_post.save()
        whole = t.batch.layers[2].resid_post.save()
        outside = t.layers[2].resid_post.save()
        with t.row(STORY):
            third = t.layers[2].resid_post.save()
            inside = t.batch.layers[2].resid_post.save()
    assert isinstance(first.value, np.ndarray)
    assert [len(rows.value) for rows in (second, whole, outside, inside)] == [2, 4, 4, 4]
    assert np.array_equal(first.value, second.value[1])
    expected = [first.value, *second.value, third.value]
    for seen in (whole, outside, inside):
        assert all(np.array_equal(a, b) for a, b in zip(seen.value, expected, strict=True))


@pytest.mark.parametrize("split", [[4], [1, 3], [3, 1], [2, 2], [1, 1, 1, 1]])
def test_prompts_of_unequal_length_give_the_same_results_as_alone(model, logits, split):
    prompts = ["Hi", "A cat and", "Tom", "The quick brown dog ran"]
    alone = [logits(prompt) for prompt in prompts]
    rest = list(prompts)
    with model.trace() as t:
        for count in split:
            t.row([rest.pop(0) for _ in range(count)])
        last = t.logits[:, -1].save()
    assert all(np.array_equal(a, b) for a, b in zip(last.value, alone, strict=True))


def test_embeddings_of_one_prompt_written_to_another(model):
    blank = [0] * len(model.to_tokens(STORY))
    with model.generate(max_new=5) as t:
        with t.row(STORY):
            words = t.embed[:, "prompt"]
        with t.row(blank):
            t.embed[:, "prompt"] = words
    assert [row.text for row in t.result] == [" She loved to play outside"] * 2

    with model.trace(STORY) as t:
        saved = t.embed.save()
    with model.generate(blank, max_new=5) as t:
        t.embed[:, "prompt"] = saved
    assert t.text == " She loved to play outside"


@pytest.mark.parametrize(("source", "target"), [(1, 4), (4, 4), (5, 0)])
def test_a_row_uses_another_rows_value_at_any_depth(model, source, target):
    with model.trace() as t:
        with t.row(DOG):
            value = t.layers[source].resid_post[:, -1]
        with t.row(BIRD):
            t.layers[target].resid_post[:, -1] = value
            written = t.layers[target].resid_post[:, -1].save()
        kept = value.save()
    assert np.array_equal(written.value, kept.value)


def test_one_heads_output_is_passed_to_another_row(model):
    with model.trace() as t:
        with t.row(DOG):
            source = t.layers[2].z[:, -1, 0]
        with t.row(BIRD):
            t.layers[2].z[:, -1, 0] = source
            read_back = t.layers[2].z[:, -1, 0].save()
            other = t.layers[2].z[:, -1, 1].save()
        kept = source.save()
    assert np.array_equal(read_back.value, kept.value)
    assert not np.array_equal(other.value, kept.value)


def test_cyclic_dependencies_between_rows_are_rejected(model):
    with pytest.raises(pellucid.PlanError, match=r"layers\.[13]"), model.trace() as t:
        with t.row(DOG) as a:
            late = t.layers[3].resid_post[:, -1]
        with t.row(BIRD):
            t.layers[1].resid_post[:, -1] = late
            back = t.layers[3].resid_post[:, -1]
        a.layers[1].resid_post[:, -1] = back
        t.logits[:, -1].save()


def test_a_rows_view_works_after_its_block(model):
    with model.trace() as t:
        with t.row(DOG) as a:
            pass
        with t.row(BIRD) as b:
            pass
        b.layers[1].resid_post[:, -1] = a.layers[1].resid_post[:, -1]
        one, two = a.layers[1].resid_post[:, -1].save(), b.layers[1].resid_post[:, -1].save()
    assert np.array_equal(one.value, two.value)


def test_rows_of_a_list_are_indexed(model):
    with model.trace([DOG, BIRD, STORY]) as t:
        t.layers[1].resid_post[1, -1] = t.layers[1].resid_post[0, -1]
        picked = t.layers[1].resid_post[0, -1].save()
        pair = t.layers[1].resid_post[[0, 1], -1].save()
        row = (t.layers[1].resid_post * 1.0)[2].save()
        whole = t.layers[1].resid_post.save()
    assert np.array_equal(picked.value, whole.value[0][-1])
    assert np.array_equal(pair.value[1], picked.value)
    assert np.array_equal(row.value, whole.value[2])


def test_nested_rows_are_rejected(model):
    with pytest.raises(pellucid.RecordError, match="cannot be nested"), model.trace() as t, t.row(DOG):
        t.row(BIRD)


def test_each_row_is_written_its_own_array(model):
    rng = np.random.default_rng(1)
    vectors = [rng.normal(size=(1, model.d_model)).astype(np.float32) for _ in range(2)]
    with model.trace([DOG, BIRD]) as t:
        t.layers[1].resid_post[:, -1:] = vectors
        as_list = t.layers[1].resid_post[:, -1:].save()
        t.layers[2].resid_post[:, -1:] = np.stack(vectors)
        as_array = t.layers[2].resid_post[:, -1:].save()
    for written in (as_list, as_array):
        assert all(np.array_equal(a, b) for a, b in zip(written.value, vectors, strict=True))
    with pytest.raises(pellucid.PlanError, match="3 arrays for 2 rows"), model.trace([DOG, BIRD]) as t:
        t.layers[1].resid_post[:, -1:] = [vectors[0]] * 3


def test_padded_values_are_one_array(model):
    with model.trace([DOG, BIRD], padded=True) as t:
        stream = t.layers[1].resid_post.save()
    with model.trace([DOG, BIRD]) as t:
        rows = t.layers[1].resid_post.save()
    longest = max(len(row) for row in rows.value)
    assert stream.value.shape == (2, longest, model.d_model)
    for padded, row in zip(stream.value, rows.value, strict=True):
        assert np.array_equal(padded[: len(row)], row)
        assert not padded[len(row) :].any()


def test_rows_are_joined(model):
    with model.trace([DOG, BIRD]) as t:
        last = t.layers[3].resid_post[:, -1]
        mean, stacked = last.mean(axis=0).save(), last.stack_rows().save()
        total = last.sum().save()
        t.layers[4].resid_post[:, -1] = last.mean(axis=0)
        written = t.layers[4].resid_post[:, -1].save()
    assert stacked.value.shape == (2, model.d_model)
    assert np.allclose(mean.value, stacked.value.mean(axis=0), atol=1e-6)
    assert np.isclose(total.value, stacked.value.sum(), rtol=1e-4)
    assert all(np.array_equal(row, mean.value) for row in written.value)


def test_padded_results_of_plans_and_steps(model):
    plan = [{"site": "logits", "positions": "last", "capture": {"reduce": {"topk": 3}}}]
    values, units = model.run([DOG, BIRD], plan, padded=True)["logits"]
    assert values.shape == units.shape == (2, 1, 3)
    with model.generate([DOG, BIRD], max_new=3, padded=True) as t:
        steps = t.steps[:].logits[:, -1].argmax(-1).save()
        whole = t.layers[0].resid_post.save()
    assert [[int(token) for token in row] for row in steps.value] == [row.tokens for row in t.result]
    assert whole.value.shape == (2, 9 + 2, model.d_model)
