"""Every operation on values, against numpy on the same arrays."""

import numpy as np
import pytest
from conftest import BIRD, DOG, STORY

import pellucid

RNG = np.random.default_rng(7)
MATRIX = RNG.normal(size=(128, 5)).astype(np.float32)
VECTOR = RNG.normal(size=128).astype(np.float32)


def softmax(x, axis):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


# Each operation twice: on a recorded value (with a row axis), and in numpy on one row (without).
OPERATIONS = {
    "add": (lambda t, h: h + VECTOR, lambda h: h + VECTOR),
    "radd": (lambda t, h: VECTOR + h, lambda h: VECTOR + h),
    "sub": (lambda t, h: 1.5 - h, lambda h: 1.5 - h),
    "mul": (lambda t, h: h * h, lambda h: h * h),
    "div": (lambda t, h: 1.0 / (h.square() + 1.0), lambda h: 1.0 / (h * h + 1.0)),
    "pow": (lambda t, h: h.abs() ** 0.5, lambda h: np.abs(h) ** 0.5),
    "neg": (lambda t, h: -h, lambda h: -h),
    "matmul": (lambda t, h: h @ MATRIX, lambda h: h @ MATRIX),
    "matvec": (lambda t, h: h @ VECTOR, lambda h: h @ VECTOR),
    "rmatmul": (lambda t, h: MATRIX.T @ h.T, lambda h: MATRIX.T @ h.T),
    "own product": (lambda t, h: h @ h.T, lambda h: h @ h.T),
    "less": (lambda t, h: h < 0.1, lambda h: h < 0.1),
    "greater equal": (lambda t, h: h >= VECTOR, lambda h: h >= VECTOR),
    "equal": (lambda t, h: h == h, lambda h: h == h),
    "logic": (lambda t, h: (h > 0) & (h < 1) | ~(h > -1), lambda h: (h > 0) & (h < 1) | ~(h > -1)),
    "where": (lambda t, h: t.where(h > 0, h, -2.0), lambda h: np.where(h > 0, h, -2.0)),
    "clip": (lambda t, h: h.clip(-0.5, 0.5), lambda h: h.clip(-0.5, 0.5)),
    "exp log": (lambda t, h: (h.exp() + 1.0).log(), lambda h: np.log(np.exp(h) + 1.0)),
    "sqrt": (lambda t, h: h.square().sqrt(), np.abs),
    "tanh": (lambda t, h: h.tanh(), np.tanh),
    "sigmoid": (lambda t, h: h.sigmoid(), lambda h: 1 / (1 + np.exp(-h))),
    "relu": (lambda t, h: h.relu(), lambda h: np.maximum(h, 0)),
    "silu": (lambda t, h: h.silu(), lambda h: h / (1 + np.exp(-h))),
    "sign": (lambda t, h: h.sign(), np.sign),
    "sum": (lambda t, h: h.sum(axis=-1), lambda h: h.sum(axis=-1)),
    "mean of positions": (lambda t, h: h.mean(axis=1), lambda h: h.mean(axis=0)),
    "max": (lambda t, h: h.max(axis=2), lambda h: h.max(axis=1)),
    "min": (lambda t, h: h.min(axis=-2), lambda h: h.min(axis=0)),
    "argmax": (lambda t, h: h.argmax(axis=-1), lambda h: h.argmax(axis=-1)),
    "norm": (lambda t, h: h.norm(axis=-1, keepdims=True), lambda h: np.linalg.norm(h, axis=-1, keepdims=True)),
    "var": (lambda t, h: h.var(axis=-1), lambda h: h.var(axis=-1)),
    "sum of all": (lambda t, h: h.sum(), lambda h: h.sum()),
    "softmax": (lambda t, h: h.softmax(), lambda h: softmax(h, -1)),
    "softmax of positions": (lambda t, h: h.softmax(axis=1), lambda h: softmax(h, 0)),
    "log softmax": (lambda t, h: h.log_softmax(-1), lambda h: np.log(softmax(h, -1))),
    "topk": (lambda t, h: h.topk(3)[0], lambda h: -np.sort(-h, axis=-1)[:, :3]),
    "topk indices": (lambda t, h: h.topk(3)[1], lambda h: np.argsort(-h, axis=-1)[:, :3]),
    "take": (lambda t, h: h.take(h.argmax(axis=-1)), lambda h: h.max(axis=-1)),
    "concat": (lambda t, h: t.concat([h, h * 2], axis=-1), lambda h: np.concatenate([h, h * 2], axis=-1)),
    "concat of positions": (lambda t, h: t.concat([h, h], axis=1), lambda h: np.concatenate([h, h], axis=0)),
    "stack": (lambda t, h: t.stack([h, -h]), lambda h: np.stack([h, -h])),
    "reshape": (lambda t, h: h.reshape(-1, 13, 2, 64), lambda h: h.reshape(13, 2, 64)),
    "permute": (lambda t, h: h.permute(0, 2, 1), lambda h: h.T),
    "transpose": (lambda t, h: h.T, lambda h: h.T),
    "index": (lambda t, h: (h * 1)[:, -1], lambda h: h[-1]),
    "slice": (lambda t, h: (h * 1)[:, 2:9:3, ::-1], lambda h: h[2:9:3, ::-1]),
    "ellipsis": (lambda t, h: (h * 1)[..., 5], lambda h: h[..., 5]),
    "list": (lambda t, h: (h * 1)[:, [3, 1]], lambda h: h[[3, 1]]),
    "mask": (lambda t, h: (h * 1)[:, np.arange(13) % 2 == 0], lambda h: h[::2]),
    "new axis": (lambda t, h: (h * 1)[:, :, None], lambda h: h[:, None]),
    "row": (lambda t, h: (h * 1)[0], lambda h: h),
    "call": (lambda t, h: t.call(np.cumsum, h), lambda h: np.cumsum(h)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_matches_numpy(model, name):
    recorded, in_numpy = OPERATIONS[name]
    with model.trace(STORY) as t:
        stream = t.layers[2].resid_post
        result, operand = recorded(t, stream).save(), stream.save()
    expected = in_numpy(operand.value)
    assert result.value.shape == expected.shape
    assert np.allclose(result.value, expected, rtol=1e-4, atol=1e-4)
    if name in ("argmax", "topk indices"):
        assert result.value.dtype == np.int64


@pytest.mark.parametrize("name", ["matmul", "softmax", "mean of positions", "index", "call", "where"])
def test_operations_apply_per_row(model, name):
    recorded, in_numpy = OPERATIONS[name]
    with model.trace([DOG, BIRD]) as t:
        stream = t.layers[2].resid_post
        result, operand = recorded(t, stream).save(), stream.save()
    for found, row in zip(result.value, operand.value, strict=True):
        assert np.allclose(found, in_numpy(row), rtol=1e-4, atol=1e-4)


def test_a_value_is_updated_in_place_and_the_model_is_not(model):
    with model.trace(STORY) as t:
        value = t.layers[2].resid_post * 1.0
        before = value.copy().save()
        value[:, 0] = 0
        value[:, 1, :4] = VECTOR[:4]
        after, site = value.save(), t.layers[2].resid_post.save()
    expected = before.value.copy()
    expected[0] = 0
    expected[1, :4] = VECTOR[:4]
    assert np.array_equal(after.value, expected)
    assert np.array_equal(site.value, before.value)


def test_a_custom_sparse_autoencoder(model):
    encoder, decoder = RNG.normal(size=(128, 256)).astype(np.float32), RNG.normal(size=(256, 128)).astype(np.float32)
    bias = RNG.normal(size=256).astype(np.float32)
    with model.trace(STORY) as t:
        stream = t.layers[2].resid_post
        features = (stream @ encoder + bias).relu()
        error = stream - features @ decoder
        features[:, :, 7] = 0
        t.layers[2].resid_post = features @ decoder + error
        kept, active, logits = stream.save(), features.save(), t.logits[:, -1].save()
    expected = np.maximum(kept.value @ encoder + bias, 0)
    expected[:, 7] = 0
    assert np.allclose(active.value, expected, rtol=1e-3, atol=1e-3)
    assert np.isfinite(logits.value).all()


def test_an_exception_in_a_called_function_propagates_and_the_next_run_is_correct(model, logits):
    before = logits(STORY)

    def fails(h):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught, model.trace(STORY) as t:
        value = t.call(fails, t.layers[2].resid_post).save()
    assert "fails" in [entry.name for entry in caught.traceback]
    assert np.array_equal(logits(STORY), before)
    with pytest.raises(pellucid.RecordError, match="KeyError"):
        value.value  # noqa: B018 - reading it raises


def test_a_function_may_run_the_model_itself(model, logits):
    with model.trace(STORY) as t:
        value = t.call(lambda h: h[-1] + logits(DOG)[:128], t.layers[0].resid_post).save()
        last = t.layers[0].resid_post[:, -1].save()
    assert np.allclose(value.value, last.value + logits(DOG)[:128])


def test_values_are_not_known_while_recording(model):
    with model.trace(STORY) as t:
        value = t.layers[0].resid_post
        with pytest.raises(pellucid.RecordError, match="not known"):
            bool(value > 0)
        with pytest.raises(pellucid.RecordError, match="not known"):
            list(value)
        with pytest.raises(pellucid.RecordError, match="not saved"):
            value.value  # noqa: B018 - reading it raises
        assert "not saved" in repr(value)
        assert "not run" in repr(value.save())


@pytest.mark.parametrize(
    "function",
    [
        np.exp,
        np.tanh,
        np.square,
        np.negative,
        np.abs,
        lambda h: np.maximum(h, 0.5),
        lambda h: np.minimum(np.linspace(-1, 1, 128, dtype=np.float32), h),
        lambda h: np.add(np.ones(128, dtype=np.float32), h),
        lambda h: np.linspace(0, 1, 128, dtype=np.float32) - h,
        lambda h: np.float32(2.0) * h,
        lambda h: np.less(h, np.float32(0.25)),
    ],
)
def test_functions_of_numpy_are_recorded(model, function):
    with model.trace(STORY) as t:
        h = t.layers[0].resid_post
        found, plain = function(h).save(), h.save()
    assert np.allclose(found.value, function(plain.value), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (np.sin, "numpy's sin is not recorded"),
        (np.add.reduce, "numpy's add.reduce is not recorded"),
        (lambda h: np.exp(h, out=np.zeros((13, 128))), "exp with out is not recorded"),
    ],
)
def test_numpy_functions_without_an_equivalent_are_rejected(model, function, match):
    with pytest.raises(pellucid.RecordError, match=match), model.trace(STORY) as t:
        function(t.layers[0].resid_post)
