"""`FactoredMatrix` behaves like the product of its factors."""

import numpy as np
import pytest

from pellucid.transformer_lens import FactoredMatrix


@pytest.fixture
def factored() -> FactoredMatrix:
    rng = np.random.default_rng(0)
    return FactoredMatrix(rng.normal(size=(3, 6, 2)), rng.normal(size=(3, 2, 6)))


def test_products_equal_those_of_the_full_matrix(factored):
    vector, matrix = np.arange(6.0), np.eye(6)[:, :4]
    assert factored.shape == factored.AB.shape == (3, 6, 6)
    assert np.allclose(factored @ vector, factored.AB @ vector)
    assert np.allclose(vector @ factored, vector @ factored.AB)
    assert np.allclose((factored @ matrix).AB, factored.AB @ matrix)
    assert np.allclose((matrix.T @ factored).AB, matrix.T @ factored.AB)
    assert np.allclose((factored @ factored.T).AB, factored.AB @ factored.AB.swapaxes(-1, -2))
    assert np.allclose(factored[1].AB, factored.AB[1])


def test_singular_values_and_eigenvalues(factored):
    assert np.allclose(factored.U @ (factored.S[..., None] * factored.Vh), factored.AB)
    assert np.allclose(factored.S, np.linalg.svd(factored.AB)[1][..., :2])
    assert np.allclose(factored.norm(), np.linalg.norm(factored.AB, axis=(-2, -1)))
    assert np.allclose(factored.eigenvalues.sum(axis=-1), np.trace(factored.AB, axis1=-2, axis2=-1))
    assert "[3, 6, 6]" in repr(factored)
