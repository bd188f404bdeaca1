"""Models: loading them, their tokens, sites and weights, and the ways to run them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Sequence
from os import PathLike, fspath
from typing import Any

import numpy as np

from . import _core, convert, display
from .branches import Base
from .errors import InputError
from .lens import Lens
from .prefixes import Prefixes
from .results import Captures, numpy_of
from .sites import Sites
from .trace import Generation, PlanBlock, Scan, Session, Trace


def load(
    name: str | PathLike[str] | None = None,
    *,
    dtype: str = "auto",
    threads: int | None = None,
    adapters: Iterable[str | PathLike[str]] = (),
    assume: str | None = None,
    lazy: bool = False,
    kv: str = "f32",
) -> Model:
    """Loads a model by the first strategy that takes it; `model.strategy` says which.

    Weights that were found under other names than their family's are reported as warnings and in `model.repairs`.
    Where no strategy takes the model, `LoadError` lists each of them with its reason.

    Args:
        name: A Hugging Face directory, a GGUF file, an adapter's directory or the name of a pulled model; without it
            the small built-in model.
        dtype: How matrices are kept in memory: `auto` (as stored), `f32`, `bf16`, `f16` or `q8` (eight bits). Arithmetic is f32 in any case.
        threads: How many threads run it; by default as many as there are cores, shared by all models.
        adapters: Directories of LoRA adapters to merge into the weights.
        assume: The family to read a model of unknown type as.
        lazy: Loads the weights when they are first needed; sites, tokens and `scan` never need them.
        kv: How keys and values are kept between tokens: `f32`, or `bf16`, which halves their memory and changes numbers a little.
    """
    core = _core.Model.open(
        None if name is None else fspath(name), dtype, threads, [fspath(path) for path in adapters], assume, lazy, kv
    )
    # Without its weights it is not known which of them have other names.
    for warning in core.warnings + (core.repairs if core.is_loaded else []):
        warnings.warn(warning, stacklevel=2)
    return Model(core)


def pull(name: str) -> str:
    """Fetches a model by name (`smollm2-135m`, or a hub's id) where it is not here yet, and gives its path for `load`."""
    return fspath(_core.pull(name))


class Model(Lens):
    """A model. Edited models share its weights; threads may share it."""

    def __init__(self, core: _core.Model, edits: tuple[_core.Plan, ...] = (), sites: Sites | None = None) -> None:
        self._core = core
        self.edits = edits
        self.sites = sites if sites is not None else Sites(core)
        """Every site, with shape, meaning and aliases."""

    # Running.

    def trace(
        self,
        prompts: Any = None,
        *,
        padded: bool = False,
        allow_nan: bool = False,
        chunk: int | None = None,
        recompute: bool = False,
        threads: int | None = None,
        prefixes: Prefixes | None = None,
    ) -> Trace:
        """A block whose reads, computations and writes run once, at its end.

        ```python
        with model.trace("The Eiffel Tower is in the city of") as t:
            h = t.layers[5].resid_post.save()
            t.layers[8].resid_post[:, -1] += 4.0 * v
        h.value
        ```

        Args:
            prompts: A text, a list of token ids, a conversation, or a list of those; rows can be added in the block with `t.row`.
            padded: Values of several prompts come as one array, filled up with zeros, instead of a list.
            allow_nan: Edits may write NaN, which is an error otherwise.
            chunk: At most this many tokens of a prompt go through at once, which bounds memory and changes nothing.
            recompute: For gradients, keep only what enters each layer and run layers again on the way back: less memory, more time.
            threads: At most this many of the model's threads; all of them by default.
            prefixes: Kept beginnings of prompts, which are not computed again where the block touches nothing there.
        """
        kept = None if prefixes is None else prefixes._core
        return Trace(self, prompts, padded, allow_nan, chunk, recompute, threads, kept)

    def generate(
        self,
        prompts: Any = None,
        *,
        watch: Callable[[int, int, str | None], Any] | None = None,
        padded: bool = False,
        allow_nan: bool = False,
        prefixes: Prefixes | None = None,
        **options: Any,
    ) -> Generation:
        """Continues prompts. As a block it records like a trace, with `t.steps`; without one `.text` and `.result` run it.

        Args:
            prompts: As in `trace`.
            watch: Called with the row, the token and its text (where it is complete) as each token comes.
            padded: As in `trace`.
            allow_nan: As in `trace`.
            prefixes: As in `trace`.
            options: `max_new`, `temperature` (0, the default, takes the likeliest token), `top_k`, `top_p`, `min_p`,
                `repetition_penalty`, `seed`, `stop` (a list of texts that end a row), `eos` (`False` goes on past the end of a
                text), `chunk`, `threads` (as in `trace`) and `lookup` (how many tokens are drafted at once from what the text has said
                before: the same tokens, sooner).
        """
        if prefixes is not None:
            options["prefixes"] = prefixes._core
        return Generation(self, prompts, padded, allow_nan, watch, options)

    def prefix(self, prompts: Any) -> Prefixes:
        """Computes the beginning of prompts to come (or several beginnings), to be given to runs and generations as `prefixes`."""
        return Prefixes(self, _core.Prefixes.of(self._core, convert.rows(self._core, prompts)[0]))

    def prefixes(self, megabytes: float = 256) -> Prefixes:
        """A cache that keeps what the calls it is given to have computed, at most so much, for later ones that begin alike."""
        return Prefixes(self, _core.Prefixes(int(megabytes * 1e6)))

    def scan(self, prompts: Any = None) -> Scan:
        """A block like a trace that checks everything and gives `.shape`, without running anything or reading weights."""
        return Scan(self, prompts, False, False)

    def session(self) -> Session:
        """Blocks that run together at its end, so that values of one can be used in the next without being saved."""
        return Session(self)

    def base(self, prompt: Any) -> Base:
        """A run of one prompt to branch off from: `base.branch()` is a block like a trace, `base.sweep` runs many at once."""
        return Base(self, prompt)

    def sweep(self, prompt: Any, record: Callable[..., Any], over: Iterable[Any]) -> list[Any]:
        """A prompt with many small changes, each computed from where it begins to differ, all in one batch.

        ```python
        def patch(t, layer, position):
            t.layers[layer].resid_post[:, position] = clean[layer][position]
            return t.logits[:, -1].save()

        logits = model.sweep(prompt, patch, itertools.product(range(model.layers), range(9)))
        ```
        """
        return Base(self, prompt).sweep(record, over)

    def run(
        self,
        prompts: Any,
        plan: Any = None,
        *,
        capture: str | Iterable[str] = (),
        positions: Any = None,
        padded: bool = False,
        chunk: int | None = None,
        threads: int | None = None,
        prefixes: Prefixes | None = None,
    ) -> Captures:
        """Runs prompts under a plan (a `Plan`, a dict, or JSON) and gives what it and `capture` capture, by site.

        Args:
            prompts: As in `trace`.
            plan: What to see and what to change.
            capture: Sites, patterns (`layers.*.resid_post`) or aliases to capture as they are after the plan's edits.
            positions: Which positions `capture` takes: a list, a slice, `"last"`, …; all by default.
            padded: As in `trace`.
            chunk: As in `trace`.
            threads: As in `trace`.
            prefixes: As in `trace`.
        """
        rows, single = convert.rows(self._core, prompts)
        patterns = [capture] if isinstance(capture, str) else list(capture)
        select = None if positions is None else (None, positions, None, None, None, None)
        captures = _core.Plan.from_record([(0, None, "capture", site, select) for site in patterns], [], [], [], False)
        plans = () if plan is None else (as_plan(plan),)
        kept = None if prefixes is None else prefixes._core
        run = _core.run(self._core, rows, captures, (*self.edits, *plans), chunk, False, threads, kept)
        found = Captures(self._core.find, run.all(), single, padded, run.passed_over)
        found.seconds = run.seconds
        return found

    def unembed(self, stream: Any) -> np.ndarray:
        """Logits of vectors of the stream: final norm, unembedding, scale and soft cap, as this model has them."""
        array = convert.array(stream)
        logits = numpy_of(self._core.unembed(array))
        return logits.reshape(*array.shape[:-1], logits.shape[-1])

    def check(self, plan: Any, prompts: Any) -> list[str]:
        """Every problem of a plan for these prompts, each with what to change; an empty list means that it will run."""
        rows, _ = convert.rows(self._core, prompts)
        problems = self._core.check(as_plan(plan), [len(row) for row in rows])
        return [problem if hint is None else f"{problem} ({hint})" for problem, hint in problems]

    def explain(self, plan: Any, prompts: Any) -> Explanation:
        """What a plan would do with these prompts, and what that would cost in time and memory. Runs nothing."""
        rows, _ = convert.rows(self._core, prompts)
        text, facts = self._core.explain(as_plan(plan), [len(row) for row in rows])
        return Explanation(text, json.loads(facts))

    # Standing edits.

    def plan(self) -> PlanBlock:
        """A block that records a plan and runs nothing; after it `.plan` has it."""
        return PlanBlock(self, None, False, False)

    def edit(self, plan: Any = None) -> Any:
        """A model with a standing edit, which shares this one's weights; this one stays as it is.

        With a plan (a `Plan`, a dict, JSON, or a finished `plan()` block) the edited model comes back at once. Without, it is a block
        to record the edit in, after which `.model` is the edited model.
        """
        return (
            PlanBlock(self, None, False, False)
            if plan is None
            else Model(self._core, (*self._edits, as_plan(plan)), self.sites)
        )

    def without_edits(self, count: int | None = None) -> Model:
        """The model without its last `count` standing edits, or without any."""
        return Model(self._core, self._edits[:-count] if count else (), self.sites)

    # Compiled plans.

    @property
    def cached_plans(self) -> int:
        """How many compiled plans are kept: a block that is recorded again for prompts of the same lengths is not checked again."""
        return self._core.cached_plans

    def keep_plans(self, on: bool = True) -> None:
        """Keeps compiled plans (as is the case unless turned off), or lets go of them. It never changes a result."""
        self._core.keep_plans(on)

    # Tokens.

    def to_tokens(self, prompts: Any) -> list[Any]:
        """The tokens of a prompt, with what the tokenizer puts before a text; of several prompts a list of them."""
        rows, single = convert.rows(self._core, prompts)
        return list(rows[0]) if single else [list(row) for row in rows]

    def to_str_tokens(self, prompts: Any) -> list[Any]:
        """How each token of a prompt reads where it stands; of several prompts a list of them."""
        rows, single = convert.rows(self._core, prompts)
        read = [[self._core.token_text(token) for token in row] for row in rows]
        return read[0] if single else read

    def to_single_token(self, text: str) -> int:
        """The one token that reads as this text, leading space included."""
        token = self._core.find_token(text)
        if token is None:
            raise InputError(
                f"{text!r} is not one token of this model", "mind the leading space; to_str_tokens shows tokens"
            )
        return token

    def to_string(self, tokens: Any, skip_special: bool = False) -> str:
        """The text of tokens."""
        ids = [int(token) for token in np.atleast_1d(tokens)]
        for token in ids:
            if not 0 <= token < self.vocabulary:
                raise InputError(
                    f"there is no token {token}: the vocabulary has {self.vocabulary}",
                    "use tokens of this model's own tokenizer",
                )
        return self._core.decode(ids, skip_special)

    # What it is.

    @property
    def name(self) -> str:
        """What it is called."""
        return self._core.name

    @property
    def strategy(self) -> str:
        """How it was loaded: `native family`, `mapped custom type`, `assumed family`, `adapter merge` or `GGUF`."""
        return self._core.strategy

    @property
    def repairs(self) -> list[str]:
        """What was read under another name than its family's, a sentence for each rule; empty for most models."""
        return self._core.repairs

    @property
    def layers(self) -> int:
        """How many layers it has."""
        return self._core.dimensions[0]

    @property
    def width(self) -> int:
        """The width of its stream."""
        return self._core.dimensions[1]

    @property
    def vocabulary(self) -> int:
        """How many tokens it knows."""
        return self._core.dimensions[2]

    @property
    def context(self) -> int | None:
        """How many positions it has, if it sets a limit."""
        return self._core.dimensions[3]

    @property
    def loaded(self) -> bool:
        """Whether its weights are in memory."""
        return self._core.is_loaded

    @property
    def weights(self) -> dict[str, tuple[int, ...]]:
        """The names of its weights, with their shapes."""
        return {name: tuple(shape) for name, shape in self._core.weights()}

    def weight(self, name: str) -> np.ndarray:
        """A weight as f32, whatever format it is kept in; matrices are `[outputs, inputs]`."""
        return self._core.weight(name)

    def __repr__(self) -> str:
        edits = f", {len(self.edits)} standing edits" if self.edits else ""
        return f"Model({self.name!r}: {self._core.family}, {self.layers} layers, width {self.width}{edits})"

    def _repr_html_(self) -> str:
        facts: list[tuple[str, object]] = [
            ("family", self._core.family),
            ("layers", self.layers),
            ("width", self.width),
            ("vocabulary", self.vocabulary),
            ("context", self.context or "no limit"),
            ("sites", len(self.sites)),
            ("standing edits", len(self.edits)),
        ]
        return display.facts(self.name, facts)


class Explanation:
    """What a plan would do: as text for people, and as `facts` by name."""

    def __init__(self, text: str, facts: dict[str, Any]) -> None:
        self.facts = facts
        self._text = text

    def __repr__(self) -> str:
        return self._text


def as_plan(plan: Any) -> _core.Plan:
    """A plan of whatever can be one."""
    if isinstance(plan, _core.Plan):
        return plan
    if isinstance(plan, PlanBlock):
        return plan.plan
    if isinstance(plan, str):
        return _core.Plan.from_json(plan)
    if isinstance(plan, Sequence):
        plan = {"taps": list(plan)}
    return _core.Plan.from_json(json.dumps(plan))
