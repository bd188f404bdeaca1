"""Readouts: logit lens, token activations, steering, skipping, patchscope."""

import numpy as np


def test_logit_lens_of_prompts_of_any_length(model, pair):
    prompts = [pair[0], "Tom saw a dog. The"]
    lens = model.logit_lens(prompts)
    assert lens.shape == (2, 6, 2048)
    assert np.allclose(lens.sum(axis=-1), 1, atol=1e-4)
    assert np.allclose(lens[:, -1], model.next_token_probs(prompts), atol=1e-4)
    assert model.to_string(lens[1, -1].argmax()) == " dog"
    assert np.array_equal(model.logit_lens(prompts, layers=[2]), lens[:, [2]])
    assert np.allclose(np.exp(model.logit_lens(prompts, return_type="log_probs")), lens, atol=1e-6)


def test_activations_of_a_token(model, pair):
    prompts = [pair[0], "Tom saw a dog. The"]
    last = model.get_token_activations(prompts, layers=[1, -1])
    assert last.shape == (2, 2, 128)
    _, cache = model.run_with_cache(prompts[1], names_filter=["blocks.*.hook_resid_post", "post4"])
    assert np.array_equal(last[1, 1], cache["resid_post", -1][0, -1])
    third = model.get_token_activations(prompts, position=2, point="mlp_act")
    assert np.array_equal(third[4, 1], cache["post", 4][0, 2])


def test_projecting_on_the_vocabulary(model, pair):
    logits, cache = model.run_with_cache(pair)
    assert np.allclose(model.project_on_vocab(cache["resid_post", -1]), logits, atol=1e-4)
    assert np.allclose(model.ln_final(cache["resid_post", -1]), cache["final_norm"], atol=1e-5)


def test_steering(model):
    prompt = "Tom saw a dog. The"
    dog, bird = (model.get_token_activations(f"Tom saw a {word}. The", layers=[3])[0, 0] for word in ("dog", "bird"))
    steered = model.steer(3, bird - dog, factor=2.0)
    token = model.to_single_token(" bird")
    assert steered.next_token_probs(prompt)[0, token] > 0.9
    assert model.next_token_probs(prompt)[0, token] < 0.01
    assert steered.generate(prompt, max_new=6).text == " bird flew down to the nest"
    assert np.array_equal(model.steer(2, bird - dog, factor=0.0)(prompt), model(prompt))


def test_steering_some_layers_at_one_position(model, pair):
    direction = np.linspace(-1, 1, 128, dtype=np.float32)
    with model.trace(pair[0]) as t:
        t.layers[1].resid_post[:, -1] += direction
        t.layers[2].resid_post[:, -1] += direction
        by_hand = t.logits.save()
    assert np.array_equal(model.steer([1, 2], direction, positions=-1)(pair[0])[0], by_hand.value)


def test_skipping_layers(model, pair):
    _, plain = model.run_with_cache(pair, names_filter="blocks.*.hook_resid_post")
    _, skipped = model.skip_layers(1, 3).run_with_cache(pair, names_filter="blocks.*.hook_resid_post")
    assert np.array_equal(skipped["resid_post", 3], plain["resid_post", 0])
    assert not np.array_equal(skipped["resid_post", 5], plain["resid_post", 5])


def test_patchscope(model):
    target = "Tom saw a cat. The"
    seen = model.patchscope_lens(["Tom saw a dog", "Tom saw a bird"], target, layers=[0, 1], target_position=3)
    assert seen.shape == (2, 2, 2048)
    assert [model.to_string(row.argmax()) for row in seen[:, 0]] == [" dog", " bird"]
    own = model.patchscope_lens(["Tom saw a cat"], target, layers=[2], target_position=3)
    assert np.allclose(own[0, 0], model.next_token_probs(target)[0], atol=1e-5)


def test_tokens_of_several_prompts(model, pair):
    rows = model.to_tokens(pair)
    assert rows == [model.to_tokens(prompt) for prompt in pair]
    assert model.to_str_tokens(pair)[1] == model.to_str_tokens(pair[1]) == model.to_str_tokens(rows[1])
    assert [model.to_string(row) for row in rows] == pair
