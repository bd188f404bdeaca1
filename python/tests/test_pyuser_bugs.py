"""Bugs that users of TransformerLens and nnsight found, one test each, under the bug's number."""

import subprocess
import sys

import numpy as np
import pytest
from conftest import BIRD, DOG, STORY

import pellucid


def test_b1_a_value_of_an_earlier_block_stands_on_either_side_of_an_operator(model):
    with model.session() as s:
        with s.trace(DOG) as t:
            v = t.layers[2].output[:, -1]
        with s.trace(BIRD) as t:
            here = t.layers[2].output[:, -1]
            left, right = (v - here).save(), (here - v).save()
            product = (v @ np.eye(128, 3, dtype=np.float32)).save()
    assert np.array_equal(left.value, -right.value)
    assert left.value.any()
    assert product.value.shape == (3,)


def test_b1_a_saved_value_stands_on_either_side_in_a_later_block(model):
    with model.trace(DOG) as t:
        v = t.layers[2].output[:, -1].save()
    with model.trace(BIRD) as t:
        here = t.layers[2].output[:, -1]
        left, right = (v - here).save(), (here - v).save()
        dot, same = (v @ here.unsqueeze(-1)).save(), (here @ v).save()
    assert np.array_equal(left.value, -right.value)
    assert np.allclose(dot.value, same.value, rtol=1e-4)


def test_b2_a_pattern_in_a_block_is_refused_not_cut_to_its_first_site(model):
    with model.trace(STORY) as t:
        for use in (
            lambda: t["layers.*.mlp_out"],
            lambda: t.__setitem__("layers.*.mlp_out", 0),
            lambda: t.sites["layers.{0,1}.z"],
            lambda: t.gradient(t.logits.sum(), "layers.*.z"),
        ):
            with pytest.raises(pellucid.SiteError, match=r"matches \d sites") as caught:
                use()
            assert "model.sites.find" in caught.value.hint
        one = t["layers.3-3.mlp_out"].save()
    assert one.value.shape == (13, 128)


@pytest.mark.parametrize("index", [-1, slice(-1, None), slice(2, None), [-1], [1], 1], ids=str)
def test_b3_negative_row_index_on_one_prompt_is_refused(model, index):
    with model.trace(STORY) as t:
        for value in (t.layers[2].resid_post, t.layers[2].resid_post * 2):
            with pytest.raises(pellucid.PlanError, match=r"\[:, ") as caught:
                value[index]
            assert "rows" in str(caught.value)
        with pytest.raises(pellucid.PlanError, match="rows"):
            t.layers[2].resid_post[index] = 0
        with t.row(DOG), pytest.raises(pellucid.PlanError, match="rows"):
            t.layers[2].resid_post[index]


def test_b3_row_zero_of_one_prompt_and_negative_rows_of_a_batch(model):
    with model.trace(STORY) as t:
        zero, doubled = t.layers[2].resid_post[0].save(), (t.layers[2].resid_post * 2)[0].save()
    assert np.array_equal(2 * zero.value, doubled.value)
    with model.trace([DOG, BIRD]) as t:
        last = (t.layers[2].resid_post * 1)[-1].save()
        with pytest.raises(pellucid.PlanError, match="there is no row -3"):
            (t.layers[2].resid_post * 1)[-3]
        with pytest.raises(pellucid.PlanError, match="invalid row index -1"):
            t.layers[2].resid_post[-1]
    with model.trace(BIRD) as t:
        alone = t.layers[2].resid_post.save()
    assert np.array_equal(last.value, alone.value)


def test_b4_a_padded_cache_reads_the_last_token_of_each_prompt(model):
    prompts = ["Once upon a time", "Tom"]
    _, padded = model.run_with_cache(prompts, padded=True)
    for row, prompt in enumerate(prompts):
        _, alone = model.run_with_cache(prompt)
        for pos_slice in (-1, slice(-1, None), [-1]):
            for method in ("logit_lens", "accumulated_resid", "decompose_resid", "stack_head_results"):
                of_batch = getattr(padded, method)(pos_slice=pos_slice)
                of_one = getattr(alone, method)(pos_slice=pos_slice)
                assert np.allclose(of_batch[:, row], of_one[:, 0], rtol=1e-4, atol=1e-4), (method, pos_slice)
        stack = padded.decompose_resid(pos_slice=-1)
        attrs = padded.logit_attrs(stack, " was", pos_slice=-1)
        expected = alone.logit_attrs(alone.decompose_resid(pos_slice=-1), " was", pos_slice=-1)
        assert np.allclose(attrs[:, row], expected[:, 0], rtol=1e-3, atol=1e-3)
    with pytest.raises(pellucid.InputError, match="prompt 1, which has 1 token"):
        padded.logit_lens(pos_slice=2)


def test_b4_padding_is_zero_and_never_nan(gpt2):
    """GPT-2 has biases, so the norm and the unembedding of padding are not zero by themselves."""
    _, padded = gpt2.run_with_cache([[1, 5, 9], [2]], padded=True)
    stack = padded.decompose_resid()
    for array in (
        padded.logit_lens(return_type="logits"),
        padded.apply_ln_to_stack(stack),
        padded.accumulated_resid(apply_ln=True),
        padded.get_full_resid_decomposition(expand_neurons=False),
    ):
        assert np.isfinite(array).all()
        assert array[:, 0].any()
        assert not array[:, 1, 1:].any()
    assert np.isfinite(padded.logit_attrs(stack, 3)).all()


def test_b4_one_prompt_of_a_padded_cache_has_its_own_length(model):
    _, padded = model.run_with_cache(["Once upon a time", "Tom"], padded=True)
    padded.apply_slice_to_batch_dim(1)
    assert padded["resid_post", 0].shape == (1, 128)
    assert padded["pattern", 0].shape == (4, 1, 1)
    assert padded["z", 0].shape == (1, 4, 32)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, np.float32(np.nan), np.float32(np.inf)], ids=str)
def test_b5_nan_and_infinity_written_as_a_number_are_errors(model, bad):
    def set_all(t):
        t.layers[2].resid_post[:] = bad

    def set_one(t):
        t.layers[2].resid_post[:, -1, 3] = bad

    def add(t):
        t.layers[2].resid_post += bad

    def scale(t):
        t.layers[2].resid_post *= bad

    def array(t):
        t.layers[2].resid_post = np.full(128, bad)

    for write in (set_all, set_one, add, scale, array):
        with pytest.raises(pellucid.PlanError, match=r"NaN|infinity") as caught, model.trace(STORY) as t:
            write(t)
            t.logits.save()
        assert caught.value.site == "layers.2.resid_post"
        with model.trace(STORY, allow_nan=True) as t:
            write(t)
            logits = t.logits.save()
        assert np.isnan(logits.value).any()


@pytest.mark.parametrize("bad", [1e39, -(10**400), np.float64(1e300), np.array([1e39])], ids=str)
def test_b5_a_number_beyond_f32_is_an_error(model, bad):
    with model.trace(STORY) as t:
        for use in (lambda: t.layers[2].resid_post.__setitem__(slice(None), bad), lambda: t.logits * bad):
            with pytest.raises(pellucid.PlanError, match="beyond the range of f32"):
                use()


def test_b5_minus_infinity_excludes_elements_of_a_softmax(model):
    with model.trace(STORY) as t:
        t.layers[0].attn_scores[:, :, 5:, 0] = -np.inf
        pattern = t.layers[0].attn_probs.save()
        t.logits[:, -1, 3] = -np.inf
        probs = t.logits[:, -1].softmax().save()
    assert not pattern.value[:, 5:, 0].any()
    assert probs.value[3] == 0


@pytest.mark.parametrize(
    "prompts",
    [
        np.array([[1.7, 2.9]]),
        np.array([1.0, 2.0]),
        [1.0, 2.0],
        [np.float64(1), 2],
        [[1, 2.5]],
        [True, False],
        np.array([True, False]),
        b"abc",
        [b"abc"],
        bytearray(b"abc"),
        memoryview(b"abc"),
        b"lone \\ud800 surrogate".decode("unicode_escape"),
    ],
    ids=lambda prompts: (
        f"{type(prompts).__name__} {prompts}"[:40]
        if not isinstance(prompts, (memoryview, str))
        else type(prompts).__name__
    ),
)
def test_b6_only_integers_are_token_ids(model, prompts):
    for use in (model, model.to_tokens, model.run, model.trace, model.generate, model.base):
        with pytest.raises(pellucid.InputError):
            use(prompts)


def test_b6_integers_of_any_library_are_token_ids(model):
    import pandas

    expected = model([1, 2, 3])
    for prompts in ((1, 2, 3), np.array([1, 2, 3], np.uint8), [np.int64(1), 2, np.int16(3)], range(1, 4)):
        assert np.array_equal(model(prompts), expected)
    assert np.array_equal(model(pandas.Series([1, 2, 3])), expected)
    assert (
        model.to_tokens(pandas.Series([DOG, BIRD]))
        == model.to_tokens(np.array([DOG, BIRD]))
        == model.to_tokens([DOG, BIRD])
    )
    with pytest.raises(pellucid.InputError, match="3 axes"):
        model(np.zeros((1, 1, 3), int))


def test_b7_tokens_of_a_generation_are_the_new_ones(model):
    generation = model.generate(STORY, max_new=3)
    assert generation.tokens == generation.result.tokens
    assert len(generation.tokens) == 3
    assert [len(row) for row in model.generate([STORY, DOG], max_new=2).tokens] == [2, 2]
    with model.generate(STORY, max_new=3) as t:
        with pytest.raises(pellucid.RecordError, match="before the block ends"):
            t.tokens  # noqa: B018 - reading it raises
    assert t.tokens == generation.tokens
    assert list(t.result.prompt) == model.to_tokens(STORY)


def test_b8_weights_are_read_only_and_replaced_by_with_weights(model, gpt2, logits):
    for array in (
        model.weight("layers.0.mlp.down"),
        model.W_Q,
        model.W_E,
        model.b_Q,
        model.blocks[0].attn.W_K,
        gpt2.W_O,
    ):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    before = logits(STORY)
    ablated = model.with_weights({"layers.0.mlp.down": np.zeros((128, 384))})
    with model.trace(STORY) as t:
        t.layers[0].mlp_out = 0
        expected = t.logits[:, -1].save()
    assert np.array_equal(logits(STORY, ablated), expected.value)
    assert np.array_equal(logits(STORY), before)
    assert not ablated.weight("layers.0.mlp.down").any()
    assert np.array_equal(ablated.W_out[1], model.W_out[1])


def test_b8_the_same_weights_give_the_same_bits(family, tokens):
    same = family.with_weights({name: family.weight(name) for name in family.weights})
    assert np.array_equal(same(tokens), family(tokens))


def test_b8_with_weights_keeps_edits_and_leaves_prefixes_apart(model):
    edited = model.edit({"taps": [{"site": "layers.1.mlp_out", "zero": True}]})
    halved = edited.with_weights({"final_norm.gain": 0.5 * model.weight("final_norm.gain")})
    assert len(halved.edits) == 1
    assert np.allclose(halved(STORY), 0.5 * edited(STORY), atol=1e-4)
    prefixes = model.prefixes()
    model.generate(STORY, max_new=2, prefixes=prefixes).text  # noqa: B018 - reading it runs it
    other = model.with_weights({"layers.0.mlp.down": np.zeros((128, 384))})
    with pytest.raises(pellucid.InputError, match="belong to another model"):
        other.generate(STORY, max_new=5, prefixes=prefixes).text  # noqa: B018 - reading it runs it


@pytest.mark.parametrize(
    ("weights", "match"),
    [
        ({"layers.0.mlp.dwon": np.zeros((128, 384))}, r"no weight is called.*\n.*did you mean .layers.0.mlp.down"),
        ({"layers.0.mlp.down": np.zeros((384, 128))}, r"shape \[128, 384\], and the array \[384, 128\]"),
        ({"layers.0.mlp.down": np.full((128, 384), np.nan)}, r"is NaN at \[0, 0\]"),
        ({"layers.0.mlp.down": np.full((128, 384), np.inf)}, r"is inf at \[0, 0\]"),
        ({"layers.0.mlp.down": "zero"}, "not an array"),
        ({3: np.zeros(3)}, "not a text"),
        ([("a", 1)], "does not map names to arrays"),
    ],
)
def test_b8_wrong_weights_are_refused(model, weights, match):
    with pytest.raises(pellucid.Error, match=match):
        model.with_weights(weights)


def test_b9_numpy_integers_are_accepted_everywhere(model):
    two = np.int64(2)
    _, cache = model.run_with_cache(STORY)
    vector = np.ones(128, np.float32)
    assert np.array_equal(cache["z", two], cache["z", 2])
    assert np.array_equal(model.steer(two, vector)(STORY), model.steer(2, vector)(STORY))
    assert np.array_equal(model(STORY, stop_at_layer=two), model(STORY, stop_at_layer=2))
    assert np.array_equal(model.blocks[two].attn.W_Q, model.blocks[2].attn.W_Q)
    assert np.array_equal(cache.accumulated_resid(two), cache.accumulated_resid(2))
    assert np.array_equal(cache.get_neuron_results(two, neuron_slice=two), cache.get_neuron_results(2, neuron_slice=2))
    assert pellucid.transformer_lens.get_act_name("z", two) == "blocks.2.attn.hook_z"
    assert model.logit_lens(STORY, layers=[two]).shape == (1, 1, 2048)
    assert model.skip_layers(two, two).generate(STORY, max_new=np.int32(1), seed=two).text
    with model.trace(STORY) as t:
        part = t.layers[two].resid_post[:, two : np.int64(4), two].topk(two)
        shaped = t.layers[two].resid_post.reshape(np.int64(-1), np.int64(13), two, np.int64(64)).sum(axis=two).save()
        with pytest.raises(pellucid.InputError, match="k is"):
            t.logits.topk(2.0)
        del part
    assert shaped.value.shape == (13, 64)


def test_b10_names_that_find_a_site_are_in_the_table(model):
    for name in ("layers.2.z", "blocks.2.attn.hook_z", "model.layers.2.output", "logits"):
        assert name in model.sites
        assert model.sites[name]
    for name in ("layers.9.z", "layers.*.z", "nonsense", 3, None, ("z", 2)):
        assert name not in model.sites


@pytest.mark.parametrize(
    "options",
    [
        {"max_new_tokens": 5},
        {"max_new": 0},
        {"max_new": -1},
        {"max_new": 2.5},
        {"temperature": "hot"},
        {"temperature": float("nan")},
        {"top_p": 2.0},
        {"seed": -1},
        {"stop": [""]},
        {"stop": 3},
        {"watch": 3},
    ],
    ids=str,
)
def test_b11_wrong_options_of_generate_are_refused_at_once(model, options):
    with pytest.raises(pellucid.InputError):
        model.generate(STORY, **options)


def test_b12_the_hint_to_detach_can_be_followed(model):
    with model.trace(STORY) as t:
        h = t.layers[2].resid_post
        called = t.call(lambda x: x * 2, h)
        loss = (t.logits[:, -1].sum() + called.detach().sum()).save()
        g = t.gradient(loss, h).save()
    with model.trace(STORY) as t:
        plain = t.gradient(t.logits[:, -1].sum(), t.layers[2].resid_post).save()
    assert np.array_equal(g.value, plain.value)


def test_b13_numpy_functions_of_the_same_names_are_recorded(model):
    with model.trace(STORY) as t:
        h = t.layers[2].resid_post
        clipped = np.clip(h, -1, 1).save()
        mean, largest = np.mean(h, axis=-1).save(), np.max(h, axis=-1, keepdims=True).save()
        where = np.where(h > 0, h, 0).save()
        joined = np.concatenate([h, h], axis=-1).save()
        norm = np.linalg.norm(h, axis=-1).save()
        whole = h.save()
        with pytest.raises(pellucid.RecordError, match=r"numpy's sort is not recorded\nhint: t.call"):
            np.sort(h)
        with pytest.raises(pellucid.RecordError, match="einsum is not recorded"):
            np.einsum("rpd->rp", h)
    x = whole.value
    assert np.array_equal(clipped.value, np.clip(x, -1, 1))
    assert np.allclose(mean.value, x.mean(-1), atol=1e-5)
    assert np.array_equal(largest.value, x.max(-1, keepdims=True))
    assert np.array_equal(where.value, np.where(x > 0, x, 0))
    assert joined.value.shape == (13, 256)
    assert np.allclose(norm.value, np.linalg.norm(x, axis=-1))


def test_b14_raw_errors_are_errors_of_the_package(model):
    with model.trace(STORY) as t:
        with pytest.raises(pellucid.PlanError, match=r"axis \(0, 1\) is not one axis"):
            t.layers[2].resid_post.mean((0, 1))
    assert model.generate(STORY, max_new=3, stop=".").text
    with pytest.raises(pellucid.InputError, match="two axes"):
        model.to_string(np.array([[1, 2]]))
    with pytest.raises(pellucid.InputError, match="whole numbers"):
        model.to_string([1.5])
    assert pellucid.load(dtype=np.float16).name == "builtin"
    with pytest.raises(pellucid.InputError, match="load has no option 'device'"):
        pellucid.load(device="cuda")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_b15_memory_of_a_freed_cache_returns_to_the_system():
    program = """
import gc, pellucid
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
model = pellucid.load()
tokens = [[1 + i % 2000 for i in range(256)]] * 24
model(tokens[:1])
before = resident()
_, cache = model.run_with_cache(tokens)
full = resident()
del cache, _
gc.collect()
print(before, full, resident())
"""
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    before, full, after = map(int, output.split())
    assert full - before > 200e6, "the cache is large enough to show the effect"
    assert after - before < 0.4 * (full - before)


def test_f9_arrays_are_copied_when_they_are_recorded(model):
    vectors = np.random.default_rng(0).normal(size=(6, 128)).astype(np.float32)

    def run(copy):
        buffer = np.zeros(128, np.float32)
        with model.trace(STORY) as t:
            for layer in range(6):
                buffer[:] = vectors[layer]
                t.layers[layer].resid_post += buffer.copy() if copy else buffer
            t.layers[5].resid_post[:, 0] = buffer
            product = (t.layers[0].resid_post @ buffer.reshape(128, 1)).save()
            logits = t.logits.save()
            buffer[:] = 7
        return logits.value, product.value

    for a, b in zip(run(True), run(False), strict=True):
        assert np.array_equal(a, b)


def test_f9_a_list_of_tokens_is_copied_when_the_block_is_created(model):
    tokens = model.to_tokens(STORY)
    with model.trace(tokens) as t:
        h = t.layers[0].resid_post.save()
        tokens.append(5)
    assert h.value.shape == (13, 128)


def test_f21_all_errors_are_errors_of_the_package(model):
    surrogate = b"\\ud800".decode("unicode_escape")
    cyclic = {"taps": []}
    cyclic["taps"].append(cyclic)
    for use in (
        lambda: model(surrogate),
        lambda: model.to_single_token(surrogate),
        lambda: model.generate(STORY, stop=surrogate),
        lambda: model.sites[surrogate],
        lambda: model.run(STORY, cyclic),
        lambda: model.run(STORY, {"taps": [{"site": surrogate, "zero": True}]}),
        lambda: model.run(STORY, {"taps": {1, 2}}),
        lambda: model.run(STORY, {("a", 1): 2}),
        lambda: model.run(STORY, 3),
        lambda: model.run(STORY, b"{}"),
        lambda: model.run(STORY, capture=3),
        lambda: model.run(STORY, capture="logits")["layers.0.z"],
        lambda: model.weight(3),
        lambda: pellucid.load(3),
        lambda: pellucid.load(surrogate),
    ):
        with pytest.raises(pellucid.Error):
            use()


def test_results_with_nan_say_where_they_began(model):
    def overflow(t):
        t.layers[2].mlp_out[:, 3] = 1e38
        t.layers[2].mlp_out[:, 3] *= 4.0

    with pytest.warns(
        RuntimeWarning,
        match=r"`layers\.5\.resid_post` has NaN; it first appears at `layers\.\d\.\w+`, row 0, position 3",
    ) as seen:
        with model.trace(STORY) as t:
            overflow(t)
            t.layers[5].resid_post.save()
    assert seen[0].filename == __file__
    with pytest.warns(RuntimeWarning, match="look at the recorded computation"):
        with model.trace(STORY) as t:
            (t.layers[0].resid_post * 0 / 0).save()
    with model.trace(STORY, allow_nan=True) as t:
        overflow(t)
        t.layers[5].resid_post.save()


def test_a_generation_without_finite_logits_is_an_error(model):
    with model.edit() as e:
        e.layers[2].mlp_out[:, -1] = 1e38
        e.layers[2].mlp_out *= 4.0
    with pytest.raises(pellucid.InputError, match="all logits of step 0 are NaN"):
        e.model.generate(STORY, max_new=2).text  # noqa: B018 - reading it runs it


def test_pickled_models_load_from_their_source(model):
    import pickle

    edited = model.edit({"taps": [{"site": "layers.1.mlp_out", "zero": True}]})
    again = pickle.loads(pickle.dumps(edited))
    assert np.array_equal(again(STORY), edited(STORY))
    with pytest.raises(pellucid.InputError, match="cannot be pickled"):
        pickle.dumps(model.with_weights({"final_norm.gain": np.ones(128)}))
    with model.trace(STORY) as t:
        h = t.layers[0].resid_post.save()
    assert np.array_equal(pickle.loads(pickle.dumps(h)), h.value)
    _, cache = model.run_with_cache(STORY)
    assert np.array_equal(pickle.loads(pickle.dumps(cache))["z", 2], cache["z", 2])


def test_the_representation_says_which_weights_these_are(model):
    assert repr(model) == "Model('builtin': llama, 6 layers, width 128, bf16)"
    assert "llama, 6 layers, width 128, bf16" in model._repr_html_()
    assert repr(pellucid.load(dtype="q8")).endswith("width 128, Q8_0)")
    assert "weights not loaded" in repr(pellucid.load(lazy=True))
    assert "1 standing edit)" in repr(model.skip_layers(1, 1))
