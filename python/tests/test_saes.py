"""Sparse autoencoders: loading, attaching, features in traces, splicing."""

from pathlib import Path

import numpy as np
import pytest

import pellucid

PROMPT = "Tom saw a dog in the park."
ACTS = "layers.3.resid_post/sae.acts"


@pytest.fixture(scope="module")
def sae():
    return pellucid.load_sae()


@pytest.fixture(scope="module")
def attached(model):
    return model.attach()


def test_encoding_equals_the_formula(model, sae):
    with model.trace(PROMPT) as t:
        x = t.layers[3].resid_post.save()
    x = np.asarray(x)
    pre = (x.astype(np.float64) - sae.b_dec) @ sae.W_enc.astype(np.float64) + sae.b_enc
    acts = sae.encode(x)
    assert acts.shape == (len(x), sae.n_features)
    assert np.allclose(sae.encode_pre(x), pre, atol=1e-4)
    assert (np.count_nonzero(acts, axis=-1) <= sae.cfg["k"]).all()
    expected = acts.astype(np.float64) @ sae.W_dec + sae.b_dec
    assert np.allclose(sae.decode(acts), expected, atol=1e-4)
    assert np.allclose(sae(x), expected, atol=1e-4)


def test_features_are_sites(model, attached, sae):
    assert attached.saes == {"layers.3.resid_post": sae.n_features}
    assert ACTS in attached.sites
    assert ACTS not in model.sites
    check = attached.sae_checks["layers.3.resid_post"]
    assert check["explained_variance"] > 0.7
    with attached.trace(PROMPT) as t:
        stream = t.layers[3].resid_post
        x, acts, recon = stream.save(), stream.sae.acts.save(), stream.sae.recon.save()
        logits = t.logits.save()
    assert np.array_equal(np.asarray(acts), sae.encode(np.asarray(x)))
    assert np.array_equal(np.asarray(recon), sae.decode(sae.encode(np.asarray(x))))
    with model.trace(PROMPT) as t:
        plain = t.logits.save()
    assert np.array_equal(np.asarray(plain), np.asarray(logits))


def test_a_feature_set_to_zero_removes_its_direction(model, attached, sae):
    with attached.trace(PROMPT) as t:
        acts = t.layers[3].resid_post.sae.acts.save()
    acts = np.asarray(acts)
    feature = int(acts[-1].argmax())
    with attached.trace(PROMPT) as t:
        t.layers[3].resid_post.sae.acts[:, -1, feature] = 0
        edited, logits = t.layers[4].resid_pre.save(), t.logits.save()
    with model.trace(PROMPT) as t:
        t.layers[3].resid_post[:, -1] -= acts[-1, feature] * sae.W_dec[feature]
        expected, expected_logits = t.layers[4].resid_pre.save(), t.logits.save()
    assert np.allclose(np.asarray(edited), np.asarray(expected), atol=1e-5)
    assert np.allclose(np.asarray(logits), np.asarray(expected_logits), atol=1e-3)


def test_gradients_of_features(attached, sae):
    with attached.trace(PROMPT) as t:
        acts = t.layers[3].resid_post.sae.acts
        out = t.layers[3].resid_post.sae.out
        score = t.logits[0, -1, 5]
        with score.backward():
            gradient, stream = acts.grad.save(), out.grad.save()
    assert np.allclose(np.asarray(gradient), np.asarray(stream) @ sae.W_dec.T, atol=1e-5)


def test_splicing(model, attached, sae):
    spliced = attached.spliced()
    with spliced.trace(PROMPT) as t:
        x, after = t.layers[3].resid_post.save(), t.layers[4].resid_pre.save()
        logits = t.logits.save()
    assert np.array_equal(np.asarray(after), sae.decode(sae.encode(np.asarray(x))))
    with model.trace(PROMPT) as t:
        plain = t.logits.save()
    assert not np.array_equal(np.asarray(plain), np.asarray(logits))
    with attached.spliced(error_term=True).trace(PROMPT) as t:
        same = t.logits.save()
    assert np.array_equal(np.asarray(plain), np.asarray(same))


def test_the_api_of_saelens(model, sae):
    plain = model(PROMPT)
    spliced = model.run_with_saes(PROMPT, saes=[sae])
    assert not np.array_equal(plain, spliced)
    assert np.array_equal(plain, model.run_with_saes(PROMPT, saes=[sae], use_error_term=True))
    _, cache = model.run_with_cache_with_saes(PROMPT, saes=[sae])
    acts = cache["blocks.3.hook_resid_post.hook_sae_acts_post"]
    assert acts.shape[-1] == sae.n_features
    assert np.array_equal(plain, model(PROMPT)), "the model itself is unchanged"


def test_detaching_restores_the_model(model, attached):
    restored = attached.detach()
    assert restored.saes == {}
    assert ACTS not in restored.sites
    assert np.array_equal(model(PROMPT), restored(PROMPT))


def test_generation_steered_by_a_feature(attached):
    plain = attached.generate("One day,", max_new=12)
    with attached.generate("One day,", max_new=12) as t:
        t.layers[3].resid_post.sae.acts[:, :, 7] += 20.0
    assert t.text != plain.text


def test_bad_input(model, attached, sae):
    with pytest.raises(pellucid.InputError, match=r"layers\.3\.resid_post"):
        model.attach(sae, "layers.1.resid_post")
    assert model.attach(sae, "layers.1.resid_post", unchecked=True).saes
    with pytest.raises(pellucid.Error, match="already attached"):
        attached.attach(sae)
    with pytest.raises(pellucid.Error, match="no SAE is attached"):
        with model.trace(PROMPT) as t:
            t.layers[3].resid_post.sae.acts.save()
    with pytest.raises(pellucid.Error, match="input channels"):
        sae.encode(np.zeros((3, 5)))
    with pytest.raises(pellucid.Error):
        model.attach("no/such/sae")
    with pytest.raises(pellucid.InputError, match="no SAE"):
        model.spliced()


def test_a_plan_names_the_saes_that_it_needs(model, attached):
    plan = {"saes": ["builtin"], "taps": [{"site": ACTS, "features": [531], "add": 30}]}
    edited = attached.edit(plan)
    assert edited.generate("Tom saw a", max_new=8).text != attached.generate("Tom saw a", max_new=8).text
    with pytest.raises(pellucid.InputError, match=r"the plan needs the SAE \"builtin\", which is not attached"):
        _ = model.edit(plan).generate("Tom saw a", max_new=2).text


def test_records_say_what_is_attached(model, attached):
    assert model.sae_records == []
    (record,) = attached.sae_records
    assert (record["path"], record["site"], record["kind"]) == ("builtin", "layers.3.resid_post", "topk")
    assert record["check"] == attached.sae_checks["layers.3.resid_post"]
    assert attached.spliced().sae_records == attached.sae_records
    assert attached.detach().sae_records == []
    assert model.attach(unchecked=True).sae_records[0]["check"] is None


def test_sparse_saves_have_the_nonzero_elements(attached):
    with attached.trace([PROMPT, "A cat."]) as t:
        acts = t.layers[3].resid_post.sae.acts
        dense, sparse = acts.save(), acts.save(sparse=True)
        part = acts[:, -2:].save(sparse=True)
    assert [array.shape for array in sparse.value] == [array.shape for array in dense.value]
    for whole, rows, last in zip(dense.value, sparse.value, part.value, strict=True):
        assert isinstance(rows, pellucid.SparseArray)
        assert np.array_equal(rows.to_dense(), whole)
        assert np.array_equal(np.asarray(rows), whole)
        assert rows.nnz == np.count_nonzero(whole) == len(rows.indices) == rows.indptr[-1]
        indices, values = rows.row(-1)
        assert np.array_equal(whole[-1, indices], values)
        assert np.array_equal(last.to_dense(), whole[-2:])
    with attached.trace(PROMPT) as t:
        one = t.layers[3].resid_post.sae.acts.save(sparse=True)
    assert one.value.shape == one.shape == sparse.value[0].shape
    assert "nnz=" in repr(one.value)


def test_sparse_arrays_become_scipy_arrays(attached):
    scipy = pytest.importorskip("scipy.sparse")
    with attached.trace(PROMPT) as t:
        acts = t.layers[3].resid_post.sae.acts.save(sparse=True)
    rows = acts.value.to_scipy()
    assert scipy.issparse(rows)
    assert np.array_equal(rows.toarray(), acts.value.to_dense())


def test_sparse_arrays_become_torch_tensors(attached):
    torch = pytest.importorskip("torch")
    with attached.trace(PROMPT) as t:
        acts = t.layers[3].resid_post.sae.acts.save(sparse=True)
    rows = acts.value
    assert rows.to_torch().layout == torch.sparse_csr
    assert np.array_equal(acts.torch().to_dense().numpy(), rows.to_dense())


def test_sparse_captures_of_plans_and_generations(attached):
    plan = {"taps": [{"site": ACTS, "capture": {"reduce": "sparse"}}]}
    with attached.trace(PROMPT) as t:
        dense = t.layers[3].resid_post.sae.acts.save()
    captures = attached.run(PROMPT, plan)
    assert np.array_equal(captures[ACTS].to_dense(), dense.value)
    assert "sparse" in captures._repr_html_()
    with attached.generate(PROMPT, max_new=4) as t:
        acts = t.layers[3].resid_post.sae.acts.save(sparse=True)
    assert acts.value.shape[0] == len(dense.value) + 3
    assert np.array_equal(acts.value.to_dense()[: len(dense.value)], dense.value)


def test_sparse_saves_are_refused_where_they_cannot_be(attached):
    with attached.trace(PROMPT) as t:
        acts = t.layers[3].resid_post.sae.acts
        with pytest.raises(pellucid.PlanError, match="keeps the axes"):
            acts[:, -1].save(sparse=True)
        with t.logits[0, -1, 5].backward(), pytest.raises(pellucid.PlanError, match="not sparse"):
            acts.grad.save(sparse=True)
        saved = acts.save(sparse=True)
    with pytest.raises(pellucid.PlanError, match="to_dense"), attached.trace(PROMPT) as t:
        t.layers[3].resid_post.sae.acts += saved


CLT = Path(__file__).parents[2] / "tests/sae/clt"


@pytest.fixture(scope="module")
def transcoded():
    gpt2 = pellucid.load(Path(__file__).parents[2] / "tests/golden/models/gpt2")
    return gpt2.attach(CLT)


def test_a_cross_layer_transcoder_is_attached_as_a_whole(transcoded):
    sites = [f"layers.{layer}.mlp_out_post" for layer in range(3)]
    assert list(transcoded.saes) == sites
    ids = [5, 17, 42, 8]
    with transcoded.trace(ids) as t:
        acts = [t[f"{site}/sae.acts"].save() for site in sites]
        recon = t[f"{sites[2]}/sae.recon"].save()
        out = t["layers.2.mlp_out_post"].save()
    layers = [pellucid.load_sae(CLT / f"W_enc_{layer}.safetensors") for layer in range(3)]
    # One layer alone decodes into its own layer; the difference comes from the earlier ones.
    assert np.abs(recon.value - layers[2].decode(acts[2].value)).max() > 0.1
    feature = int(acts[0].value[2].argmax())
    with transcoded.trace(ids) as t:
        t[f"{sites[0]}/sae.acts"][:, 2, feature] = 0
        changed = t["layers.2.mlp_out_post/sae.out"].save()
    assert np.abs(changed.value[2] - out.value[2]).max() > 1e-3
    assert np.array_equal(changed.value[:2], out.value[:2])
    assert transcoded.detach(sites[1]).saes == {}


def test_one_layer_of_a_cross_layer_transcoder_is_refused(transcoded):
    layer = pellucid.load_sae(CLT / "W_enc_1.safetensors")
    with pytest.raises(pellucid.InputError, match="one layer of a cross-layer transcoder"):
        transcoded.detach().attach(layer)
