"""The guides' code runs."""

import re

import pytest
from conftest import REPOSITORY

PAGES = [("docs/python.md", 8), ("docs/generation.md", 6), ("AGENTS.md", 6)]
"""Each page with the least number of blocks that it has."""


@pytest.mark.parametrize(("guide", "least"), PAGES)
def test_every_block_of_a_guide_runs(guide, least):
    blocks = re.findall(r"```python\n(.*?)```", (REPOSITORY / guide).read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) >= least
    names: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{guide}, block {number}", "exec"), names)
