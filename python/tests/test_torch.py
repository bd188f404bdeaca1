"""Torch, where it is installed."""

import numpy as np
import pytest
import torch
from conftest import STORY

import pellucid


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


def test_torch_functions_and_operators_are_recorded(model):
    with model.trace(STORY) as t:
        h = t.layers[2].resid_post
        x = h.save()
        added, subtracted = (torch.ones(128) + h).save(), (2 * torch.ones(128) - h).save()
        product, mean = (torch.ones(13, 13) @ h).save(), torch.mean(h, dim=-1).save()
        probs = torch.nn.functional.softmax(h, dim=-1).save()
        joined, chosen = torch.cat([h, h], dim=-1).save(), torch.where(h > 0, h, torch.zeros(128)).save()
        for use in (lambda: torch.sort(h), lambda: torch.einsum("rpd->rp", h), lambda: torch.std(h, dim=-1)):
            with pytest.raises(pellucid.Error):
                use()
    tensor = x.torch()
    assert np.array_equal(added.value, x.value + 1)
    assert np.array_equal(subtracted.value, 2 - x.value)
    assert np.allclose(product.value, np.ones((13, 13)) @ x.value, atol=1e-3)
    assert np.allclose(mean.value, tensor.mean(-1), atol=1e-5)
    assert np.allclose(probs.value, torch.softmax(tensor, -1), atol=1e-6)
    assert joined.value.shape == (13, 256)
    assert np.array_equal(chosen.value, torch.where(tensor > 0, tensor, 0.0))
    assert isinstance(x * torch.ones(128), torch.Tensor)
    assert isinstance(torch.ones(128) * x, torch.Tensor)


@pytest.mark.parametrize("tokens", [torch.tensor([1.5, 2.0]), torch.tensor([True]), torch.zeros(1, 1, 1, dtype=int)])
def test_only_integer_tensors_are_token_ids(model, tokens):
    with pytest.raises(pellucid.InputError):
        model(tokens)
