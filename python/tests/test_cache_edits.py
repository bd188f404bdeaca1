"""Caches, standing edits, sessions and plans (behaviors 20 and 21)."""

import json

import numpy as np
import pytest
from conftest import BIRD, DOG, STORY

import pellucid


def test_a_cache_holds_every_site_of_its_patterns(model):
    with model.trace(STORY) as t:
        streams = t.cache("layers.*.resid_post")
        more = t.cache("layers.*.resid_post", "logits")
        inputs = t.cache("layers.*.resid_pre")
    assert (len(streams), len(more)) == (model.n_layers, model.n_layers + 1)
    assert np.array_equal(streams["layers.0.resid_post"], inputs["layers.1.resid_pre"])
    assert np.array_equal(streams["blocks.2.hook_resid_post"], streams["layers.2.resid_post"])
    assert list(streams) == [f"layers.{layer}.resid_post" for layer in range(model.n_layers)]
    with pytest.raises(KeyError):
        streams["logits"]
    with pytest.raises(pellucid.SiteError, match="no layer 6"):
        streams["layers.6.resid_post"]


def test_a_cache_holds_activations_after_all_writes(model):
    with model.trace(STORY) as t:
        cache = t.cache("layers.*.resid_post")
        t.layers[2].resid_post = 0
        t.layers[3].skip(1.0)
    assert not cache["layers.2.resid_post"].any()
    assert (cache["layers.3.resid_post"] == 1.0).all()


def test_a_cache_in_a_rows_block_has_its_rows(model):
    with model.trace() as t:
        with t.row(DOG):
            one = t.cache("layers.1.resid_post")
        with t.row([BIRD, STORY]):
            two = t.cache("layers.1.resid_post")
        every = t.cache("layers.1.resid_post")
    assert isinstance(one["layers.1.resid_post"], np.ndarray)
    assert (len(two["layers.1.resid_post"]), len(every["layers.1.resid_post"])) == (2, 3)


def test_a_cache_is_empty_before_the_end(model):
    with pytest.raises(pellucid.RecordError, match="has not run"), model.trace(STORY) as t:
        t.cache()["layers.0.resid_post"]
    assert "has not run" in repr(t.cache())


def zero_position(model, position):
    with model.edit() as e:
        e.layers[1].resid_post[:, position] = 0
    return e.model


def test_standing_edits_are_stacked_and_removed(model, logits):
    once = zero_position(model, 0)
    twice = zero_position(once, 1)

    def zeroed(edited):
        with edited.trace(STORY) as t:
            stream = t.layers[1].resid_post.save()
        return np.flatnonzero(~stream.value.any(axis=-1)).tolist()

    assert [zeroed(m) for m in (model, once, twice)] == [[], [0], [0, 1]]
    assert zeroed(twice.without_edits(1)) == [0]
    assert zeroed(twice.without_edits()) == []
    assert np.array_equal(logits(STORY, twice.without_edits()), logits(STORY))
    assert not np.array_equal(logits(STORY, once), logits(STORY))
    assert once._core is model._core
    assert "2 standing edits" in repr(twice)


def test_standing_edits_come_before_the_blocks_own(model):
    edited = zero_position(model, 0)
    with edited.trace(STORY) as t:
        seen = t.layers[1].resid_post[:, 0].save()
        t.layers[1].resid_post[:, 0] += 1.0
        after = t.layers[1].resid_post[:, 0].save()
    assert not seen.value.any()
    assert (after.value == 1.0).all()


def test_a_standing_edit_computes_with_values(model):
    with model.edit() as e:
        stream = e.layers[1].resid_post
        e.layers[2].resid_post = stream / stream.norm(axis=-1, keepdims=True)
    assert np.allclose(_norms(e.model), 1.0, atol=1e-5)
    again = pellucid.Plan.from_json(e.plan.to_json())
    assert np.allclose(_norms(model.edit(again)), 1.0, atol=1e-5)
    assert e.model.generate(STORY, max_new=3).text != model.generate(STORY, max_new=3).text


def _norms(model):
    with model.trace([STORY, DOG]) as t:
        norm = t.layers[2].resid_post.norm(axis=-1).save()
    return np.concatenate(norm.value)


def test_plans_are_dicts_json_and_blocks(model):
    plan = {"taps": [{"site": "layers.2.resid_post", "positions": "last", "zero": True}]}
    with model.plan() as p:
        p.layers[2].resid_post[:, "last"] = 0
    for form in (plan, json.dumps(plan), plan["taps"], pellucid.Plan.from_json(json.dumps(plan)), p):
        captures = model.run(STORY, form, capture="layers.2.resid_post")
        stream = captures["layers.2.resid_post"]
        assert not stream[-1].any()
        assert stream[-2].any()
    with pytest.raises(pellucid.PlanError, match="zreo"):
        model.run(STORY, {"taps": [{"site": "layers.2.resid_post", "zreo": True}]})


def test_runs_give_captures_by_site(model):
    captures = model.run([DOG, BIRD], capture=["layers.*.z", "logits"], positions=[-1])
    assert len(captures) == model.n_layers + 1
    assert [array.shape for array in captures["logits"]] == [(1, model.vocab_size)] * 2
    assert captures.positions["logits"] == [[5], [8]]
    assert "layers.0.z" in captures._repr_html_()
    token = model.run(STORY, [{"site": "logits", "positions": {"token": " girl"}, "capture": True}])
    assert token.positions["logits"] == [[9]]
    top = model.run(STORY, [{"site": "logits", "positions": "last", "capture": {"reduce": {"topk": 3}}}])
    values, units = top["logits"]
    assert values.shape == units.shape == (1, 3)
    assert model.to_string(units[0, 0]) == " She"


def test_sessions_pass_values_on(model, logits):
    with model.session() as s:
        with s.trace(DOG) as first:
            unsaved = first.layers[2].resid_post[:, -1]
            scaled = unsaved * 2.0
        doubled = scaled + 0.0
        with s.trace(BIRD) as second:
            second.layers[2].resid_post[:, -1] = scaled
            written = second.layers[2].resid_post[:, -1].save()
        with s.generate(BIRD, max_new=2) as third:
            third.layers[2].resid_post[:, "last"] = doubled
        with pytest.raises(pellucid.RecordError, match="session"):
            written.value  # noqa: B018 - reading it raises
    with model.trace(DOG) as t:
        expected = (t.layers[2].resid_post[:, -1] * 2.0).save()
    assert np.array_equal(written.value, expected.value)
    assert len(third.result.tokens) == 2


def test_a_session_that_raises_runs_nothing(model):
    ran = []
    with pytest.raises(ZeroDivisionError), model.session() as s:
        with s.trace(DOG) as t:
            value = t.call(lambda h: ran.append(1) or h, t.layers[0].resid_post).save()
        1 / 0  # noqa: B018 - it raises
    assert not ran
    with pytest.raises(pellucid.RecordError, match="ZeroDivisionError"):
        value.value  # noqa: B018 - reading it raises


def test_saved_values_are_passed_to_the_next_run_without_a_copy(model):
    with model.trace(STORY) as t:
        stream = t.layers[1].resid_post.save()
    with model.trace(STORY) as t:
        same = (t.constant(stream)).save()
    assert np.shares_memory(same.value, stream.value)


def test_saved_values_of_several_rows_are_written_row_by_row(model):
    with model.trace([DOG, BIRD]) as t:
        streams = t.layers[1].resid_post.save()
    with model.trace([DOG, BIRD]) as t:
        t.layers[1].resid_post = streams
        after = t.layers[1].resid_post.save()
    assert all(np.array_equal(a, b) for a, b in zip(streams.value, after.value, strict=True))
    with pytest.raises(pellucid.PlanError, match="for each row"), model.trace(DOG) as t:
        t.layers[1].resid_post.save() * streams
