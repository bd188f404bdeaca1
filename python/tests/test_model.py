"""Properties of a model: sites, tokens, weights, notebook display."""

import numpy as np
import pytest
from conftest import STORY

import pellucid


def test_model_properties(model):
    assert (model.name, model.n_layers, model.d_model, model.vocab_size, model.n_ctx) == ("builtin", 6, 128, 2048, 256)
    former = (model.layers, model.width, model.vocabulary, model.context)
    assert former == (model.n_layers, model.d_model, model.vocab_size, model.n_ctx)
    assert pellucid.lens.get_act_name is pellucid.transformer_lens.get_act_name
    assert "llama" in repr(model)
    assert "vocab_size" in model._repr_html_()
    assert pellucid.__version__


def test_sites_are_a_table(model):
    site = model.sites["blocks.3.hook_resid_post"]
    assert (site.address, site.shape, site.layer, site.point) == (
        "layers.3.resid_post",
        ("tokens", 128),
        3,
        "resid_post",
    )
    assert model.sites["layers.0.attn_probs"].shape[1:] == ("tokens", "tokens")
    assert [found.layer for found in model.sites.find("layers.1-3.z")] == [1, 2, 3]
    assert "logits" in model.sites
    assert len(list(model.sites)) == len(model.sites)
    assert "layers.0.resid_pre" in model.sites._repr_html_()
    with pytest.raises(pellucid.SiteError, match="did you mean"):
        model.sites["layers.0.resid_psot"]


def test_every_site_has_the_documented_shape(model):
    captures = model.run(STORY, capture=[site.address for site in model.sites])
    for site in model.sites:
        expected = tuple(13 if length == "tokens" else length for length in site.shape)
        assert captures[site.address].shape == expected


def test_tokens_and_texts(model):
    tokens = model.to_tokens(STORY)
    assert len(tokens) == len(model.to_str_tokens(STORY)) == 13
    assert model.to_string(tokens, skip_special=True) == STORY
    assert model.to_str_tokens(tokens) == model.to_str_tokens(STORY)
    assert model.to_string(model.to_single_token(" Lily")) == " Lily"
    with pytest.raises(pellucid.InputError, match="not one token"):
        model.to_single_token(" Lily and a dog")


@pytest.mark.parametrize("form", [list, tuple, np.array, lambda tokens: np.array(tokens, np.uint16)])
def test_token_ids_in_any_form(model, logits, form):
    assert np.array_equal(logits(form(model.to_tokens(STORY))), logits(STORY))


def test_a_matrix_of_tokens_is_a_batch(model, logits):
    tokens = model.to_tokens(STORY)
    rows = logits(np.array([tokens, tokens[::-1]]))
    assert len(rows) == 2
    assert np.array_equal(rows[0], logits(STORY))


def test_a_list_of_one_prompt_gives_a_list(model, logits):
    rows = logits([STORY])
    assert isinstance(rows, list)
    assert np.array_equal(rows[0], logits(STORY))


def test_weights_have_names_and_shapes(model):
    weights = model.weights
    assert all(model.weight(name).shape == shape for name, shape in list(weights.items())[:8])


def test_loading_with_options(logits):
    narrow = pellucid.load(dtype="bf16", threads=1)
    assert np.array_equal(logits(STORY, narrow), logits(STORY))


def test_a_lazy_model_loads_on_first_use():
    model = pellucid.load(lazy=True)
    assert model.to_tokens(STORY)
    assert len(model.sites) == 156
    assert not model.loaded
    assert model.generate(STORY, max_new=1).text
    assert model.loaded


def test_values_display_themselves(model):
    with model.trace(STORY) as t:
        stream = t.layers[0].resid_post.save()
        cache = t.cache("logits")
        assert "not run" in stream._repr_html_()
    assert "[13, 128]" in stream._repr_html_()
    assert "Value(" in repr(stream)
    assert "logits" in cache._repr_html_()
    assert "1 sites" in repr(cache)
