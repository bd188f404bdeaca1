"""Activation caches: names, filters, positions, batches, and residual stream decompositions."""

import gc
import weakref

import numpy as np
import pytest

import pellucid
from pellucid.transformer_lens import NotCached, get_act_name


def test_all_names_of_an_activation_return_the_same_array(model, pair):
    _, cache = model.run_with_cache(pair)
    array = cache["blocks.5.hook_resid_post"]
    assert array.shape == (2, 13, 128)
    for name in ("layers.5.resid_post", "resid_post5", ("resid_post", 5), ("resid_post", -1), "model.layers.5.output"):
        assert cache[name] is array
    assert cache["scale", 4, "ln1"] is cache["scale4ln1"] is cache["blocks.4.ln1.hook_scale"]
    assert cache["normalized"] is cache["ln_final.hook_normalized"]
    assert cache["attn", 2] is cache["pattern2"] is cache["layers.2.attn_probs"]
    assert cache["mlp_post", 1] is cache["post", 1] is cache["layers.1.mlp_act"]
    # In TransformerLens this is what attention adds to the residual stream.
    assert cache["attn_out", 3] is cache["layers.3.attn_out_post"]


@pytest.mark.parametrize(
    ("parts", "full"),
    [
        (("k", 6, "a"), "blocks.6.attn.hook_k"),
        (("pre", 2), "blocks.2.mlp.hook_pre"),
        (("embed",), "hook_embed"),
        (("normalized", 27, "ln2"), "blocks.27.ln2.hook_normalized"),
        (("k6",), "blocks.6.attn.hook_k"),
        (("scale4ln1",), "blocks.4.ln1.hook_scale"),
        (("pre5",), "blocks.5.mlp.hook_pre"),
        (("scale",), "ln_final.hook_scale"),
        (("resid_post", 3), "blocks.3.hook_resid_post"),
        (("blocks.3.hook_resid_post",), "blocks.3.hook_resid_post"),
    ],
)
def test_short_forms(parts, full):
    assert get_act_name(*parts) == full


def test_shapes_are_those_of_transformer_lens(model, pair):
    logits, cache = model.run_with_cache(pair, names_filter=lambda name: True)
    assert logits.shape == (2, 13, 2048)
    assert cache["q", 0].shape == cache["z", 0].shape == (2, 13, 4, 32)
    assert cache["k", 0].shape == cache["v", 0].shape == (2, 13, 2, 32)
    assert cache["pattern", 0].shape == cache["attn_scores", 0].shape == (2, 4, 13, 13)
    assert cache["result", 0].shape == (2, 13, 4, 128)
    assert cache["scale", 0, "ln2"].shape == (2, 13, 1)
    assert cache["pre", 0].shape == cache["post", 0].shape == (2, 13, 384)


def test_one_prompt_is_a_batch_of_one(model, pair):
    logits, cache = model.run_with_cache(pair[0])
    assert logits.shape == (1, 13, 2048)
    assert cache["resid_post", 0].shape == (1, 13, 128)
    _, flat = model.run_with_cache(pair[0], remove_batch_dim=True)
    assert flat["resid_post", 0].shape == (13, 128)
    assert np.array_equal(flat["resid_post", 0], cache["resid_post", 0][0])


def test_a_cache_is_a_mapping_in_forward_order(model, pair):
    _, cache = model.run_with_cache(pair, names_filter=["blocks.2.attn.hook_z", "hook_embed", "resid_pre1"])
    assert list(cache) == ["hook_embed", "blocks.1.hook_resid_pre", "blocks.2.attn.hook_z"]
    assert len(cache) == 3
    assert dict(cache.items()).keys() == set(cache.keys())
    assert "z2" in cache
    assert ("z", 2) in cache
    assert "z3" not in cache
    assert "no such thing" not in cache
    assert "3 activations" in repr(cache)
    assert "blocks.2.attn.hook_z" in cache._repr_html_()


def test_filters(model, pair):
    def names(names_filter):
        return list(model.run_with_cache(pair[0], names_filter=names_filter)[1])

    layers = [f"blocks.{layer}.attn.hook_pattern" for layer in range(6)]
    assert names(lambda name: name.endswith("pattern")) == layers
    assert names("blocks.*.attn.hook_pattern") == layers
    assert names("layers.*.attn_probs") == layers
    assert names([("pattern", layer) for layer in range(6)]) == layers
    assert names([layers[3], lambda name: "blocks.1.attn.hook_pattern" in name]) == [layers[1], layers[3]]
    everything = names(None)
    assert "blocks.0.attn.hook_result" not in everything
    assert "blocks.0.hook_resid_mid" in everything


def test_values_are_those_of_a_trace(model, pair):
    logits, cache = model.run_with_cache(pair, names_filter="resid_post3")
    with model.trace(pair) as t:
        stream, answers = t.layers[3].resid_post.save(), t.logits.save()
    for row in range(2):
        assert np.array_equal(cache["resid_post", 3][row], stream.value[row])
        assert np.array_equal(logits[row], answers.value[row])


def test_resid_post_is_resid_pre_of_the_next_layer(family, tokens):
    _, cache = family.run_with_cache(tokens)
    for layer in range(1, family.cfg.n_layers):
        assert np.array_equal(cache["resid_post", layer - 1], cache["resid_pre", layer])


def test_stop_at_layer(model, pair):
    # Without patterns: capturing them turns fused attention off, which changes the rounding.
    _, whole = model.run_with_cache(pair, names_filter=lambda name: "resid" in name)
    stream, cache = model.run_with_cache(pair, stop_at_layer=2, names_filter=lambda name: "attn.hook" not in name)
    assert np.array_equal(stream, whole["resid_pre", 2])
    assert {name.split(".")[1] for name in cache if name.startswith("blocks.")} == {"0", "1"}
    assert "ln_final.hook_scale" not in cache
    assert np.array_equal(model(pair, stop_at_layer=-1), whole["resid_pre", 5])
    assert np.array_equal(model(pair, stop_at_layer=6), whole["resid_post", 5])
    assert np.array_equal(model(pair, stop_at_layer=0), whole["resid_pre", 0])


@pytest.mark.parametrize(
    ("pos_slice", "pick"),
    [(-1, -1), (slice(2, 5), slice(2, 5)), ((2, 5), slice(2, 5)), ([0, -1], [0, -1]), (np.array([3]), [3])],
)
def test_pos_slice(model, pair, pos_slice, pick):
    _, whole = model.run_with_cache(pair)
    logits, part = model.run_with_cache(pair, pos_slice=pos_slice)
    assert logits.shape == (2, 13, 2048)
    assert np.array_equal(part["resid_post", 3], whole["resid_post", 3][:, pick])
    assert np.array_equal(part["z", 3], whole["z", 3][:, pick])
    assert np.array_equal(part["pattern", 3], whole["pattern", 3][:, :, pick])


def test_prompts_of_unequal_length_are_padded_only_on_request(model, pair):
    long, short = pair[0], "Tom saw a dog. The"
    with pytest.raises(ValueError, match=r"prompts of 6 and 13 tokens[\s\S]*padded=True"):
        model.run_with_cache([long, short])
    logits, cache = model.run_with_cache([long, short], padded=True)
    assert cache.lengths == [13, 6]
    alone, of_short = model.run_with_cache(short)
    assert np.array_equal(logits[1, :6], alone[0])
    assert not logits[1, 6:].any()
    assert np.array_equal(cache["pattern", 2][1, :, :6, :6], of_short["pattern", 2][0])


def test_a_cached_value_cannot_be_changed(model, pair):
    for prompts in (pair, pair[0]):
        _, cache = model.run_with_cache(prompts, names_filter="z0")
        with pytest.raises(ValueError, match="read-only"):
            cache["z", 0][0] = 0


def test_slicing_the_batch_of_a_cache(model, pair):
    _, cache = model.run_with_cache(pair)
    second = cache["z", 1][1]
    with pytest.raises(ValueError, match="cannot remove the batch axis of 2 prompts"):
        cache.remove_batch_dim()
    assert cache.apply_slice_to_batch_dim(1) is cache
    assert not cache.has_batch_dim
    assert np.array_equal(cache["z", 1], second)
    assert cache.decompose_resid().shape == (13, 13, 128)
    assert cache.logit_lens(pos_slice=-1).shape == (7, 2048)


def test_the_residual_stream_is_the_sum_of_its_components(family, tokens):
    _, cache = family.run_with_cache(tokens)
    layers = family.cfg.n_layers
    stack, labels = cache.decompose_resid(return_labels=True)
    assert np.allclose(stack.sum(axis=0), cache["resid_post", -1], atol=1e-5)
    assert labels[0] == "embed"
    assert labels[-2:] == [f"{layers - 1}_attn_out", f"{layers - 1}_mlp_out"]
    early = cache.decompose_resid(layer=1)
    assert np.allclose(early.sum(axis=0), cache["resid_pre", 1], atol=1e-5)
    attention, names = cache.decompose_resid(mode="attn", incl_embeds=False, pos_slice=-1, return_labels=True)
    assert attention.shape == (layers, 2, family.cfg.d_model)
    assert names == [f"{layer}_attn_out" for layer in range(layers)]


def test_positions_are_components_where_the_model_has_them(gpt2, model, tokens):
    assert gpt2.run_with_cache(tokens)[1].decompose_resid(return_labels=True)[1][:2] == ["embed", "pos_embed"]
    assert model.run_with_cache(tokens)[1].decompose_resid(return_labels=True)[1][:2] == ["embed", "0_attn_out"]


def test_the_input_of_an_mlp(gpt2, tokens):
    _, cache = gpt2.run_with_cache(tokens)
    stack, labels = cache.decompose_resid(layer=1, mlp_input=True, return_labels=True)
    assert labels[-1] == "1_attn_out"
    assert np.allclose(stack.sum(axis=0), cache["resid_mid", 1], atol=1e-5)
    streams, names = cache.accumulated_resid(layer=1, incl_mid=True, mlp_input=True, return_labels=True)
    assert names == ["0_pre", "0_mid", "1_pre", "1_mid"]
    assert np.array_equal(streams[-1], cache["resid_mid", 1])


def test_accumulated_resid_with_the_final_norm(family, tokens):
    _, cache = family.run_with_cache(tokens, names_filter=None)
    streams, labels = cache.accumulated_resid(return_labels=True)
    assert labels == [*(f"{layer}_pre" for layer in range(family.cfg.n_layers)), "final_post"]
    normed = cache.accumulated_resid(apply_ln=True)
    assert np.allclose(normed[-1], cache["final_norm"], atol=1e-5)
    assert normed.shape == streams.shape


def test_the_logit_lens_of_the_last_layer_is_the_models_output(family, tokens):
    logits, cache = family.run_with_cache(tokens)
    lens, labels = cache.logit_lens(return_type="logits", return_labels=True)
    assert labels[-1] == "final_post"
    assert np.allclose(lens[-1], logits, atol=1e-4)
    assert np.allclose(cache.logit_lens(pos_slice=-1).sum(axis=-1), 1, atol=1e-4)
    assert np.allclose(np.exp(cache.logit_lens(return_type="log_probs")), cache.logit_lens(), atol=1e-6)


def test_heads_sum_to_attention(family, tokens):
    _, cache = family.run_with_cache(tokens, names_filter=lambda name: True)
    heads, labels = cache.stack_head_results(incl_remainder=True, return_labels=True)
    assert labels[1] == "L0H1"
    assert labels[-1] == "remainder"
    assert np.allclose(heads.sum(axis=0), cache["resid_post", -1], atol=1e-4)
    assert cache.stack_head_results(layer=1, pos_slice=-1).shape == (family.cfg.n_heads, 2, family.cfg.d_model)
    assert cache.stack_activation("z").shape[0] == family.cfg.n_layers


def test_loss(model, pair):
    logits, loss = model(pair, return_type="both")
    rows = [model.to_tokens(prompt) for prompt in pair]
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    picked = [log_probs[row, position, token] for row in range(2) for position, token in enumerate(rows[row][1:])]
    assert np.isclose(loss, -np.mean(picked), atol=1e-5)
    assert model(pair, return_type="loss") == loss
    assert model(pair, return_type=None) is None


def test_activations_that_were_not_cached(model, pair):
    _, cache = model.run_with_cache(pair, names_filter="z2")
    with pytest.raises(NotCached, match=r"blocks\.3\.attn\.hook_z.*did not cache"):
        cache["z", 3]
    with pytest.raises(KeyError, match=r"hook_z_grad[\s\S]*incl_bwd"):
        cache["z2_grad"]


def test_config_values(model, gpt2):
    facts = model.cfg
    assert (facts.n_layers, facts.d_model, facts.d_vocab, facts.n_ctx) == (6, 128, 2048, 256)
    assert (facts.n_heads, facts.n_key_value_heads, facts.d_head, facts.d_mlp) == (4, 2, 32, 384)
    assert (facts.normalization_type, facts.gated_mlp, facts.attn_only, facts.parallel_attn_mlp) == (
        "RMS",
        True,
        False,
        False,
    )
    assert (gpt2.cfg.normalization_type, gpt2.cfg.gated_mlp, gpt2.cfg.n_key_value_heads) == ("LN", False, None)
    assert "n_layers=6" in repr(facts)


def test_a_model_is_freed_with_its_last_reference(pair):
    one = pellucid.load()
    _, cache = one.run_with_cache(pair)
    assert one.cfg.normalization_type == "RMS"
    with one.hooks(fwd_hooks=[("z1", lambda z, hook: None)]):
        one(pair)
    reference = weakref.ref(one)
    del cache
    gc.disable()
    try:
        del one
        assert reference() is None
    finally:
        gc.enable()
