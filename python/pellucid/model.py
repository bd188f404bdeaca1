"""`load` and `Model`: loading, running, tokens, sites and weights."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from typing import Any

import numpy as np

from . import _core, convert, display, load_options
from .branches import Base
from .chat import Chat
from .engine import Engine
from .errors import InputError, MissingAttribute
from .evaluation import EvalApi
from .plans import Explanation, as_plan, capture_plan
from .prefixes import Prefixes
from .reports import warn_nan
from .results import Captures, Mark, to_numpy
from .sae_api import SaeApi
from .site_table import Sites
from .steering import SteeringVectors
from .steering import extract as extract_vectors
from .trace import Generation, PlanBlock, Scan, Session, Trace
from .transformer_lens import TransformerLensApi


def load(
    name: str | PathLike[str] | None = None,
    *,
    dtype: Any = "auto",
    threads: int | None = None,
    adapters: Iterable[str | PathLike[str]] = (),
    assume: str | None = None,
    lazy: bool = False,
    kv: str = "f32",
    **unknown: Any,
) -> Model:
    """Loads a model with the first strategy that accepts it; `model.strategy` is its name.

    Weights found under another name than their family's are reported as warnings and in
    `model.name_variants`. If no strategy accepts the model, `LoadError` lists each with its reason.

    Args:
        name: A Hugging Face directory, a GGUF file, an adapter directory or the name of a pulled
            model; the small built-in model if omitted.
        dtype: Storage dtype of matrices: `auto` (as stored), `f32`, `bf16`, `f16` or `q8` (8 bits),
            or a dtype of torch or numpy. Arithmetic is always f32.
        threads: Number of threads; by default one per core, in a pool shared by all models.
        adapters: Directories of LoRA adapters to merge into the weights.
        assume: The family to load a model of unknown type as.
        lazy: Loads the weights on first use; sites, tokens and `scan` never need them.
        kv: Dtype of the KV cache: `f32`, or `bf16`, which halves its memory and rounds results.
        unknown: Options of other libraries, which raise an error that says what to do instead.
    """
    source = load_options.check(name, dtype, threads, adapters, assume, lazy, kv, unknown)
    core = _core.Model.open(*source)
    # Name variants are known only after the weights are loaded.
    for warning in core.warnings + (core.name_variants if core.is_loaded else []):
        warnings.warn(warning, stacklevel=2)
    return Model(core, source=source)


class Model(SaeApi, EvalApi, TransformerLensApi):
    """A model. Edited copies share its weights. Thread-safe."""

    def __init__(
        self,
        core: _core.Model,
        edits: tuple[_core.Plan, ...] = (),
        sites: Sites | None = None,
        source: tuple[Any, ...] | None = None,
    ) -> None:
        self._core = core
        self._source = source
        """The arguments of `_core.Model.open` that give this model again, if there are any."""
        self.edits = edits
        self.sites = sites if sites is not None else Sites(core)
        """The table of all sites, with shape, meaning and aliases."""

    def _with_edits(self, edits: tuple[_core.Plan, ...]) -> Model:
        """A copy with other standing edits; shares everything else."""
        return Model(self._core, edits, self.sites, self._source)

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
        """A `with` block that records reads, computations and writes, and runs them in one pass at
        its end.

        ```python
        with model.trace("The Eiffel Tower is in the city of") as t:
            h = t.layers[5].resid_post.save()
            t.layers[8].resid_post[:, -1] += 4.0 * v
        h.value
        ```

        Args:
            prompts: A text, a list of token ids, a conversation, or a list of these; `t.row` adds
                more.
            padded: Return values of several prompts as one zero-padded array instead of a list.
            allow_nan: Allow edits to write NaN, which is an error otherwise.
            chunk: Chunked prefill: process at most this many tokens of a prompt at once. Limits
                memory; results are the same.
            recompute: Gradient checkpointing: store only the input of each layer and recompute the
                layers in the backward pass. Less memory, more time.
            threads: Use at most this many of the model's threads; all by default.
            prefixes: A prefix cache, used where the block neither reads nor writes activations.
        """
        cache = None if prefixes is None else prefixes._core
        return Trace(self, prompts, padded, allow_nan, chunk, recompute, threads, cache)

    def generate(
        self,
        prompts: Any = None,
        *,
        watch: Callable[[int, int, str | None], Any] | None = None,
        padded: bool = False,
        allow_nan: bool = False,
        prefixes: Prefixes | None = None,
        steer: Any = None,
        **options: Any,
    ) -> Generation:
        """Generates from prompts.

        Use it as a `with` block like `trace`, with `t.steps`; or read `.text` or `.result`
        directly.

        Args:
            prompts: As in `trace`.
            watch: Called for each new token with the row, the token and the new text. The text is
                `None` while a character or a possible stop string is incomplete; the pieces of a
                row concatenate to its `.text`.
            padded: As in `trace`.
            allow_nan: As in `trace`.
            prefixes: As in `trace`.
            steer: Steering vectors (`1.5 * vectors`, or a list of several), a steering spec
                (`{"layers": {"2": {"operations": […]}}}`), or a plan of edits and conditions; see
                docs/steering.md and docs/plans.md.
            options: `max_new`, `temperature` (0, the default, is greedy), `top_k`, `top_p`,
                `min_p`, `repetition_penalty`, `seed`, `stop` (a string that ends a row, or a list),
                `eos` (`False` continues past the end-of-text token), `chunk`, `threads` (as in
                `trace`), `lookup` (number of speculative tokens per step, by prompt lookup: the
                same tokens, faster), `capture_dtype` (`"bf16"` stores captures in half the memory),
                `capture_memory` (captures that need more bytes go to a memory-mapped temporary
                file) and `capture_folder` (the folder of that file).
        """
        if prefixes is not None:
            options["prefixes"] = prefixes._core
        return Generation(self._steered(steer), prompts, padded, allow_nan, watch, options)

    def engine(
        self,
        *,
        max_batch: int = 32,
        kv_bytes: int = 4 << 30,
        capture_bytes: int = 4 << 30,
        pass_tokens: int = 512,
        prefix_bytes: int = 256 << 20,
        queue: int = 4096,
    ) -> Engine:
        """Starts an engine that runs many requests at once (continuous batching).

        ```python
        with model.engine() as engine:
            requests = [engine.submit(prompt, capture="layers.*.resid_post") for prompt in prompts]
            for request in requests:
                print(request.text, request.fetch()["layers.3.resid_post"].shape)
        ```

        A request gets exactly the tokens and activations that it would get alone.

        Args:
            max_batch: Most prompts in one pass.
            kv_bytes: Bytes for KV caches. A request that does not fit waits; one that can never fit
                is refused.
            capture_bytes: Bytes for captures of running requests, in the same way.
            pass_tokens: Tokens of one pass: one for each row that decodes, the rest from prompts.
            prefix_bytes: Bytes for prefixes that later prompts may start with; 0 turns this off.
            queue: Most requests that wait.
        """
        options = {
            "max_batch": max_batch,
            "kv_bytes": kv_bytes,
            "capture_bytes": capture_bytes,
            "pass_tokens": pass_tokens,
            "prefix_bytes": prefix_bytes,
            "queue": queue,
        }
        return Engine(self, options)

    def prefix(self, prompts: Any) -> Prefixes:
        """Computes one or several prefixes of later prompts; pass the result to runs and
        generations as `prefixes`.
        """
        return Prefixes(self, _core.Prefixes.of(self._core, convert.rows(self._core, prompts)[0]))

    def prefixes(self, megabytes: float = 256) -> Prefixes:
        """A prefix cache: reuses the KV cache of earlier calls whose prompts start with the same
        tokens.
        """
        size = convert.finite(megabytes, "megabytes")
        if not 0 <= size < 1e9:
            raise InputError(f"megabytes is {megabytes!r}", "pass the size of the cache, such as 256")
        return Prefixes(self, _core.Prefixes(int(size * 1e6)))

    def scan(self, prompts: Any = None) -> Scan:
        """A block like `trace` that only checks and infers `.shape`; runs nothing and needs no
        weights.
        """
        return Scan(self, prompts, False, False)

    def session(self) -> Session:
        """Several blocks that run at the end of the session; later blocks can use unsaved values of
        earlier ones.
        """
        return Session(self)

    def base(self, prompt: Any) -> Base:
        """Runs one prompt and stores its state: `base.branch()` is a block like `trace`,
        `base.sweep` runs many at once.
        """
        return Base(self, prompt)

    def sweep(self, prompt: Any, record: Callable[..., Any], over: Iterable[Any]) -> list[Any]:
        """Runs one prompt with many different edits in one batch, recomputing only what each edit
        changes.

        ```python
        def patch(t, layer, position):
            t.layers[layer].resid_post[:, position] = clean[layer][position]
            return t.logits[:, -1].save()

        logits = model.sweep(prompt, patch, itertools.product(range(model.n_layers), range(9)))
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
        steer: Any = None,
    ) -> Captures:
        """Runs prompts under a plan (a `Plan`, a dict, or JSON); returns the captures by site.

        Args:
            prompts: As in `trace`.
            plan: Captures and edits, see docs/plans.md.
            capture: Sites, patterns (`layers.*.resid_post`) or aliases to capture after the plan's
                edits.
            positions: Positions of `capture`: a list, a slice, `"last"`, messages of a chat
                (`{"message": 2}`, `{"role": "user"}`), …; all by default.
            padded: As in `trace`.
            chunk, threads, prefixes: As in `trace`.
            steer: As in `generate`; it applies before `plan`.
        """
        rows, single = convert.rows(self._core, prompts)
        captures = capture_plan(rows, capture, positions)
        edits = self._steered(steer).edits_for(rows)
        plans = () if plan is None else (as_plan(plan),)
        cache = None if prefixes is None else prefixes._core
        run = _core.run(self._core, rows, captures, (*edits, *plans), chunk, False, threads, cache)
        result = Captures(self._core.find, run.all(), single, padded, run.passed_over, rows)
        result.seconds = run.seconds
        result.marks = [Mark(*mark) for mark in run.marks]
        warn_nan(run.nan)
        return result

    def unembed(self, stream: Any) -> np.ndarray:
        """Logits of residual stream vectors `[…, d_model]`: final norm, unembedding, and the
        model's logit scale and soft cap.
        """
        array = convert.array(stream)
        if array.shape[-1:] != (self.d_model,):
            raise InputError(
                f"vectors of shape {list(array.shape)}", f"the last axis must be {self.d_model}, the model's d_model"
            )
        logits = to_numpy(self._core.unembed(array))
        return logits.reshape(*array.shape[:-1], logits.shape[-1])

    def check(self, plan: Any, prompts: Any) -> list[str]:
        """Checks a plan for these prompts; returns all problems with hints, or an empty list if it
        runs.
        """
        rows, _ = convert.rows(self._core, prompts)
        problems = self._core.check(as_plan(plan), [len(row) for row in rows])
        return [problem if hint is None else f"{problem} ({hint})" for problem, hint in problems]

    def explain(self, plan: Any, prompts: Any) -> Explanation:
        """Explains what a plan does with these prompts, and its cost in time and memory.

        Runs nothing.
        """
        rows, _ = convert.rows(self._core, prompts)
        text, facts = self._core.explain(as_plan(plan), [len(row) for row in rows])
        return Explanation(text, json.loads(facts))

    # Standing edits.

    def plan(self) -> PlanBlock:
        """A block that records a plan and runs nothing; afterwards `.plan` is the plan."""
        return PlanBlock(self, None, False, False)

    def edit(self, plan: Any = None) -> Any:
        """A copy of the model with a standing edit.

        The copy shares the weights; this model is unchanged.

        With a plan (a `Plan`, a dict, JSON, or a finished `plan()` block), returns the edited
        model. Without one, returns a block that records the edit; afterwards `.model` is the edited
        model.
        """
        return PlanBlock(self, None, False, False) if plan is None else self._with_edits((*self._edits, as_plan(plan)))

    def without_edits(self, count: int | None = None) -> Model:
        """The model without its last `count` standing edits, or without any."""
        if count is None:
            return self._with_edits(())
        number = convert.integer(count, "count")
        if not 0 <= number <= len(self._edits):
            raise InputError(
                f"count is {count}, and this model has {len(self._edits)} standing edits", "omit it for all"
            )
        return self._with_edits(self._edits[: len(self._edits) - number])

    # Steering.

    def _steered(self, steer: Any) -> Model:
        """A copy of the model with steering as a standing edit: vectors, a list of them, a spec or
        a plan.
        """
        if steer is None:
            return self
        for one in steer if isinstance(steer, (list, tuple)) else [steer]:
            if isinstance(one, str):
                raise InputError(f"{one!r} is not a SteeringVectors", "load a file with SteeringVectors.load(path)")
        is_list = isinstance(steer, (list, tuple)) and all(isinstance(one, SteeringVectors) for one in steer)
        parts = list(steer) if is_list else [steer]
        for part in parts:
            if isinstance(part, SteeringVectors):
                part.check(self)
        return self._with_edits((*self._edits, *map(as_plan, parts)))

    def extract_steering(
        self,
        pairs: Iterable[Any],
        *,
        method: str = "mean",
        layers: Iterable[int] | None = None,
        positions: Any = "last",
        point: str = "resid_post",
    ) -> SteeringVectors:
        """Extracts steering vectors from contrastive pairs of prompts; `.quality` says which layers
        separate them.

        Standing edits of the model are not applied.

        Args:
            pairs: `(positive, negative)` prompts (texts, token ids or conversations), or
                `{"positive": …, "negative": …}`.
            method: `mean` (difference of means), `pca_diff` (first principal component of the paired
                differences minus their mean, repeng's default) or `pca_center` (of the activations
                minus the mean of each pair). Principal components have length 1.
            layers: The layers; by default all but layer 0, which llama.cpp cannot steer.
            positions: The positions to read: `"last"`, an index, a slice such as `"-4:"`, or `"all"`;
                the mean of several.
            point: The point to read and to steer.
        """
        return extract_vectors(self, pairs, method, layers, positions, point)

    # Compiled plans.

    @property
    def cached_plans(self) -> int:
        """Number of cached compiled plans.

        The same plan for prompts of the same lengths is compiled only once.
        """
        return self._core.cached_plans

    def keep_plans(self, on: bool = True) -> None:
        """Turns the cache of compiled plans on (the default) or off. Does not affect results."""
        self._core.keep_plans(on)

    # Tokens.

    def to_tokens(self, prompts: Any) -> list[Any]:
        """Tokenizes a prompt, with the special tokens that the tokenizer adds; a list of lists for
        several prompts.
        """
        rows, single = convert.rows(self._core, prompts)
        return list(rows[0]) if single else [list(row) for row in rows]

    def chat(
        self,
        messages: Iterable[Any],
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        **variables: Any,
    ) -> Chat:
        """Encodes a conversation with the model's chat template; the result is a prompt whose
        `.spans` are the tokens of each message.

        Args:
            messages: `{"role": …, "content": …}`, with other fields that the template uses.
            add_generation_prompt: Append the start of the assistant's answer; the default unless
                the final message is continued.
            continue_final_message: End after the content of the final message, so that the model
                continues it.
            chat_template: A Jinja template to use instead of the model's.
            variables: Variables of the template, such as `enable_thinking=False`.
        """
        listed = convert.items(messages, "messages", 'pass a list of {"role": …, "content": …}')
        options: dict[str, Any] = {**variables, "messages": listed}
        if add_generation_prompt is not None:
            options["add_generation_prompt"] = add_generation_prompt
        options |= {"continue_final_message": continue_final_message, "chat_template": chat_template}
        return convert.chat(self._core, options)

    def to_str_tokens(self, prompts: Any) -> list[Any]:
        """The text of each token of a prompt; a list of lists for several prompts."""
        rows, single = convert.rows(self._core, prompts)
        self._check_tokens([token for row in rows for token in row])
        texts = [[self._core.token_text(token) for token in row] for row in rows]
        return texts[0] if single else texts

    def to_single_token(self, text: str) -> int:
        """The single token with this text, leading space included."""
        token = self._core.find_token(convert.text(text, "the token's text"))
        if token is None:
            raise InputError(
                f"{text!r} is not one token of this model", "check the leading space; to_str_tokens shows the tokens"
            )
        return token

    def to_string(self, tokens: Any, skip_special: bool = False) -> str:
        """Decodes tokens to text."""
        ids = convert.token_ids(tokens)
        self._check_tokens(ids)
        return self._core.decode(ids, skip_special)

    def _check_tokens(self, tokens: list[int]) -> None:
        for token in tokens:
            if not 0 <= token < self.vocab_size:
                raise InputError(
                    f"there is no token {token}: the vocabulary has {self.vocab_size}",
                    "use tokens of this model's tokenizer",
                )

    # Properties.

    @property
    def name(self) -> str:
        """The model's name: as passed to `load`, or `builtin`."""
        return self._core.name

    @property
    def server(self) -> str | None:
        """The URL of the server that runs the model; `None` for a model of this process."""
        return self._core.server

    @property
    def strategy(self) -> str:
        """The loading strategy: `native family`, `mapped custom type`, `assumed family`,
        `adapter merge` or `GGUF`.
        """
        return self._core.strategy

    @property
    def name_variants(self) -> list[str]:
        """Known variants of tensor names (wrappers, fused projections) under which weights were
        found, one sentence per rule; usually empty.
        """
        return self._core.name_variants

    @property
    def repairs(self) -> list[str]:
        """Former name of `name_variants`."""
        return self.name_variants

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return self._core.dimensions[0]

    @property
    def d_model(self) -> int:
        """Width of the residual stream."""
        return self._core.dimensions[1]

    @property
    def vocab_size(self) -> int:
        """Vocabulary size."""
        return self._core.dimensions[2]

    @property
    def n_ctx(self) -> int | None:
        """Context length; `None` if the model has no limit."""
        return self._core.dimensions[3]

    # Former names, kept for existing programs.
    width, vocabulary, context = d_model, vocab_size, n_ctx

    @property
    def layers(self) -> load_options.LayerCount:
        """Number of layers: a former name of `n_layers`. Sites are in `t.layers` of a block."""
        return load_options.LayerCount(self.n_layers)

    @property
    def loaded(self) -> bool:
        """Whether the weights are in memory."""
        return self._core.is_loaded

    @property
    def weights(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the weights."""
        return {name: tuple(shape) for name, shape in self._core.weights()}

    def weight(self, name: str) -> np.ndarray:
        """A weight converted to f32; matrices are `[outputs, inputs]`. The array is read-only:
        `with_weights` gives a model with other weights.
        """
        return self._core.weight(convert.text(name, "the weight's name"))

    def with_weights(self, weights: Mapping[str, Any]) -> Model:
        """A copy of the model with other values for some weights; this model is unchanged.

        ```python
        ablated = model.with_weights({"layers.3.mlp.down": 0.5 * model.weight("layers.3.mlp.down")})
        ```

        The copy shares all other weights, attached SAEs and standing edits. Names, shapes and values
        are those of `weight`: matrices are `[outputs, inputs]`, and the gain of a norm is the factor
        that it applies. Replaced weights are stored as f32.

        Args:
            weights: Arrays by name; `model.weights` lists the names and shapes.
        """
        if not isinstance(weights, Mapping):
            raise InputError(f"{type(weights).__name__} does not map names to arrays", "pass {name: array}")
        pairs = [(convert.text(name, "the weight's name"), convert.array(value)) for name, value in weights.items()]
        return Model(self._core.with_weights(pairs), self._edits, self.sites)

    def __reduce__(self) -> Any:
        return load_options.unpickle, load_options.pickled(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if isinstance(attribute := getattr(type(self), name, None), property):
            return attribute.__get__(self)  # it raised an AttributeError: raise that one
        raise MissingAttribute(f"a model has no attribute {name!r}", load_options.attribute_hint(name))

    def __repr__(self) -> str:
        count = len(self.edits)
        edits = f", {count} standing edit{'s' * (count != 1)}" if count else ""
        server = f" at {self._core.server}" if self._core.server else ""
        return f"Model({self.name!r}{server}: {self._core.describe()}{edits})"

    def _repr_html_(self) -> str:
        facts: list[tuple[str, object]] = [
            ("weights", self._core.describe()),
            ("family", self._core.family),
            ("n_layers", self.n_layers),
            ("d_model", self.d_model),
            ("vocab_size", self.vocab_size),
            ("n_ctx", self.n_ctx or "no limit"),
            ("sites", len(self.sites)),
            ("standing edits", len(self.edits)),
        ]
        return display.facts(self.name, facts)
