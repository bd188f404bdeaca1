"""Weights in TransformerLens shapes, decompositions that use them, and processed weights."""

import numpy as np
import pytest
from conftest import GOLDEN

import pellucid


def test_shapes(model):
    assert model.W_Q.shape == model.W_K.shape == model.W_V.shape == (6, 4, 128, 32)
    assert model.W_O.shape == (6, 4, 32, 128)
    assert model.b_Q.shape == model.b_K.shape == model.b_V.shape == (6, 4, 32)
    assert model.b_O.shape == model.b_out.shape == (6, 128)
    assert model.W_in.shape == model.W_gate.shape == (6, 128, 384)
    assert model.W_out.shape == (6, 384, 128)
    assert model.b_in.shape == model.b_gate.shape == (6, 384)
    assert model.W_E.shape == (2048, 128)
    assert model.W_U.shape == (128, 2048)
    assert model.b_U.shape == (2048,)
    assert model.OV.shape == model.QK.shape == (6, 4, 128, 128)


def test_weights_reproduce_the_models_projections(family, tokens):
    _, cache = family.run_with_cache(tokens)
    repeated = family.cfg.n_heads // (family.cfg.n_key_value_heads or family.cfg.n_heads)
    for layer in range(family.cfg.n_layers):
        entering = cache[f"layers.{layer}.attn_in"]
        for name, point, repeat in (("Q", "q", 1), ("K", "k", repeated), ("V", "value", repeated)):
            weight, bias = getattr(family, f"W_{name}")[layer], getattr(family, f"b_{name}")[layer]
            heads = np.einsum("bpd,hde->bphe", entering, weight) + bias
            assert np.allclose(heads, cache[f"layers.{layer}.{point}"].repeat(repeat, axis=-2), atol=1e-4)
        out = np.einsum("bphe,hed->bpd", cache["z", layer], family.W_O[layer]) + family.b_O[layer]
        assert np.allclose(out, cache[f"layers.{layer}.attn_out"], atol=1e-4)


def test_weights_of_an_mlp(model, gpt2, tokens):
    for of in (model, gpt2):
        _, cache = of.run_with_cache(tokens)
        entering = cache["layers.1.mlp_in"]
        linear = "layers.1.mlp_pre_linear" if of.cfg.gated_mlp else "layers.1.mlp_pre"
        assert np.allclose(entering @ of.W_in[1] + of.b_in[1], cache[linear], atol=1e-4)
        assert np.allclose(cache["post", 1] @ of.W_out[1] + of.b_out[1], cache["mlp_out", 1], atol=1e-4)
    assert np.allclose(entering @ gpt2.blocks[1].mlp.W_in + gpt2.blocks[1].mlp.b_in, cache["pre", 1], atol=1e-4)
    with pytest.raises(pellucid.SiteError, match="is not gated"):
        _ = gpt2.W_gate


def test_embedding_and_unembedding(family, tokens):
    logits, cache = family.run_with_cache(tokens)
    assert np.array_equal(family.W_E[tokens], cache["embed"])
    assert np.allclose(cache["final_norm"] @ family.W_U + family.b_U, logits, atol=1e-4)
    gained = cache["ln_final.hook_normalized"] * family.ln_final.w + family.ln_final.b
    assert np.allclose(gained, cache["final_norm"], atol=1e-5)


def test_norms_and_positions(gpt2, model, tokens):
    _, cache = gpt2.run_with_cache(tokens)
    for layer, block in enumerate(gpt2.blocks):
        gained = cache["normalized", layer, "ln1"] * block.ln1.w + block.ln1.b
        assert np.allclose(gained, cache[f"layers.{layer}.attn_in"], atol=1e-5)
        gained = cache["normalized", layer, "ln2"] * block.ln2.w + block.ln2.b
        assert np.allclose(gained, cache[f"layers.{layer}.mlp_in"], atol=1e-5)
    assert np.array_equal(gpt2.W_pos[:5], cache["pos_embed"][0])
    with pytest.raises(pellucid.SiteError, match="no absolute positions"):
        _ = model.W_pos


def test_ov_and_qk_circuits(model, pair):
    _, cache = model.run_with_cache(pair)
    head = model.OV[2, 1]
    by_factors = cache["layers.2.attn_in"] @ head.A @ head.B
    assert np.allclose(by_factors, cache["layers.2.attn_in"] @ (model.W_V[2, 1] @ model.W_O[2, 1]), atol=1e-4)
    assert np.allclose(model.blocks[2].attn.QK[1].AB, model.QK[2, 1].AB)


def test_layers_without_neurons_have_no_mlp_weights():
    with pytest.raises(pellucid.SiteError, match="no neurons"):
        _ = pellucid.load(GOLDEN / "mixtral").W_in


def test_attributions_sum_to_the_logits(family, tokens):
    logits, cache = family.run_with_cache(tokens)
    stack, _ = cache.decompose_resid(return_labels=True)
    attributions = cache.logit_attrs(stack, 3, incorrect_tokens=4)
    constant = (family.ln_final.b @ family.W_U + family.b_U)[[3, 4]]
    difference = logits[..., 3] - logits[..., 4] - (constant[0] - constant[1])
    assert attributions.shape == (len(stack), *tokens.shape)
    assert np.allclose(attributions.sum(axis=0), difference, atol=1e-4)


def test_attributions_of_texts_rows_and_positions(model, pair):
    logits, cache = model.run_with_cache(pair)
    stack = cache.decompose_resid(pos_slice=-1)
    names = [model.to_single_token(name) for name in (" Tom", " Lily")]
    each = cache.logit_attrs(stack, [" Tom", " Lily"], [" Lily", " Tom"], pos_slice=-1)
    expected = [logits[0, -1, names[0]] - logits[0, -1, names[1]], logits[1, -1, names[1]] - logits[1, -1, names[0]]]
    assert np.allclose(each.sum(axis=0), expected, atol=1e-4)
    first = cache.logit_attrs(cache.decompose_resid(), " Tom", batch_slice=0)
    assert np.allclose(first.sum(axis=0), logits[0, :, names[0]], atol=1e-4)
    with pytest.raises(pellucid.InputError, match="pass the same shape for both"):
        cache.logit_attrs(stack, names, 3, pos_slice=-1)
    with pytest.raises(pellucid.InputError, match="not tokens"):
        cache.logit_attrs(stack, 5000)


def test_heads_from_z_and_the_output_weights(family, tokens):
    _, from_z = family.run_with_cache(tokens)
    _, with_result = family.run_with_cache(tokens, names_filter=lambda name: True)
    assert np.allclose(from_z.stack_head_results(), with_result.stack_head_results(), atol=1e-5)


def test_norms_applied_with_their_own_scale(gpt2, tokens):
    _, cache = gpt2.run_with_cache(tokens)
    for layer, mlp_input, site in (
        (1, False, "layers.1.attn_in"),
        (1, True, "layers.1.mlp_in"),
        (None, False, "final_norm"),
    ):
        stack = cache.decompose_resid(layer, mlp_input=mlp_input, apply_ln=True)
        bias = gpt2.ln_final.b if layer is None else getattr(gpt2.blocks[1], "ln2" if mlp_input else "ln1").b
        assert np.allclose(stack.sum(axis=0) + bias, cache[site], atol=1e-4)


def test_heads_neurons_embeddings_and_biases_sum_to_the_residual_stream(family, tokens):
    _, cache = family.run_with_cache(tokens)
    for expand in (True, False):
        stack, labels = cache.get_full_resid_decomposition(expand_neurons=expand, return_labels=True)
        assert np.allclose(stack.sum(axis=0), cache["resid_post", -1], atol=1e-4)
        assert len(labels) == len(stack)
        assert labels[-1] == "bias"
        biases = family.b_O.sum(axis=0)
        if expand and family.cfg.d_mlp is not None:
            biases = biases + family.b_out.sum(axis=0)
        assert np.allclose(stack[-1], biases, atol=1e-4)


def test_neurons(model, pair):
    _, cache = model.run_with_cache(pair)
    neurons, labels = cache.stack_neuron_results(layer=2, neuron_slice=(0, 3), pos_slice=-1, return_labels=True)
    assert labels == ["L0N0", "L0N1", "L0N2", "L1N0", "L1N1", "L1N2"]
    assert neurons.shape == (6, 2, 128)
    assert np.allclose(neurons[4], cache["post", 1][:, -1, 1, None] * model.W_out[1, 1], atol=1e-5)
    whole = cache.get_neuron_results(3, pos_slice=-1)
    assert np.allclose(whole.sum(axis=-2), cache["mlp_out", 3][:, -1], atol=1e-4)
    rest = cache.stack_neuron_results(neuron_slice=5, pos_slice=-1, incl_remainder=True, apply_ln=True)
    assert rest.shape == (7, 2, 128)


def test_folded_weights_give_the_same_activations(gpt2, tokens):
    logits, cache = gpt2.run_with_cache(tokens, names_filter=lambda name: True)
    processed = gpt2.processed(fold_ln=True, center_writing_weights=True, center_unembed=True, fold_value_biases=True)
    assert processed.record == ("fold_ln", "center_writing_weights", "center_unembed", "fold_value_biases")
    assert "fold_ln" in repr(processed)
    seen = processed.cache(cache)
    for layer in range(gpt2.cfg.n_layers):
        normed = seen["normalized", layer, "ln1"]
        assert seen[f"layers.{layer}.attn_in"] is normed
        for name in ("q", "k", "v"):
            weight, bias = (
                getattr(processed, f"W_{name.upper()}")[layer],
                getattr(processed, f"b_{name.upper()}")[layer],
            )
            assert np.allclose(np.einsum("bpd,hde->bphe", normed, weight) + bias, seen[name, layer], atol=1e-4)
        out = np.einsum("bphe,hed->bpd", seen["z", layer], processed.W_O[layer]) + processed.b_O[layer]
        assert np.allclose(out, seen["attn_out", layer], atol=1e-4)
        neurons = seen["normalized", layer, "ln2"] @ processed.W_in[layer] + processed.b_in[layer]
        assert np.allclose(neurons, seen["pre", layer], atol=1e-4)
        assert np.allclose(
            seen["post", layer] @ processed.W_out[layer] + processed.b_out[layer], seen["mlp_out", layer], atol=1e-4
        )
    end = seen["ln_final.hook_normalized"] @ processed.W_U + processed.b_U
    assert np.allclose(end, processed.logits(logits), atol=1e-4)
    assert np.allclose(seen["resid_post", -1].mean(axis=-1), 0, atol=1e-5)
    assert np.allclose(processed.W_E[tokens] + processed.W_pos[:5], seen["resid_pre", 0], atol=1e-5)
    assert np.allclose(processed.W_Q.mean(axis=-2), 0, atol=1e-6)
    assert not processed.b_V.any()
    assert np.allclose(seen["result", 1].sum(axis=-2) + processed.b_O[1], seen["attn_out", 1], atol=1e-4)


def test_processing_of_grouped_heads_and_gates(model, pair):
    logits, cache = model.run_with_cache(pair)
    processed = model.processed(fold_ln=True, center_unembed=True)
    seen = processed.cache(cache)
    gate = seen["normalized", 2, "ln2"] @ processed.W_gate[2] + processed.b_gate[2]
    assert np.allclose(gate, seen["pre", 2], atol=1e-4)
    keys = np.einsum("bpd,hde->bphe", seen["normalized", 2, "ln1"], processed.W_K[2])
    assert np.allclose(keys[:, :, ::2], seen["k", 2], atol=1e-4)
    assert np.allclose(seen["normalized"] @ processed.W_U, processed.logits(logits), atol=1e-4)
    assert processed.OV.shape == processed.QK.shape == (6, 4, 128, 128)
    assert np.array_equal(model(pair), logits) or np.allclose(model(pair), logits, atol=1e-4)


def test_nothing_is_processed_by_default(model):
    processed = model.processed()
    assert processed.record == ()
    assert np.array_equal(processed.W_Q, model.W_Q)
    assert np.array_equal(processed.W_U, model.W_U)
    with pytest.raises(pellucid.InputError, match="norms do not subtract the mean"):
        model.processed(center_writing_weights=True)
