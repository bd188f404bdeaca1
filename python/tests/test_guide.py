"""The guides' code runs."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize(("guide", "least"), [("python.md", 8), ("generation.md", 6)])
def test_every_block_of_a_guide_runs(guide, least):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / guide).read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) >= least
    names: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"docs/{guide}, block {number}", "exec"), names)
