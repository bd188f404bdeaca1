"""`Session`: a model, SAEs, a dataset and a chain of ops, run from a file or from arguments."""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

import numpy as np

from . import _core
from .errors import InputError
from .progress import Progress
from .stores import Store, to_values

_DTYPES = {"int64": np.int64, "float32": np.float32}


@dataclass(frozen=True)
class Op:
    """A step of an analysis that a Python function computes; `pellucid.op` makes one."""

    name: str
    version: str
    about: str
    inputs: list[tuple[str, str, str]]
    outputs: list[tuple[str, str, str]]
    needs_saes: bool
    call: Callable[..., Mapping[str, Any]]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)

    def function(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Calls the function with numpy columns and returns its outputs in their declared types."""
        given = {name: to_values(parts) for name, parts in columns.items()}
        results = self.call(**given)
        if not isinstance(results, Mapping):
            results = {self.outputs[0][0]: results}
        converted: dict[str, Any] = {}
        for name, _, dtype in self.outputs:
            if name not in results:
                raise InputError(f"the op {self.name!r} did not return {name!r}", "return every declared output")
            value = results[name]
            if dtype in _DTYPES:
                converted[name] = np.ascontiguousarray(value, dtype=_DTYPES[dtype])
            elif dtype == "text":
                converted[name] = [str(own) for own in value]
            else:
                converted[name] = [[own.item() for own in np.asarray(row).ravel()] for row in value]
        return converted


def op(
    *,
    outputs: Mapping[str, str],
    inputs: Sequence[str] | None = None,
    name: str | None = None,
    version: str | None = None,
    needs_saes: bool = False,
) -> Callable[[Callable[..., Any]], Op]:
    """Makes a function an op of sessions.

    The function takes columns by name, as numpy arrays, and returns a dict of new columns (or one
    array, for a single output). `inputs` are the names of its arguments by default. A name with the
    prefix `latents.` is a column of the table of latents; its argument has no prefix. `outputs` maps
    names to types: int64, float32, text, int64_list, float32_list. The op's version, which decides
    whether stored results are reused, is a hash of the function's source unless it is given.

        @pellucid.op(outputs={"margin": "float32"})
        def margin(logit_diffs):
            return abs(logit_diffs)
    """

    def decorate(function: Callable[..., Any]) -> Op:
        own = inputs if inputs is not None else list(inspect.signature(function).parameters)
        return Op(
            name=name or function.__name__,
            version=version or _source_hash(function),
            about=(inspect.getdoc(function) or "an op of the caller").splitlines()[0],
            inputs=[_field(key, "any") for key in own],
            outputs=[_field(key, dtype) for key, dtype in outputs.items()],
            needs_saes=needs_saes,
            call=function,
        )

    return decorate


def _field(name: str, dtype: str) -> tuple[str, str, str]:
    table, _, column = name.rpartition(".")
    return (column, table or "examples", dtype)


def _source_hash(function: Callable[..., Any]) -> str:
    try:
        source = inspect.getsource(function).encode()
    except (OSError, TypeError):
        # Typed at a prompt: the compiled code stands for the source.
        source = function.__code__.co_code + repr(function.__code__.co_consts).encode()
    return hashlib.sha256(source).hexdigest()[:16]


def collect_ops(ops: Iterable[Any]) -> list[Op]:
    """Checks that all are ops."""
    ops = list(ops)
    for own in ops:
        if not isinstance(own, Op):
            raise InputError(f"{own!r} is not an op", "decorate a function with @pellucid.op(outputs=…)")
    return ops


def session_schema() -> dict[str, Any]:
    """The JSON Schema of session files."""
    return json.loads(_core.session_schema())


class Session:
    """An analysis: a model, SAEs, a dataset and a chain of ops.

    `config` is a session file, several that are merged, or a dict; keyword arguments are top-level
    keys and win. Opening a session loads the model and checks everything; `run()` computes what the
    store does not hold yet.

        session = pellucid.Session("sae.toml", output={"path": "runs/sae"})
        store = session.run()
        store.examples["logit_diffs"]

    Ops of the caller are given in `extra_ops` and named in `ops`, or are members of `ops` itself.
    """

    def __init__(
        self,
        config: Any = None,
        *,
        extra_ops: Iterable[Op] = (),
        progress: bool | None = None,
        **settings: Any,
    ) -> None:
        own = collect_ops(extra_ops)
        chain = settings.get("ops")
        if isinstance(chain, Op):
            chain = [chain]
        if isinstance(chain, (list, tuple)):
            own += [member for member in chain if isinstance(member, Op)]
            settings["ops"] = [member.name if isinstance(member, Op) else member for member in chain]
        self._ops = own
        self._progress = Progress(sys.stderr.isatty() if progress is None else progress)
        self._core = _core.open_session(_sources(config, settings), own, self._progress.watch)
        self._progress.end()
        self._store: Store | None = None
        self.parts = 0
        self.reused = 0
        self.phases: list[dict[str, Any]] = json.loads(self._core.phases)

    @property
    def config(self) -> dict[str, Any]:
        """The merged configuration."""
        return json.loads(self._core.config)

    @property
    def debug(self) -> dict[str, Any] | None:
        """Perplexity, generations and shapes, if the configuration has a `debug` table."""
        report = self._core.debug
        return None if report is None else json.loads(report)

    @property
    def notes(self) -> list[str]:
        """Lines reported while the session was opened, such as the test of each SAE."""
        return self._progress.notes

    def check(self) -> dict[str, Any]:
        """What the session will do and cost, without running it."""
        return json.loads(self._core.check())

    def run(self, *, replace: bool = False) -> Store:
        """Runs the session and returns its store; finished parts are reused.

        `replace` allows to replace a store that holds other results.
        """
        core, self.parts, self.reused, phases = self._core.run(replace, self._progress.watch)
        self._progress.end()
        self.phases = json.loads(phases)
        self._store = Store(core)
        return self._store

    @property
    def store(self) -> Store:
        """The store of the last run."""
        if self._store is None:
            raise InputError("the session has not run", "call session.run() first")
        return self._store

    def __repr__(self) -> str:
        config = self.config
        state = "not run" if self._store is None else f"store {str(self._store.path)!r}"
        return f"Session({config.get('name') or 'session'!r}, ops {config.get('ops')!r}, {state})"

    def _repr_html_(self) -> str:
        from .display import table

        rows = [
            (phase["name"], f"{phase['seconds']:.3f}", *(f"{phase[key] / 1e6:.1f}" for key in _MEMORY))
            for phase in self.phases
        ]
        return table(["phase", "seconds", "RSS before (MB)", "peak", "after"], rows)


_MEMORY = ("rss_before", "rss_peak", "rss_after")


def _sources(config: Any, settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    sources: list[tuple[str, str]] = []
    for own in config if isinstance(config, (list, tuple)) else [config]:
        if own is None:
            continue
        if isinstance(own, Mapping):
            sources.append(("json", _dumps(own)))
        elif isinstance(own, (str, PathLike)):
            sources.append(("file", fspath(own)))
        else:
            raise InputError(f"{own!r} is not a session", "give a .toml or .yaml file, or a dict")
    if settings:
        sources.append(("json", _dumps(settings)))
    return sources


def _dumps(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, default=fspath)
