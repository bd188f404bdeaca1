"""`SparseArray`: a sparse capture, as the nonzero elements of each position."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core


class SparseArray:
    """A matrix `[positions, units]` in compressed sparse row (CSR) form.

    `t.layers[3].resid_post.sae.acts.save(sparse=True)` returns one as its `.value`. The elements of
    row `i` are `values[indptr[i]:indptr[i + 1]]`, in the columns `indices[indptr[i]:indptr[i + 1]]`.
    """

    __slots__ = ("indices", "indptr", "shape", "values")

    def __init__(self, core: _core.SparseArray) -> None:
        self.values: np.ndarray = core.values.numpy()
        """The nonzero elements, `[nnz]`; a read-only view."""
        self.indices: np.ndarray = core.indices()
        """The column (unit, feature) of each element, `[nnz]`, ascending within a row."""
        self.indptr: np.ndarray = core.indptr()
        """The offset of each row's elements, `[positions + 1]`."""
        self.shape: tuple[int, int] = core.shape
        """`(positions, units)`."""

    @property
    def nnz(self) -> int:
        """Number of nonzero elements."""
        return len(self.values)

    def row(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """`(indices, values)` of one position."""
        index = range(self.shape[0])[index]
        elements = slice(self.indptr[index], self.indptr[index + 1])
        return self.indices[elements], self.values[elements]

    def to_dense(self) -> np.ndarray:
        """The dense array, `[positions, units]`."""
        dense = np.zeros(self.shape, dtype=self.values.dtype)
        dense[np.repeat(np.arange(self.shape[0]), np.diff(self.indptr)), self.indices] = self.values
        return dense

    def to_scipy(self) -> Any:
        """A `scipy.sparse.csr_array` that shares the arrays."""
        from scipy.sparse import csr_array  # type: ignore[import-not-found,import-untyped]

        return csr_array((self.values, self.indices, self.indptr), shape=self.shape)

    def to_torch(self) -> Any:
        """A torch tensor of layout `torch.sparse_csr` (a copy)."""
        import torch  # type: ignore[import-not-found]

        parts = (torch.from_numpy(np.array(part)) for part in (self.indptr, self.indices, self.values))
        return torch.sparse_csr_tensor(*parts, size=self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.to_dense().astype(dtype or self.values.dtype, copy=False)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"SparseArray(shape={self.shape}, nnz={self.nnz})"
