"""Conversations as prompts, with the tokens of each message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import InputError

if TYPE_CHECKING:
    from . import _core


class MessageSpan(NamedTuple):
    """The tokens of one message: adjacent ranges of positions."""

    role: str
    """Its role, as the caller named it."""
    header: range
    """The tokens before its content, such as `<|im_start|>user`."""
    content: range
    """The tokens of its content. A token that crosses an edge of the content belongs to it."""
    footer: range
    """The tokens that end it, such as `<|im_end|>`."""


class Chat(list[int]):
    """A conversation as tokens: a prompt for `trace`, `generate` and `run`.

    ```python
    chat = model.chat([{"role": "user", "content": "Hi"}])
    with model.trace(chat) as t:
        h = t.layers[5].resid_post[:, {"message": 0}].save()
    ```
    """

    def __init__(self, core: _core.ChatPrompt) -> None:
        super().__init__(core.tokens)
        self._core = core

    @property
    def text(self) -> str:
        """The rendered text."""
        return self._core.text

    @property
    def spans(self) -> list[MessageSpan]:
        """The tokens of each message.

        With the generation prompt they cover every token exactly once. Raises `InputError` if the
        template drops, rewrites or repeats a message.
        """
        return [
            MessageSpan(role, range(*header), range(*content), range(*footer))
            for role, header, content, footer in self._core.spans()[0]
        ]

    @property
    def generation_prompt(self) -> range:
        """The start of the assistant's answer, if the template added one."""
        return range(*self._core.spans()[1])

    def positions(self, message: int | None = None, role: str | None = None, part: str = "content") -> list[int]:
        """The positions of one message (negative indices count from the end), or of all messages
        of a role; `part` is `header`, `content`, `footer` or `all`.
        """
        return self._core.positions(message, role, part)


def positions_in(row: Any, selected: Any) -> list[int]:
    """The positions of messages `{"message": 2}` or `{"role": "user"}` in a row, which must be a
    chat.
    """
    if not isinstance(row, Chat):
        raise InputError(
            f"the positions {dict(selected)!r} name messages, and the prompt is not a chat",
            "give the prompt as a list of messages, or give positions as numbers",
        )
    unknown = set(selected) - {"message", "role", "part"}
    if unknown:
        raise InputError(
            f"positions of messages have no {sorted(unknown, key=str)[0]!r}", "they have message, role and part"
        )
    return row.positions(**selected)
