"""Files of the report: their formats, and writing them atomically."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

FORMATS = {".md": "markdown", ".markdown": "markdown", ".json": "json", ".html": "page", ".htm": "page"}


def parse_outputs(arguments: list[str], directory: Path) -> list[Path]:
    """Checks the files of the option before any test runs, and creates their directories."""
    outputs: list[Path] = []
    for argument in arguments:
        path = directory / argument
        if path.suffix.lower() not in FORMATS:
            problem = f"unknown report format `{path.suffix}`" if path.suffix else "the file name has no extension"
            raise pytest.UsageError(
                f"--pellucid-fixtures={argument}: {problem}\n\nhint: end the file name with .md, .json or .html"
            )
        if path.is_dir():
            raise pytest.UsageError(f"--pellucid-fixtures={argument}: this is a directory\n\nhint: name a file in it")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not os.access(path.parent, os.W_OK):
                raise PermissionError("no permission to write there")
        except OSError as error:
            raise pytest.UsageError(
                f"--pellucid-fixtures={argument}: cannot write to `{path.parent}`: {error}\n\n"
                "hint: name a file in a writable directory"
            ) from None
        if path not in outputs:
            outputs.append(path)
    return outputs


def write(path: Path, report: dict[str, Any]) -> None:
    """Writes a report in the format of its extension. A reader sees the old file or the new one."""
    text = renderer(path)(report)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def renderer(path: Path) -> Callable[[dict[str, Any]], str]:
    """The function that renders the format of a file."""
    name = FORMATS[path.suffix.lower()]
    if name == "json":
        import json

        return lambda report: json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    return import_module(f".{name}", __package__).render
