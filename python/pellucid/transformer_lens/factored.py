"""`FactoredMatrix`: a low-rank matrix stored as the product of two factors."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from ..errors import InputError


class FactoredMatrix:
    """The product `A @ B`, stored as its factors.

    Leading axes are batch axes, such as layers and heads.
    """

    __array_ufunc__ = None  # so that `array @ matrix` calls `__rmatmul__`

    def __init__(self, A: np.ndarray, B: np.ndarray) -> None:
        if A.shape[-1] != B.shape[-2]:
            raise InputError(
                f"factors of shapes {list(A.shape)} and {list(B.shape)}",
                "the last axis of A must equal the second to last of B",
            )
        self.A = A
        self.B = B

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the product."""
        batch = np.broadcast_shapes(self.A.shape[:-2], self.B.shape[:-2])
        return (*batch, self.A.shape[-2], self.B.shape[-1])

    @property
    def AB(self) -> np.ndarray:
        """The product."""
        return self.A @ self.B

    @property
    def T(self) -> FactoredMatrix:
        """The transpose."""
        return FactoredMatrix(self.B.swapaxes(-1, -2), self.A.swapaxes(-1, -2))

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, FactoredMatrix):
            return (self @ other.A) @ other.B
        if np.ndim(other) < 2:
            return (self.A @ (self.B @ other)[..., None])[..., 0]
        return FactoredMatrix(self.A, self.B @ other)

    def __rmatmul__(self, other: Any) -> Any:
        if np.ndim(other) < 2:
            return ((other @ self.A)[..., None, :] @ self.B)[..., 0, :]
        return FactoredMatrix(other @ self.A, self.B)

    def __getitem__(self, index: Any) -> FactoredMatrix:
        """Indexes the batch axes: `matrix[layer, head]`."""
        picks = index if isinstance(index, tuple) else (index,)
        if len(picks) > len(self.shape) - 2:
            raise InputError(
                f"an index of {len(picks)} axes into shape {list(self.shape)}", "index .AB for rows and columns"
            )
        return FactoredMatrix(self.A[index], self.B[index])

    @cached_property
    def _svd(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        # QR of both factors, then the SVD of the small [rank, rank] core: never forms the product.
        left, upper = np.linalg.qr(self.A)
        right, lower = np.linalg.qr(self.B.swapaxes(-1, -2))
        u, s, vt = np.linalg.svd(upper @ lower.swapaxes(-1, -2))
        return left @ u, s, right @ vt.swapaxes(-1, -2)

    def svd(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`U`, `S` and `V` with `AB == U @ diag(S) @ V.T`."""
        return self._svd

    @property
    def U(self) -> np.ndarray:
        """Left singular vectors, as columns."""
        return self._svd[0]

    @property
    def S(self) -> np.ndarray:
        """Singular values, in descending order."""
        return self._svd[1]

    @property
    def Vh(self) -> np.ndarray:
        """Right singular vectors, as rows."""
        return self._svd[2].swapaxes(-1, -2)

    @property
    def eigenvalues(self) -> np.ndarray:
        """The nonzero eigenvalues of the product, computed from the small matrix `B @ A`."""
        if self.shape[-2] != self.shape[-1]:
            raise InputError(f"a matrix of shape {list(self.shape)} has no eigenvalues", "it is not square")
        return np.linalg.eigvals(self.B @ self.A)

    def norm(self) -> np.ndarray:
        """The Frobenius norm of the product."""
        return np.sqrt((self.S**2).sum(axis=-1))

    def __repr__(self) -> str:
        return f"FactoredMatrix(shape={list(self.shape)}, through {self.A.shape[-1]})"
