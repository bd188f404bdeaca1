"""Torch, where it is installed."""

import numpy as np
import torch
from conftest import STORY


def test_torch_has_its_own_memory(model):
    with model.trace([STORY, STORY]) as t:
        streams = t.layers[1].resid_post.save()
    first, _ = streams.torch()
    assert isinstance(first, torch.Tensor)
    before = streams.value[0].copy()
    first.zero_()
    assert np.array_equal(streams.value[0], before)


def test_dlpack_goes_to_torch(model):
    with model.trace(STORY) as t:
        stream = t.layers[1].resid_post.save()
    theirs = torch.from_dlpack(stream)
    assert np.array_equal(theirs.numpy(), stream.value)
    theirs.zero_()
    assert stream.value.any()


def test_tensors_are_accepted_including_bf16(model):
    vector = torch.randn(128, dtype=torch.bfloat16, requires_grad=True)
    with model.trace(STORY) as t:
        t.layers[1].resid_post = vector
        stream = t.layers[1].resid_post.save()
        product = (t.layers[1].resid_post @ torch.eye(128)).save()
    assert np.array_equal(stream.value[0], vector.detach().float().numpy())
    assert np.allclose(product.value, stream.value)


def test_token_tensors_are_prompts(model):
    ids = torch.tensor([model.to_tokens(STORY)] * 2)
    with model.trace(ids) as t:
        logits = t.logits[:, -1].save()
    assert len(logits.value) == 2
    with model.trace(ids[0]) as t:
        one = t.logits[:, -1].save()
    assert np.array_equal(one.value, logits.value[0])
