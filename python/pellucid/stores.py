"""`Store`: the results of a session, read column by column."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np

from . import _core


def open_store(path: str | PathLike[str]) -> Store:
    """Opens the store that a session wrote.

    Columns are read when they are used. Raises `InputError` if the session has not finished.
    """
    return Store(_core.Store.open(fspath(path)))


def to_values(parts: tuple[Any, ...]) -> Any:
    """A native column as numpy: an array, or a list of arrays for a column of lists."""
    dtype, values = parts[0], parts[1]
    if dtype == "text":
        return np.array(values, dtype=object)
    if len(parts) == 3:
        return [values[start:end] for start, end in zip(parts[2][:-1], parts[2][1:], strict=True)]
    return values


class Table(Mapping[str, Any]):
    """A table of a store: a mapping from column names to numpy arrays, each read when it is used.

    A column of lists is a list of arrays. Absent floats are NaN.
    """

    def __init__(self, core: _core.Store, name: str) -> None:
        self._core = core
        self.name = name

    def __getitem__(self, column: str) -> Any:
        return to_values(self._core.column(self.name, column))

    def __iter__(self) -> Iterator[str]:
        return iter(self._core.column_names(self.name))

    def __len__(self) -> int:
        return len(self._core.column_names(self.name))

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return self._core.column_names(self.name)

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return self._core.rows(self.name)

    def to_numpy(self) -> dict[str, Any]:
        """All columns."""
        return {name: self[name] for name in self}

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame`; needs pandas."""
        import pandas as pd

        return pd.DataFrame(self.to_numpy())

    def to_pyarrow(self) -> Any:
        """A `pyarrow.Table`; needs pyarrow."""
        import pyarrow as pa

        return pa.table({name: self._arrow(name) for name in self})

    def to_polars(self) -> Any:
        """A `polars.DataFrame`; needs polars."""
        import polars as pl

        def series(name: str) -> Any:
            values = self[name]
            return pl.Series(name, [list(own) for own in values] if isinstance(values, list) else values)

        return pl.DataFrame([series(name) for name in self])

    def _arrow(self, name: str) -> Any:
        import pyarrow as pa

        dtype, values, *offsets = self._core.column(self.name, name)
        if offsets:
            return pa.LargeListArray.from_arrays(pa.array(offsets[0]), pa.array(values))
        return pa.array(values, from_pandas=dtype == "optional_float32")

    def __repr__(self) -> str:
        return f"Table({self.name!r}, {self.num_rows} rows, columns {', '.join(self)})"

    def _repr_html_(self) -> str:
        from .display import table

        shown = min(self.num_rows, 10)
        columns = {name: to_values(self._core.head(self.name, name, shown)) for name in self}
        rows = [[_cell(values[row]) for values in columns.values()] for row in range(shown)]
        return f"<div><b>{self.name}</b>, {self.num_rows} rows</div>" + table(list(columns), rows)


def _cell(value: Any) -> str:
    text = f"{value:.5g}" if isinstance(value, np.floating) else str(value)
    return text if len(text) <= 40 else text[:39] + "…"


class Store:
    """The results of a session: the tables `examples` and `latents`, and the manifest.

    `examples` has one row per example, `latents` one per example and active latent.
    """

    def __init__(self, core: _core.Store) -> None:
        self._core = core
        self.manifest: dict[str, Any] = json.loads(core.manifest)

    @property
    def path(self) -> Path:
        """The directory."""
        return Path(self._core.path)

    @property
    def examples(self) -> Table:
        """One row per example."""
        return Table(self._core, "examples")

    @property
    def latents(self) -> Table:
        """One row per example and active latent; without columns if the session has no SAE."""
        return Table(self._core, "latents")

    @property
    def content_hash(self) -> str:
        """The hash of all tables: equal for equal results."""
        return self.manifest["content_hash"]

    def __getitem__(self, column: str) -> Any:
        """A column of `examples`, or with the prefix `latents.` one of `latents`."""
        table, _, name = column.rpartition(".")
        return (self.latents if table == "latents" else self.examples)[name]

    def to_numpy(self, table: str = "examples") -> dict[str, Any]:
        """The columns of a table as numpy arrays."""
        return Table(self._core, table).to_numpy()

    def to_pandas(self, table: str = "examples") -> Any:
        """A table as a `pandas.DataFrame`; needs pandas."""
        return Table(self._core, table).to_pandas()

    def to_polars(self, table: str = "examples") -> Any:
        """A table as a `polars.DataFrame`; needs polars."""
        return Table(self._core, table).to_polars()

    def to_pyarrow(self, table: str = "examples") -> Any:
        """A table as a `pyarrow.Table`; needs pyarrow."""
        return Table(self._core, table).to_pyarrow()

    def graph(self, example: int) -> dict[str, np.ndarray]:
        """The attribution graph of an example, with a dense adjacency matrix.

        `adjacency[target, source]` is the edge between two nodes: selected features, errors, tokens,
        targets, in this order. `features` has the layer, position and index of each selected feature,
        `activations` their activations.
        """
        names = ("n_nodes", "active_features", "activation_values", "selected_features", "logit_targets")
        edges = ("logit_probabilities", "edge_targets", "edge_sources", "edge_weights")
        own = {name: self.examples[name][example] for name in (*names, *edges)}
        adjacency = np.zeros((own["n_nodes"], own["n_nodes"]), dtype=np.float32)
        adjacency[own["edge_targets"], own["edge_sources"]] = own["edge_weights"]
        return {
            "adjacency": adjacency,
            "features": own["active_features"].reshape(-1, 3)[own["selected_features"]],
            "activations": own["activation_values"][own["selected_features"]],
            "targets": own["logit_targets"],
            "probabilities": own["logit_probabilities"],
        }

    def summary(self) -> dict[str, Any]:
        """Correct answers, mean logit difference, and the effects of all latents."""
        return json.loads(self._core.summary())

    def show(self, top: int = 10) -> str:
        """The text that `pellucid store show` prints."""
        return self._core.show(top, False)

    def diff(self, other: Store) -> dict[str, Any]:
        """The columns that differ from another store's; none if all bits are equal."""
        return json.loads(self._core.diff(other._core))

    def export(self, directory: str | PathLike[str], format: str = "csv") -> list[Path]:
        """Writes the tables as csv, jsonl or parquet, or dense arrays as safetensors."""
        return [Path(path) for path in self._core.export(fspath(directory), format)]

    def replay(self, settings: dict[str, Any] | None = None, ops: Any = ()) -> dict[str, Any]:
        """Runs the session again on the recorded tokens and compares every bit.

        `settings` override the recorded ones, such as `{"model.path": "other/place"}`. The report's
        `difference` is None if all bits are equal.
        """
        from .sessions import collect_ops

        given = [f"{key}={json.dumps(value)}" for key, value in (settings or {}).items()]
        return json.loads(_core.replay_store(self._core, given, collect_ops(ops), None))

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r}, {self.examples.num_rows} examples, {self.latents.num_rows} latents)"

    def _repr_html_(self) -> str:
        return self._core.show(10, True)
