"""Many requests at once: `Model.engine` runs generations in shared passes.

Each request has its own prompt, plan, sampling and seed, and gets exactly the tokens and
activations that it would get alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _core, convert
from .errors import InputError
from .results import Captures, generated_rows

if TYPE_CHECKING:
    from .model import Model


class Token(NamedTuple):
    """A new token of a request."""

    row: int
    """The prompt of the request; 0 if there is one."""
    token: int | None
    """The token; `None` for text that was held back and follows the last token."""
    text: str | None
    """The text that the token completes, possibly empty; `None` without a tokenizer.

    The texts of a row concatenate to the text of the result.
    """


class EngineLoad(NamedTuple):
    """What an engine does at this moment."""

    running: int
    """Requests that run."""
    rows: int
    """Their prompts."""
    waiting: int
    """Requests that wait."""
    kv_bytes: int
    """Bytes reserved for KV caches and recurrent states."""
    capture_bytes: int
    """Bytes reserved for captures."""


class Engine:
    """Runs requests in shared passes on a thread of its own (continuous batching).

    Created by `Model.engine`. Use it as a `with` block, or `close` it: that ends all requests.
    """

    def __init__(self, model: Model, options: dict[str, Any]) -> None:
        self._model = model
        self._core = _core.Engine(model._core, options)

    def submit(
        self,
        prompts: Any,
        plan: Any = None,
        *,
        capture: str | Iterable[str] = (),
        positions: Any = None,
        padded: bool = False,
        steer: Any = None,
        **options: Any,
    ) -> Request:
        """Checks a request and puts it into the queue; returns at once.

        Several prompts form one request, so that a plan may read one prompt's activations in
        another.

        Args:
            prompts: A text, a list of token ids, a conversation, or a list of these.
            plan: Captures and edits: a `Plan`, a dict, JSON or a `plan()` block.
            capture: Sites, patterns (`layers.*.resid_post`) or aliases to capture after the plan's
                edits.
            positions: Positions of `capture`: a list, a slice, `"last"`, `"generated"`, …; all by
                default.
            padded: Return captures of several prompts as one zero-padded array instead of a list.
            steer: Steering vectors, as in `Model.generate`.
            options: As in `Model.generate`, except `threads` and `prefixes`, which belong to the
                engine.
        """
        from .plans import as_plan, capture_plan  # plans import this module's models

        model = self._model._steered(steer)
        rows, single = convert.rows(model._core, prompts)
        captures = capture_plan(rows, capture, positions)
        plans = () if plan is None else (as_plan(plan),)
        core = self._core.submit(model._core, rows, captures, (*model.edits_for(rows), *plans), options)
        return Request(model, core, rows, single, padded)

    def generate(self, prompts: Iterable[Any], plan: Any = None, **options: Any) -> list[Any]:
        """Generates from many prompts, each a request of its own; returns results in their order."""
        if isinstance(prompts, str) or not isinstance(prompts, Iterable):
            raise InputError(f"{prompts!r} is not a list of prompts", "use submit for one prompt, or pass a list")
        requests = [self.submit(prompt, plan, **options) for prompt in prompts]
        return [request.result() for request in requests]

    @property
    def load(self) -> EngineLoad:
        """Running and waiting requests and the memory that they have reserved."""
        return EngineLoad(*self._core.load())

    def close(self) -> None:
        """Ends all requests and the engine's thread."""
        self._core.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        load = self.load
        return f"<Engine of {self._model.name!r}: {load.running} running, {load.waiting} waiting>"


class Request:
    """A submitted request.

    Iterate over it for tokens as they come (`for` or `async for`); `result()` or `await` gives the
    result; `captures` shows the activations so far. Dropping it cancels the request.
    """

    def __init__(self, model: Model, core: _core.EngineRequest, rows: list[Any], single: bool, padded: bool) -> None:
        self._model = model
        self._core = core
        self._rows = rows
        self._single = single
        self._padded = padded
        self._fetched: Captures | None = None

    @property
    def id(self) -> int:
        """The number of the request, in the order of submission."""
        return self._core.id

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._core.is_done

    # Tokens.

    def __iter__(self) -> Iterator[Token]:
        while (token := self._core.next_token()) is not None:
            yield Token(*token)
        self.result()

    async def __aiter__(self) -> AsyncIterator[Token]:
        while True:
            ready, token = self._core.try_next_token()
            if not ready:
                await self._changed()
            elif token is None:
                break
            else:
                yield Token(*token)
        self.result()

    async def _changed(self) -> None:
        """Waits for the next token or the end, without a thread."""
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        self._core.when_ready(lambda: loop.call_soon_threadsafe(changed.set))
        await changed.wait()

    # Results.

    def result(self, timeout: float | None = None) -> Any:
        """Waits for the end; returns a `Generated`, or a list of them for several prompts.

        Raises the request's error if it failed, and `TimeoutError` after `timeout` seconds.
        """
        generation = self._core.result(timeout)
        if generation is None:
            raise TimeoutError(f"request {self.id} has not ended after {timeout} seconds")
        generated = generated_rows(self._rows, generation)
        return generated[0] if self._single else generated

    @property
    def text(self) -> Any:
        """The new text; a list for several prompts. Waits for the end."""
        result = self.result()
        return [row.text for row in result] if isinstance(result, list) else result.text

    def __await__(self) -> Generator[Any, None, Any]:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        # Tokens that nothing iterates over are dropped; the result has them.
        async for _ in self:
            pass
        return self.result()

    # Activations.

    @property
    def captures(self) -> Captures:
        """The captured activations so far, without waiting and without a copy.

        After a token has been received, they have all positions before it. Means,
        attention patterns and captures with a condition appear at the end.
        """
        if self._fetched is not None:
            return self._fetched
        captured = self._core.captures()
        return Captures(self._model._core.find, captured, self._single, self._padded, [], self._rows)

    def fetch(self) -> Captures:
        """Waits for the end; returns all captures. Later calls return the same object."""
        if self._fetched is None:
            generation = self._core.result(None)
            find, skipped = self._model._core.find, generation.passed_over
            self._fetched = Captures(find, generation.all(), self._single, self._padded, skipped, self._rows)
        return self._fetched

    # Ending.

    def cancel(self) -> None:
        """Ends the request before the next pass and frees its memory."""
        self._core.cancel()

    def __enter__(self) -> Request:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def __repr__(self) -> str:
        return f"<Request {self.id}: {'ended' if self.done else 'running or waiting'}>"


def fetch(requests: Iterable[Request]) -> list[Captures]:
    """Waits for many requests; returns the captures of each."""
    return [request.fetch() for request in requests]
