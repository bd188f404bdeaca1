"""Sparse autoencoders: loading, attaching, features in traces, splicing."""

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
