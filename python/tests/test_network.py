"""`Network`: linear models, edits, shared weights, gradients, errors."""

import numpy as np
import pytest

import pellucid

rng = np.random.default_rng(0)


def linear() -> tuple[pellucid.Model, dict[str, np.ndarray]]:
    net = pellucid.Network()
    net.input("x", 5)
    net.linear("layer1", "x", 10, bias=True)
    net.linear("layer2", "layer1", 2, bias=True)
    weights = {
        "layer1": rng.standard_normal((10, 5)),
        "layer1.bias": rng.standard_normal(10),
        "layer2": rng.standard_normal((2, 10)),
        "layer2.bias": rng.standard_normal(2),
    }
    return net.build(weights), weights


def test_a_linear_model_is_traced() -> None:
    model, w = linear()
    x = rng.standard_normal((3, 5))
    with model.trace(x) as t:
        hidden = t["layer1"].save()
        y = t["layer2"].save()
    expected = x @ w["layer1"].T + w["layer1.bias"]
    np.testing.assert_allclose(hidden.value, expected, atol=1e-5)
    np.testing.assert_allclose(y.value, expected @ w["layer2"].T + w["layer2.bias"], atol=1e-5)


def test_an_edit_and_several_inputs() -> None:
    model, w = linear()
    rows = [rng.standard_normal((2, 5)), rng.standard_normal((4, 5))]
    with model.trace(rows) as t:
        t["layer1"][:] = 0
        y = t["layer2"].save()
    assert [row.shape for row in y.value] == [(2, 2), (4, 2)]
    for row in y.value:
        np.testing.assert_allclose(row, np.broadcast_to(w["layer2.bias"], row.shape), atol=1e-6)


def test_a_part_that_is_applied_three_times() -> None:
    net = pellucid.Network()
    h = net.input("x", 4)
    for call in range(3):
        h = net.linear(f"step.{call}", h, 4, weight="step")
    model = net.build({"step": rng.standard_normal((4, 4))})
    x = rng.standard_normal((1, 4))
    with model.trace(x) as t:
        plain = t["step.2"].save()
    with model.trace(x) as t:
        t["step.1"][:] = 0
        changed = t["step.2"].save()
    assert np.any(plain.value != 0)
    assert np.all(changed.value == 0)


def test_gradients_of_a_network() -> None:
    model, w = linear()
    x = rng.standard_normal((1, 5))
    with model.trace(x) as t:
        loss = (t["layer2"] ** 2).sum()
        g = t.gradient(loss, "x")
        g.save()
        y = t["layer2"].save()
    expected = 2 * y.value @ w["layer2"] @ w["layer1"]
    np.testing.assert_allclose(g.value, expected, rtol=1e-4)


def test_bad_networks() -> None:
    net = pellucid.Network()
    net.input("x", 4)
    with pytest.raises(pellucid.InputError, match="no such part"):
        net.linear("y", "xx", 3)
    with pytest.raises(pellucid.InputError, match="already"):
        net.input("z", 4)
    net.linear("y", "x", 3)
    with pytest.raises(pellucid.InputError, match="already used"):
        net.linear("y", "x", 3)
    with pytest.raises(pellucid.InputError, match="no activation"):
        net.activation("a", "y", "sine")
    with pytest.raises(pellucid.InputError, match=r"shape \[3, 5\]"):
        net.build({"y": np.zeros((3, 5))})
    model, _ = linear()
    with pytest.raises(pellucid.Error, match="shape"), model.trace(np.zeros((2, 6))) as t:
        t["layer1"].save()
