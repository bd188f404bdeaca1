"""Reading and writing activations in a trace (behaviors 1 to 7 of tests/side_by_side)."""

import numpy as np
import pytest
from conftest import STORY

import pellucid


def test_generation_continues_the_story(model):
    assert model.generate(STORY, max_new=5).text == " She loved to play outside"


def test_layers_can_be_indexed_with_numpy_integers(model):
    with model.trace(STORY) as t:
        counted = [t.layers[layer].resid_post.save() for layer in np.arange(-1, 2)]
        plain = [t.layers[layer].resid_post.save() for layer in (-1, 0, 1)]
    assert all(np.array_equal(a.value, b.value) for a, b in zip(counted, plain, strict=True))


def test_real_weights_know_where_the_tower_is(smollm2):
    generated = smollm2.generate("The Eiffel Tower is in the city of", max_new=2).result
    assert (generated.text, generated.finish) == (" Paris.", "length")


def test_real_weights_are_steered_from_one_city_to_another(smollm2):
    paris, rome = (f"The {place} is in the city of" for place in ("Eiffel Tower", "Colosseum"))
    with smollm2.trace() as t:
        with t.row(rome):
            there = t.layers[26].resid_post[:, -1]
            before = t.logits[:, -1].argmax(-1).save()
        with t.row(paris):
            plain = t.logits[:, -1].argmax(-1).save()
        with t.row(paris):
            t.layers[26].resid_post[:, -1] = there
            patched = t.logits[:, -1].argmax(-1).save()
    assert smollm2.to_string(plain.value) == " Paris"
    assert smollm2.to_string(before.value) == smollm2.to_string(patched.value) == " Rome"


def test_zeroing_the_last_layer_affects_later_reads_only(model):
    with model.generate(STORY, max_new=5) as t:
        before = t.layers[-1].resid_post.save()
        t.layers[-1].resid_post[:] = 0
        after = t.layers[-1].resid_post.save()
    assert np.abs(before.value).min(axis=-1).max() > 0
    assert not after.value.any()
    assert t.text != " She loved to play outside"


def test_zeroing_the_embedding_affects_later_reads_only(model, logits):
    with model.trace(STORY) as t:
        before = t.embed.save()
        t.embed *= 0
        after = t.embed.save()
        last = t.logits[:, -1].save()
    assert before.value.any()
    assert not after.value.any()
    assert not np.allclose(last.value, logits(STORY))


def test_an_edit_of_one_prompt_leaves_the_other_alone(model, logits):
    with model.trace() as t:
        with t.row(STORY):
            t.layers[-1].resid_post = 0
        with t.row(STORY):
            second = t.layers[-1].resid_post.save()
            last = t.logits[:, -1].save()
    assert np.abs(second.value).max(axis=-1).min() > 0
    assert np.array_equal(last.value, logits(STORY))


def test_writing_back_the_activation_of_an_earlier_run_changes_nothing(model, logits):
    with model.trace(STORY) as t:
        stream = t.layers[3].resid_pre.save()
    with model.trace(STORY) as t:
        t.layers[3].resid_pre = stream
        last = t.logits[:, -1].save()
    assert np.array_equal(last.value, logits(STORY))


def test_a_condition_on_one_layer_decides_about_another(model):
    for limit, zeroed in ((1e5, True), (0.0, False)):
        with model.trace(STORY) as t:
            calm = (t.layers[2].resid_post < limit).min()
            stream = t.layers[4].resid_post
            t.layers[4].resid_post = t.where(calm, 0.0, stream)
            after = t.layers[4].resid_post.save()
        assert (not after.value.any()) == zeroed


def test_plain_python_decides_in_a_called_function(model):
    with model.trace(STORY) as t:
        chosen = t.call(lambda h: np.zeros_like(h) if (h < 1e5).all() else h, t.layers[2].resid_post)
        t.layers[4].resid_post = chosen
        after = t.layers[4].resid_post.save()
    assert not after.value.any()


def test_a_custom_module_in_the_residual_stream(model):
    with model.trace(STORY) as t:
        stream = t.layers[0].resid_post
        passed = t.call(lambda h: h.copy(), stream)
        inner = passed.save()
        t.layers[0].resid_post = passed * 0.0
        through = t.logits.save()
        original = stream.save()
    with model.trace(STORY) as t:
        t.layers[0].resid_post[:] = 0
        direct = t.logits.save()
    assert np.array_equal(through.value, direct.value)
    assert np.array_equal(inner.value, original.value)


def test_a_saved_value_is_a_snapshot(model):
    with model.trace(STORY) as t:
        stream = t.layers[1].resid_post
        before = stream.save()
        stream[:, 0] = 0
        after = stream.save()
    assert before.value[0].any()
    assert not after.value[0].any()
    assert np.array_equal(before.value[1:], after.value[1:])


def test_order_of_recording_matters_only_within_a_site(model):
    with model.trace(STORY) as t:
        late = t.layers[5].resid_post.save()
        early = t.layers[0].resid_post.save()
        t.layers[0].mlp_out = 0
        zeroed = t.layers[0].mlp_out.save()
    assert not zeroed.value.any()
    assert late.value.shape == early.value.shape


@pytest.mark.parametrize(
    "name", ["layers.2.resid_post", "blocks.2.hook_resid_post", "resid_post2", "resid_post.2", "model.layers.2.output"]
)
def test_every_name_of_a_site_reads_and_writes_it(model, name):
    with model.trace(STORY) as t:
        t[name] += 1.0
        alias = t.sites[name].save()
        own = t.layers[2].resid_post.save()
        output = t.layers[2].output.save()
    assert np.array_equal(alias.value, own.value)
    assert np.array_equal(output.value, own.value)


def test_in_place_operators_write(model):
    with model.trace(STORY) as t:
        stream = t.layers[1].resid_post.save()
        t.layers[1].resid_post[:, -1] += 2.0
        t.layers[1].resid_post[:, -1] -= 0.5
        t.layers[1].resid_post[:, 0] *= 3.0
        t.layers[1].resid_post[:, 1] /= 4.0
        after = t.layers[1].resid_post.save()
    expected = stream.value.copy()
    expected[-1] += 2.0
    expected[-1] -= 0.5
    expected[0] *= 3.0
    expected[1] /= 4.0
    assert np.array_equal(after.value, expected)


def test_a_steering_vector_acts_where_it_is_added(model, logits):
    vector = np.random.default_rng(0).normal(size=model.d_model)
    with model.trace(STORY) as t:
        before = t.layers[3].resid_post.save()
        t.layers[3].resid_post[:, -1] += 4.0 * vector
        after = t.layers[3].resid_post.save()
        steered = t.logits[:, -1].save()
    assert np.array_equal(after.value[:-1], before.value[:-1])
    assert np.allclose(after.value[-1], before.value[-1] + 4.0 * vector.astype(np.float32), atol=1e-5)
    assert not np.allclose(steered.value, logits(STORY))


def test_layers_past_the_last_needed_site_do_not_run(model):
    with model.trace(STORY) as t:
        t.layers[0].resid_post.save()
        never = t.call(lambda h: 1 / 0, t.layers[5].resid_post)
    assert never._result is None


def test_modules_can_be_called_on_values(model):
    with model.trace(STORY) as t:
        mlp_in = t.layers[3].mlp_in
        own = t.layers[3].mlp(mlp_in).save()
        out = t.layers[3].mlp.output.save()
        lens = t.unembed(t.layers[-1].resid_post).save()
        by_parts = t.lm_head(t.final_norm(t.layers[-1].resid_post)).save()
        logits = t.logits.save()
        head = t.lm_head.save()
    assert np.array_equal(own.value, out.value)
    assert np.array_equal(lens.value, logits.value)
    assert np.array_equal(by_parts.value, head.value)


def test_heads_and_keys_are_parts_of_a_site(model):
    with model.trace(STORY) as t:
        z = t.layers[1].z.save()
        t.layers[1].z[:, :, 2] = 0
        head = t.layers[1].z[:, -1, 3].save()
        after = t.layers[1].z.save()
        t.layers[2].attn_scores[:, 0, :, 1] = -np.inf
        probabilities = t.layers[2].attn_probs.save()
        t.logits[:, -1].save()
    assert np.array_equal(head.value, z.value[-1, 3])
    assert not after.value[:, 2].any()
    assert np.array_equal(after.value[:, :2], z.value[:, :2])
    assert not probabilities.value[0, 2:, 1].any()
    assert probabilities.value[1, 2:, 1].all()


def test_values_are_written_into_one_head(model):
    with model.trace(STORY) as t:
        t.layers[1].z[:, :, 0] = t.layers[1].z[:, :, 3]
        z = t.layers[1].z.save()
        t.layers[2].z[:, -1, 1] = np.arange(z._info.inner[1])
        one = t.layers[2].z[:, -1].save()
        t.layers[2].mlp_act[:, :, 5] = t.layers[2].mlp_act[:, :, 6] * 2
        units = t.layers[2].mlp_act[:, :, 5:7].save()
    assert np.array_equal(z.value[:, 0], z.value[:, 3])
    assert np.array_equal(one.value[1], np.arange(len(one.value[1]), dtype=np.float32))
    assert np.array_equal(units.value[:, 0], units.value[:, 1] * 2)


def test_subscripts_that_taps_cannot_select_still_work(model):
    with model.trace(STORY) as t:
        q = t.layers[1].q.save()
        part = t.layers[1].q[:, ::-1, 1, :4].save()
        t.layers[1].q[:, 2:5, 0, 3:] = 7.0
        after = t.layers[1].q.save()
    assert np.array_equal(part.value, q.value[::-1, 1, :4])
    expected = q.value.copy()
    expected[2:5, 0, 3:] = 7.0
    assert np.array_equal(after.value, expected)


def test_positions_can_be_named_by_a_token(model):
    with model.trace(STORY) as t:
        named = t.layers[1].resid_post[:, " girl"].save()
        whole = t.layers[1].resid_post.save()
    position = model.to_str_tokens(STORY).index(" girl")
    assert np.array_equal(named.value, whole.value[[position]])
    with pytest.raises(pellucid.PlanError, match="does not occur"), model.trace(STORY) as t:
        t.layers[1].resid_post[:, " dog"].save()
