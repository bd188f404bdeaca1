"""Results share the engine's memory, are read-only, and outlive the trace and the model."""

import gc

import numpy as np
import pytest
from conftest import STORY

import pellucid


def test_a_capture_is_a_read_only_view(model):
    with model.trace(STORY) as t:
        stream = t.layers[1].resid_post.save()
    first, second = stream.value, stream.value
    assert np.shares_memory(first, second)
    assert first.dtype == np.float32
    assert not first.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1
    with pytest.raises(ValueError, match="cannot set WRITEABLE"):
        first.flags.writeable = True


def test_rows_of_a_batch_share_one_buffer(model):
    with model.trace([STORY, STORY]) as t:
        stream = t.layers[1].resid_post.save()
    first, second = stream.value
    distance = second.__array_interface__["data"][0] - first.__array_interface__["data"][0]
    assert distance == first.nbytes


def test_a_view_keeps_its_buffer(model):
    with model.trace(STORY) as t:
        stream = t.layers[1].resid_post.save()
    array, copy = stream.value, stream.value.copy()
    del stream, t
    gc.collect()
    for _ in range(3):
        model.run(STORY, capture="layers.*.resid_post")
    assert np.array_equal(array, copy)


def test_values_outlive_their_model():
    model = pellucid.load()
    with model.trace(STORY) as t:
        del model
        stream = t.layers[1].resid_post.save()
    gc.collect()
    assert stream.value.shape == (13, 128)


def test_saved_values_are_arrays_to_numpy(model):
    with model.trace(STORY) as t:
        stream = t.layers[1].resid_post.save()
        total = t.layers[1].resid_post.sum().save()
    assert np.array_equal(np.asarray(stream), stream.value)
    assert np.asarray(stream, dtype=np.float64).dtype == np.float64
    assert float(total) == total.value
    assert np.linalg.norm(stream.value) > 0


def test_dlpack_exports_a_copy(model):
    with model.trace(STORY) as t:
        stream = t.layers[1].resid_post.save()
    theirs = np.from_dlpack(stream)
    assert np.array_equal(theirs, stream.value)
    assert not np.shares_memory(theirs, stream.value)
    with pytest.raises(BufferError, match="read-only"):
        stream.__dlpack__(copy=False)


def test_weights_are_returned_as_f32(model):
    wide = pellucid.load(dtype="f32")
    name = next(name for name, shape in model.weights.items() if len(shape) == 2)
    assert np.array_equal(model.weight(name), wide.weight(name))
    assert model.weight(name).shape == model.weights[name]
    with pytest.raises(pellucid.InputError, match="no weight"):
        model.weight("layers.0.nothing")


def test_lists_and_numbers_of_any_dtype_are_accepted(model):
    for written in ([1.0] * 128, np.ones(128, np.float16), np.ones(128, np.int32), np.float64(1.0), 1):
        with model.trace(STORY) as t:
            t.layers[1].resid_post = written
            stream = t.layers[1].resid_post.save()
        assert (stream.value == 1.0).all()


def test_noncontiguous_arrays_are_accepted(model):
    matrix = np.arange(13 * 128, dtype=np.float32).reshape(128, 13).T
    with model.trace(STORY) as t:
        t.layers[1].resid_post = matrix
        stream = t.layers[1].resid_post.save()
    assert np.array_equal(stream.value, matrix)


def test_a_row_axis_of_length_one_is_accepted(model):
    batch = np.ones((1, 13, 128), np.float32)
    with model.trace(STORY) as t:
        t.layers[1].resid_post = batch
        stream = t.layers[1].resid_post.save()
    assert (stream.value == 1.0).all()


def test_unembedding_outside_a_block(model):
    with model.trace(STORY) as t:
        stream, logits = t.layers[-1].resid_post.save(), t.logits.save()
    assert np.array_equal(model.unembed(stream.value), logits.value)
    assert np.array_equal(model.unembed(stream.value[-1]), logits.value[-1])
