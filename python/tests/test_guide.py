"""The guide's code runs."""

import re
from pathlib import Path

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "python.md"


def test_every_block_of_the_guide_runs():
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) >= 8
    names: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"docs/python.md, block {number}", "exec"), names)
