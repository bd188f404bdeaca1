"""Speculative tokens, the prefix cache, threads per call and the KV cache dtype."""

import numpy as np
import pytest
from conftest import BIRD, DOG, STORY

import pellucid


def test_lookup_changes_no_token(model):
    first = model.generate(STORY, max_new=50, eos=False).result
    again = STORY + first.text + " " + STORY
    for options in [{}, {"temperature": 0.8, "seed": 3}]:
        plain = model.generate(again, max_new=30, eos=False, **options).result
        drafted = model.generate(again, max_new=30, eos=False, lookup=5, **options).result
        assert drafted.tokens == plain.tokens
        assert drafted.drafted >= drafted.accepted
        assert plain.drafted == 0
    assert model.generate(again, max_new=30, eos=False, lookup=5).result.accepted > 0


def test_lookup_is_off_where_steps_are_read(model):
    with model.generate(STORY, max_new=8, eos=False, lookup=5) as t:
        t.steps[:].logits[:, -1].save()
    assert t.result.drafted == 0


def test_a_prefix_gives_bit_identical_results(model):
    prefix = model.prefix(DOG)
    prompt = DOG + " dog was big."
    shared = len(model.to_tokens(DOG))

    def last(**options):
        with model.trace(prompt, **options) as t:
            logits = t.logits[:, -1].save()
        return logits.value

    assert np.array_equal(last(prefixes=prefix), last())
    assert (prefix.kept, prefix.hits) == (1, 1)
    assert 0 < prefix.tokens <= shared
    result = model.generate(prompt, max_new=4, prefixes=prefix).result
    assert result.tokens == model.generate(prompt, max_new=4).result.tokens
    assert result.reused == prefix.tokens // 2
    found = model.run(prompt, capture="layers.*.resid_post", prefixes=prefix)
    plain = model.run(prompt, capture="layers.*.resid_post")
    assert all(np.array_equal(found[site], plain[site]) for site in plain)
    assert prefix.hits == 2, "captured positions are computed, not reused"


def test_a_prefix_cache_adds_and_clears(model):
    cache = model.prefixes(megabytes=32)
    first = model.generate([DOG, BIRD], max_new=6, prefixes=cache).result
    assert (cache.kept, cache.hits) == (2, 0)
    assert cache.bytes > 0
    second = model.generate([DOG, BIRD], max_new=6, prefixes=cache).result
    assert [row.tokens for row in first] == [row.tokens for row in second]
    assert all(row.reused > 0 for row in second)
    cache.add(STORY)
    assert cache.kept == 3
    assert "3 kept" in repr(cache)
    cache.clear()
    assert cache.bytes == 0


def test_a_prefix_cache_belongs_to_one_model(model, gpt2):
    with pytest.raises(pellucid.InputError, match="another model"):
        gpt2.run([[1, 2, 3]], capture="logits", prefixes=model.prefix(DOG))


def test_threads_of_a_call(model, logits):
    with model.trace(STORY, threads=1) as t:
        alone = t.logits[:, -1].save()
    assert np.array_equal(alone.value, logits(STORY))
    assert model.generate(STORY, max_new=5, threads=1).text == model.generate(STORY, max_new=5).text
    with pytest.raises(pellucid.InputError, match="threads is 0"):
        model.run(STORY, capture="logits", threads=0)


def test_a_bf16_kv_cache(logits):
    narrow = pellucid.load(kv="bf16")
    difference = np.abs(logits(STORY, narrow) - logits(STORY)).max()
    assert 0 < difference < 0.2
    with pytest.raises(pellucid.InputError, match="kv"):
        pellucid.load(kv="int8")
