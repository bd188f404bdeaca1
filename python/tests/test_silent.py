"""Cases in which other tools give silently wrong results and this package must not."""

import numpy as np
import pytest
from conftest import BIRD, DOG, STORY

import pellucid


def test_a_batch_gives_the_same_results_as_its_prompts_alone_in_generation(model):
    prompts = [STORY, "Hi", DOG, BIRD]
    alone = [model.generate(prompt, max_new=6).text for prompt in prompts]
    assert model.generate(prompts, max_new=6).text == alone


def test_saved_values_are_not_overwritten_by_later_steps_or_runs(model):
    with model.generate(STORY, max_new=6) as t:
        steps = t.steps[:].layers[2].resid_post.save()
        whole = t.layers[2].resid_post.save()
    copies = [step.copy() for step in steps.value]
    model.generate(BIRD, max_new=20).result  # noqa: B018 - reading it runs it
    assert all(np.array_equal(a, b) for a, b in zip(steps.value, copies, strict=True))
    assert np.array_equal(np.concatenate(copies), whole.value[12:])


def test_an_unrelated_run_changes_nothing(model, logits):
    before = logits(STORY)
    with model.trace(BIRD) as t:
        t.layers[0].resid_post = 0
        t.logits.save()
    with pytest.raises(pellucid.Error), model.trace(BIRD) as t:
        t.layers[0].resid_post = np.zeros(3)
        t.logits.save()
    assert np.array_equal(logits(STORY), before)


def test_edits_end_with_their_block(model):
    def mlp_out():
        with model.trace(STORY) as t:
            return t.layers[1].mlp_out.save()

    before = mlp_out()
    with model.trace(STORY) as t:
        t.layers[1].mlp_out = 0
        t.logits[:, -1].save()
    assert np.array_equal(mlp_out().value, before.value)


def test_a_write_at_a_step_lands_at_that_step(model):
    with model.generate(STORY, max_new=4, eos=False) as t:
        t.steps[2].layers[1].resid_post[:] = 9.0
        stream = t.layers[1].resid_post.save()
    assert np.flatnonzero((stream.value == 9.0).all(axis=-1)).tolist() == [12 + 2]


def test_capturing_changes_nothing(model, logits):
    with model.trace(STORY) as t:
        t.cache("layers.*.resid_post", "layers.*.mlp_act")
        seen = t.logits[:, -1].save()
    assert np.array_equal(seen.value, logits(STORY))


def test_writing_back_what_is_there_changes_nothing(model, logits):
    with model.trace(STORY) as t:
        for layer in t.layers:
            layer.resid_post = layer.resid_post
            layer.z[:] = layer.z[:]
        seen = t.logits[:, -1].save()
    assert np.array_equal(seen.value, logits(STORY))


def test_captured_attention_is_the_attention_that_is_used(model, logits):
    rng = np.random.default_rng(0)
    with model.trace(STORY) as t:
        probabilities = t.layers[2].attn_probs.save()
        t.layers[2].attn_probs = t.call(lambda p: rng.permuted(p, axis=-1), t.layers[2].attn_probs)
        seen = t.logits[:, -1].save()
    assert np.allclose(probabilities.value.sum(axis=-1), 1.0, atol=1e-5)
    assert not np.allclose(seen.value, logits(STORY), atol=1e-3)


def test_logits_are_as_wide_as_the_vocabulary(model, logits):
    assert logits(STORY).shape == (model.vocab_size,)


def test_an_update_that_python_assigns_back_is_written_once(model):
    with model.trace(STORY) as t:
        before = t.layers[1].resid_post.save()
        stream = t.layers[1].resid_post
        stream += 1.0
        stream[:, 0] += 1.0
        t.layers[1].resid_post = stream
        part = t.layers[1].resid_post[:, -1]
        part += 1.0
        t.layers[1].resid_post[:, 1] = part
        after = t.layers[1].resid_post.save()
    expected = before.value + np.float32(1.0)
    expected[0] += 1.0
    expected[-1] += 1.0
    expected[1] = expected[-1]
    assert np.allclose(after.value, expected, atol=1e-5)


def test_an_updated_value_of_one_row_is_written_to_another(model):
    with model.trace() as t:
        with t.row(DOG):
            dog = t.layers[1].resid_post[:, -1]
            dog += 1.0
        with t.row(BIRD):
            t.layers[1].resid_post[:, -1] = dog
            bird = t.layers[1].resid_post[:, -1].save()
        written = dog.save()
    assert np.array_equal(bird.value, written.value)


def test_memory_of_finished_blocks_is_freed(model):
    import gc
    import weakref

    gc.collect()
    gc.disable()
    try:
        constant = np.ones(128, np.float32)
        reference = weakref.ref(constant)
        with model.trace(STORY) as t:
            t.layers[1].resid_post += constant
            saved = t.layers[1].resid_post[:, -1].save()
        del constant, t
        assert reference() is None
        assert saved.value.shape == (128,)
    finally:
        gc.enable()
