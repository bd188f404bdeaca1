"""Models that run on a server: `connect`."""

from __future__ import annotations

import warnings

from . import _core, convert
from .model import Model


def connect(url: str, *, token: str | None = None, model: str | None = None) -> Model:
    """Connects to a model of a server that `pellucid serve` started.

    ```python
    model = pellucid.connect("http://127.0.0.1:7117")
    with model.trace("Once upon a time") as t:
        h = t.layers[2].resid_post.save()
    ```

    `trace`, `generate`, `run`, `sweep` and gradients give the bits of a local run. Tokens, plans and
    arrays travel, never code: Python functions (`t.call`, hooks) are refused, and so are calls that
    need all weights. Tokens, chats, sites, checks and `scan` are local. See docs/remote.md.

    Args:
        url: The URL of the server, such as `http://127.0.0.1:7117` or `https://HOST/v1`.
        token: The server's bearer token; by default that of the environment variable
            `PELLUCID_TOKEN`. It is sent to this URL only: redirects are not followed.
        model: The model or alias; by default the server's first model.

    Raises `ServerError` if the server cannot be reached, refuses the token or is of another version.
    """
    core = _core.Model.connect(
        convert.text(url, "the URL"),
        None if token is None else convert.text(token, "token"),
        None if model is None else convert.text(model, "model"),
    )
    for warning in core.warnings + core.name_variants:
        warnings.warn(warning, stacklevel=2)
    return Model(core)
