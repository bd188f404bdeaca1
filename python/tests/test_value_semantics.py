"""Recorded values against numpy on the same arrays: random subscripts, broadcasts and reductions
with fixed seeds. Inside a block axis 0 is the rows, so numpy sees the array with an axis in front.
"""

import numpy as np
import pytest
from conftest import DOG, STORY

import pellucid


@pytest.fixture(scope="module")
def stream(model):
    """The residual stream that the tests index, `[1, positions, d_model]`."""
    with model.trace(STORY) as t:
        h = t.layers[2].resid_post.save()
    return h.value[None]


def random_index(rng, length):
    """One index of an axis: an integer, a slice, a list or a mask."""
    kind = rng.integers(6)
    if kind == 0:
        return int(rng.integers(-length, length))
    if kind == 1:
        start, stop = sorted(rng.integers(-length, length, 2).tolist())
        return slice(start, stop)
    if kind == 2:
        return slice(None, None, int(rng.choice([-3, -1, 2])))
    if kind == 3:
        return rng.integers(-length, length, rng.integers(1, 5)).tolist()
    if kind == 4:
        mask = rng.random(length) < 0.5
        mask[0] = True
        return mask
    return slice(None)


def expected_at(array, key):
    """numpy's outer indexing: each axis by itself, as torch's index_select and our values do."""
    for axis in reversed(range(len(key))):
        index = [slice(None)] * array.ndim
        index[axis] = key[axis]
        array = array[tuple(index)]
    return array


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_subscripts(model, stream, seed):
    rng = np.random.default_rng(seed)
    key = tuple(random_index(rng, length) for length in stream.shape[1:])
    expected = expected_at(stream, (slice(None), *key))
    refused = None
    try:
        with model.trace(STORY) as t:
            h = t.layers[2].resid_post
            site, computed = h[(slice(None), *key)].save(), (h * 1)[(slice(None), *key)]
            assert computed.shape == expected.shape
            computed = computed.save()
        assert np.array_equal(site.value, expected[0])
        assert np.array_equal(computed.value, expected[0])
    except (pellucid.PlanError, pellucid.RecordError) as error:
        refused = error
    # An empty selection may be refused, nothing else.
    assert refused is None or expected.size == 0, refused


@pytest.mark.parametrize("seed", range(40))
def test_writes(model, stream, seed):
    rng = np.random.default_rng(100 + seed)
    key = (slice(None), *(random_index(rng, length) for length in stream.shape[1:]))
    if expected_at(stream, key).size == 0:
        return
    expected = stream.copy()
    positions, units = (np.atleast_1d(np.arange(n)[k]) for n, k in zip(stream.shape[1:], key[1:], strict=True))
    expected[np.ix_([0], positions, units)] = 7.5
    with model.trace(STORY) as t:
        h = t.layers[2].resid_post
        update = h * 1
        update[key] = 7.5
        update = update.save()
        h[key] = 7.5
        h = t.layers[2].resid_post.save()
    assert np.array_equal(update.value, expected[0])
    assert np.array_equal(h.value, expected[0])


REDUCTIONS = {
    "sum": np.sum,
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "argmax": np.argmax,
    "var": np.var,
    "std": np.std,
    "norm": lambda a, axis, keepdims: np.sqrt(np.sum(np.square(a), axis=axis, keepdims=keepdims)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(model, stream, name):
    for axis in (None, 0, 1, 2, -1, -2, -3):
        for keepdims in (False, True):
            with model.trace(STORY) as t:
                recorded = getattr(t.layers[2].resid_post, name)(axis=axis, keepdims=keepdims).save()
            expected = REDUCTIONS[name](stream, axis=axis, keepdims=keepdims)
            # Without the row axis: it is removed from results that still have it.
            if axis in (1, 2, -1, -2):
                expected = expected[0]
            elif keepdims and axis is None:
                expected = expected.reshape(np.asarray(recorded.value).shape)
            assert np.asarray(recorded.value).shape == expected.shape, (axis, keepdims)
            assert np.allclose(recorded.value, expected, rtol=1e-4, atol=1e-4), (axis, keepdims)


@pytest.mark.parametrize("name", ["sum", "mean", "max", "argmax"])
def test_torch_spellings_mean_the_same(model, name):
    with model.trace(STORY) as t:
        h = t.layers[2].resid_post
        a = getattr(h, name)(axis=-1, keepdims=True).save()
        b = getattr(h, name)(dim=-1, keepdim=True).save()
        c = getattr(h.clone().detach().cpu().float(), name)(2, True).save()
    assert np.array_equal(a.value, b.value)
    assert np.array_equal(a.value, c.value)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.filterwarnings("ignore")
def test_broadcasts(model, stream, seed):
    rng = np.random.default_rng(200 + seed)
    shapes = [(), (1,), (128,), (13, 1), (1, 128), (13, 128), (1, 1), (13,), (128, 1), (2, 13, 128)]
    shape = shapes[seed % len(shapes)]
    other = rng.normal(size=shape).astype(np.float32)
    other.flat[0] = 0
    for name in (
        "__add__",
        "__sub__",
        "__rsub__",
        "__mul__",
        "__truediv__",
        "__rtruediv__",
        "__lt__",
        "__eq__",
        "maximum",
    ):
        function = np.maximum if name == "maximum" else lambda a, b, name=name: getattr(a, name)(b)
        try:
            expected = function(stream[0], other)
        except ValueError:
            expected = None
        try:
            with model.trace(STORY, allow_nan=True) as t:
                recorded = getattr(t.layers[2].resid_post, name)(other).save()
        except pellucid.PlanError:
            assert expected is None, (name, shape)
            continue
        assert expected is not None, (name, shape)
        assert np.array_equal(recorded.value, np.float32(expected), equal_nan=True), (name, shape)


def test_ties_division_by_zero_and_dtypes(model):
    with model.trace(DOG, allow_nan=True) as t:
        h = t.layers[0].resid_post
        ties = t.constant(np.array([1.0, 3.0, 3.0, 2.0, 3.0], np.float32))
        first, (values, indices) = ties.argmax().save(), ties.topk(4)
        values, indices = values.save(), indices.save()
        inf, nan = (abs(h) / 0).save(), (h * 0 / 0).save()
        whole = (h / 2).save()
        mask = (h > 0).save()
    assert first.value == 1
    assert first.value.dtype == indices.value.dtype == np.int64
    assert values.value.tolist() == [3.0, 3.0, 3.0, 2.0]
    assert indices.value.tolist() == [1, 2, 4, 3]
    assert np.isinf(inf.value).all()
    assert np.isnan(nan.value).all()
    assert whole.value.dtype == mask.value.dtype == np.float32


def test_saved_values_are_arrays_after_the_block(model):
    with model.trace(STORY) as t:
        h = t.layers[2].resid_post.save()
        number = t.logits[:, -1].max(-1).save()
        top = t.logits[:, -1].argmax(-1).save()
        rows = (t.layers[2].resid_post[0] * 1).save()
    assert int(top) == top.item() == int(top.value)
    assert [model.to_string(top)] == [model.to_string(int(top))]
    assert f"{number:.3f}" == f"{float(number.value):.3f}"
    assert len(h) == 13
    assert h.dtype == np.float32
    assert h.ndim == 2
    assert np.array_equal(h.numpy(), h.value)
    assert h.tolist() == h.value.tolist()
    assert np.array_equal(h + 1, h.value + 1)
    assert np.array_equal(2 * h - h, h.value)
    assert np.array_equal(np.exp(h), np.exp(h.value))
    assert np.array_equal(h.mean(axis=-1), h.value.mean(axis=-1))
    assert np.array_equal(np.stack([h, h]), np.stack([h.value, h.value]))
    assert np.array_equal(rows[-1], rows.value[-1])
    assert [row.shape for row in h] == [(128,)] * 13
    assert (h > 0).any()
    with model.trace([STORY, DOG]) as t:
        several = t.layers[2].resid_post.save()
    assert np.array_equal(several[1], several.value[1])
    assert len(several) == 2


def test_shapes_inside_a_block(model):
    with model.trace(STORY) as t:
        h = t.layers[2].resid_post
        assert h.shape == (1, 13, 128)
        assert (h @ np.zeros((128, 7), np.float32)).shape == (1, 13, 7)
        assert h[:, -1].shape == (1, 128)
        assert t.layers[2].z.ndim == 4
        saved = h.save()
        assert saved.shape == (1, 13, 128)
    assert saved.shape == (13, 128)
    with model.trace([STORY, DOG]) as t:
        assert t.layers[2].resid_post.shape == (2, None, 128)
    with model.edit() as e, pytest.raises(pellucid.RecordError, match=r"model\.scan"):
        e.layers[2].resid_post.shape  # noqa: B018 - reading it raises


def test_module_paths_and_names_of_other_libraries(model):
    with model.trace() as t:
        with t.invoke(STORY):
            h = t.model.layers[2].output.save()
            t.model.layers[-1].mlp.output[:, -1] = 0
            head = t.lm_head.output.save()
            same = t.layers[2].resid_post.save()
    assert np.array_equal(h.value, same.value)
    assert head.value.shape == (13, 2048)
    for use, hint in (
        (lambda: model.layers[2], r"t\.layers\[2\]"),
        (lambda: model.tokenizer, "to_tokens"),
        (lambda: model.add_hook, r"model\.hooks"),
        (lambda: h.squeeze(), "integer"),
        (lambda: h.einsum(), "@"),
    ):
        with pytest.raises(AttributeError, match=hint) as caught:
            use()
        assert isinstance(caught.value, pellucid.Error)
    with model.trace(STORY) as t, pytest.raises(pellucid.SiteError, match="no site"):
        t.model.layrs[2].output  # noqa: B018 - reading it raises
    assert range(model.layers) == range(6)
    assert model.cfg.device == "cpu"
