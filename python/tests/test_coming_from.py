"""The guides for users of other libraries: every `python` block runs and prints the `text` block
below it.
"""

import contextlib
import io
import re

import pytest
from conftest import REPOSITORY
from test_examples import close

GUIDES = ("coming-from-nnsight.md", "coming-from-transformer-lens.md")
BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", flags=re.DOTALL)


def sections() -> list[tuple[str, str, str]]:
    """Each section of each guide, with the beginning of its page, which defines its variables."""
    found = []
    for guide in GUIDES:
        beginning, *parts = (REPOSITORY / "docs" / guide).read_text(encoding="utf-8").split("\n## ")
        found += [(f"{guide}: {part.splitlines()[0]}", beginning, part) for part in parts]
    return found


@pytest.mark.parametrize(("title", "beginning", "section"), sections(), ids=[title for title, _, _ in sections()])
def test_a_section_runs(title, beginning, section):
    names: dict[str, object] = {}
    for number, (code, output) in enumerate(BLOCK.findall(beginning) + BLOCK.findall(section)):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"docs/{title}, block {number}", "exec"), names)
        words, expected = printed.getvalue().split(), output.split()
        assert len(words) == len(expected), printed.getvalue()
        for one, other in zip(words, expected, strict=True):
            assert one == other or close(one, other), printed.getvalue()
