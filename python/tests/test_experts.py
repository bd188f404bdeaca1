"""Experts in traces: outputs, ablation by number, replaced and excluded experts."""

import numpy as np
import pytest
from conftest import GOLDEN

import pellucid

IDS = [5, 17, 3, 41, 8, 29]


@pytest.fixture(scope="module")
def moe():
    return pellucid.load(GOLDEN / "mixtral")


def logits_with(model, edit):
    with model.trace(IDS) as t:
        edit(t.layers[1])
        logits = t.logits.save()
    return logits.value


def test_weighted_outputs_sum_to_the_output_of_the_layer(moe):
    with moe.trace(IDS) as t:
        layer = t.layers[1]
        out, weights = layer.expert_out.save(), layer.expert_weights.save()
        first, total = layer.expert_out[:, -1, 0].save(), layer.mlp_out.save()
    assert out.value.shape == (len(IDS), 2, 32)
    assert np.array_equal(first.value, out.value[-1, 0])
    assert np.allclose((weights.value[:, :, None] * out.value).sum(1), total.value, atol=1e-5)


def test_an_expert_is_ablated_by_number(moe):
    with moe.trace(IDS) as t:
        indices = t.layers[1].expert_indices.save()
    expert = int(indices.value[0, 0])
    plain = logits_with(moe, lambda layer: None)

    def zero_outputs(layer):
        layer.expert_out.experts[expert] = 0

    def scale_weights(layer):
        layer.expert_weights.experts[[expert]] *= 0.0

    def by_slots(layer):
        kept = (layer.expert_indices != expert).reshape(-1, len(IDS), 2, 1)
        layer.expert_out = layer.expert_out * kept

    ablated = logits_with(moe, zero_outputs)
    assert not np.array_equal(ablated, plain)
    assert np.array_equal(ablated, logits_with(moe, scale_weights))
    assert np.allclose(ablated, logits_with(moe, by_slots), atol=1e-6)


def test_a_vector_is_added_to_an_expert_at_some_positions(moe):
    vector = np.linspace(-1, 1, 32, dtype=np.float32)
    with moe.trace(IDS) as t:
        before, indices = t.layers[1].expert_out.save(), t.layers[1].expert_indices.save()
        t.layers[1].expert_out[:, 2:].experts[[0, 1]] += vector
        after = t.layers[1].expert_out.save()
    edited = (indices.value <= 1) & (np.arange(len(IDS)) >= 2)[:, None]
    assert edited.any()
    assert not edited.all()
    assert np.allclose(after.value, before.value + edited[:, :, None] * vector, atol=1e-6)


def test_experts_are_replaced_and_excluded(moe):
    with moe.trace(IDS) as t:
        layer = t.layers[1]
        before = layer.expert_indices.save()
        layer.expert_indices.replace({0: 1, 1: 0})
        swapped = layer.expert_indices.save()
        t.layers[2].router_logits.experts[3] = -np.inf
        excluded = t.layers[2].expert_indices.save()
        t.layers[0].expert_indices[:, :, 1] = 2
        chosen = t.layers[0].expert_indices.save()
    assert np.array_equal(swapped.value, np.array([1, 0, 2, 3])[before.value])
    assert not (excluded.value == 3).any()
    assert (chosen.value[:, 1] == 2).all()
    assert chosen.value.dtype == np.int64


def test_gradients_at_the_outputs_of_experts(moe):
    with moe.trace(IDS) as t:
        loss = t.logits[:, -1, 7]
        weights = t.layers[2].expert_weights.save()
        with loss.backward():
            at_out, at_sum = t.layers[2].expert_out.grad.save(), t.layers[2].mlp_out.grad.save()
    assert np.allclose(at_out.value, weights.value[:, :, None] * at_sum.value[:, None], atol=1e-6)
    assert np.abs(at_out.value[-1]).max() > 0


@pytest.mark.parametrize(
    ("edit", "part"),
    [
        (lambda layer: layer.expert_out.experts[9].__imul__(0.0), "no expert 9"),
        (lambda layer: layer.mlp_out.experts[0].__imul__(0.0), "no experts"),
        (lambda layer: layer.expert_out.experts[-1].__imul__(0.0), "integers from 0"),
        (lambda layer: layer.expert_indices.replace({0: 9}), "no expert 9"),
        (lambda layer: layer.expert_indices.replace({0: 0.5}), "does not map"),
        (lambda layer: layer.expert_out.replace({0: 1}), "expert_indices"),
        (lambda layer: (layer.expert_out.experts[0] + 1).save(), "slots to edit"),
    ],
)
def test_wrong_experts_are_errors(moe, edit, part):
    with pytest.raises(pellucid.Error, match=part):
        logits_with(moe, edit)


def test_a_dense_model_has_no_experts():
    with pytest.raises(pellucid.Error, match="no experts"):
        logits_with(pellucid.load(GOLDEN / "llama"), lambda layer: layer.expert_out.save())


def test_saves_by_expert_are_zero_where_the_expert_is_not_chosen(moe):
    with moe.trace([5, 17, 3, 41]) as t:
        layer = t.layers[1]
        indices, weights, out = layer.expert_indices.save(), layer.expert_weights.save(), layer.expert_out.save()
        of_two = layer.expert_out.experts[[2, 0]].save()
        weight = layer.expert_weights.experts[2].save()
    assert of_two.value.shape == (4, 2, out.value.shape[-1])
    for position in range(4):
        slots = list(indices.value[position])
        expected = out.value[position, slots.index(2)] if 2 in slots else 0
        assert np.array_equal(of_two.value[position, 0], np.broadcast_to(expected, out.value.shape[-1:]))
        assert weight.value[position, 0] == (weights.value[position, slots.index(2)] if 2 in slots else 0)
