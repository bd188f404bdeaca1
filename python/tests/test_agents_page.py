"""AGENTS.md: its plans are valid and run; `test_guide.py` runs its Python blocks."""

import json
import re

from conftest import REPOSITORY

PAGE = (REPOSITORY / "AGENTS.md").read_text(encoding="utf-8")
PROMPTS = ["Tom saw a dog. The", "Lily saw a bird. The"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_every_plan_of_the_page_is_valid_and_runs(model):
    plans = blocks("json")
    assert len(plans) >= 2
    for plan in plans:
        taps = json.loads(plan)["taps"]
        assert model.check(plan, PROMPTS) == []
        captures = model.run(PROMPTS, plan)
        assert len(captures) >= sum("capture" in tap or "grad" in tap for tap in taps)


def test_a_wrong_plan_is_reported(model):
    """Control: `check` reports an error inserted into a plan of the page."""
    broken = blocks("json")[0].replace('"heads": [0, 1]', '"heads": [0, 99]')
    assert len(model.check(broken, PROMPTS)) == 1
