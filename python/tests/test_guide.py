"""The `python` blocks of the guides run."""

import re

import pytest
from conftest import REPOSITORY

PAGES = [
    ("README.md", 1),
    ("docs/python.md", 8),
    ("docs/generation.md", 6),
    ("docs/batching.md", 1),
    ("docs/fixtures.md", 1),
    ("docs/saes.md", 1),
    ("docs/steering.md", 1),
    ("AGENTS.md", 6),
]
"""Each page with its minimum number of blocks."""


@pytest.mark.parametrize(("guide", "minimum"), PAGES)
def test_every_block_of_a_guide_runs(guide, minimum):
    blocks = re.findall(r"```python\n(.*?)```", (REPOSITORY / guide).read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) >= minimum
    names: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{guide}, block {number}", "exec"), names)
