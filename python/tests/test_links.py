"""Links between the pages of the repository resolve, down to their headings."""

import re
from pathlib import Path

import pytest
from conftest import REPOSITORY

PAGES = sorted([*REPOSITORY.glob("*.md"), REPOSITORY / "llms.txt", *REPOSITORY.glob("docs/*.md")])
LINK = re.compile(r"\[[^\]\[]*\]\(([^()\s]+)\)")


def without_code(text: str) -> str:
    """The page without code blocks and code spans, in which brackets are not links."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "code", text)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken_links(page: Path, text: str) -> list[str]:
    broken = []
    for link in LINK.findall(without_code(text)):
        if re.match(r"[a-z]+:", link):  # another site
            continue
        path, _, anchor = link.partition("#")
        target = page if not path else page.parent / path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page):
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


def test_a_broken_link_is_found():
    """Control: a missing file and a missing heading."""
    page = REPOSITORY / "README.md"
    text = "[a](docs/no-such-page.md) [b](docs/plans.md#no-such-heading) [c](docs/plans.md#positions) [d](#start)"
    assert broken_links(page, text) == ["docs/no-such-page.md", "docs/plans.md#no-such-heading"]
