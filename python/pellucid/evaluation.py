"""`Evaluation`: what a model knows, plain and under plans, with confidence intervals."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _core, convert
from .display import table
from .errors import InputError
from .plans import as_plan
from .progress import Progress

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Metric:
    """A value with its 95 % confidence interval, by bootstrap over items."""

    value: float
    low: float
    high: float

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        return f"{self.value:.4f} ({self.low:.4f} to {self.high:.4f})"


class Evaluation:
    """The results of a task, by variant.

    `evaluation["clean"]["acc"]` is a `Metric`. In a notebook it is a table; `print` shows the table
    of `pellucid eval`.

    Attributes:
        model: Name of the model.
        task: Name of the task.
        kind: `choices`, `pairs`, `target` or `text`.
        items: Number of items.
        num_fewshot: Number of examples in the prompt of each item.
        metrics: The metrics of each variant.
        changes: Their differences to `clean` on the same items, for every other variant.
        log_likelihoods: For each variant and item, the log-likelihood of every choice.
        greedy: For each variant and item, whether greedy decoding would give the choice.
    """

    def __init__(self, result: dict[str, Any], text: str) -> None:
        self.model: str = result["model"]
        self.task: str = result["task"]
        self.kind: str = result["kind"]
        self.items: int = result["items"]
        self.num_fewshot: int = result["num_fewshot"]
        variants = {variant["name"]: variant for variant in result["variants"]}
        self.metrics = {name: _metrics(variant["metrics"]) for name, variant in variants.items()}
        self.changes = {
            name: _metrics(variant["changes"]) for name, variant in variants.items() if "changes" in variant
        }
        self.log_likelihoods = {name: _scores(variant, "log_likelihood", float) for name, variant in variants.items()}
        self.greedy = {name: _scores(variant, "greedy", bool) for name, variant in variants.items()}
        self._text = text

    def __getitem__(self, variant: str) -> dict[str, Metric]:
        if variant not in self.metrics:
            raise KeyError(f"there is no variant {variant!r}; the variants are {', '.join(self.metrics)}")
        return self.metrics[variant]

    def rows(self) -> list[dict[str, Any]]:
        """One dict per variant and metric: value, interval, and the same of its change."""
        rows = []
        for variant, metrics in self.metrics.items():
            for name, metric in metrics.items():
                change = self.changes.get(variant, {}).get(name)
                row = {
                    "variant": variant,
                    "metric": name,
                    "value": metric.value,
                    "low": metric.low,
                    "high": metric.high,
                }
                row |= {"change": None, "change_low": None, "change_high": None}
                if change is not None:
                    row |= {"change": change.value, "change_low": change.low, "change_high": change.high}
                rows.append(row)
        return rows

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a DataFrame."""
        import pandas

        return pandas.DataFrame(self.rows())

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        cells = []
        for row in self.rows():
            change = ""
            if row["change"] is not None:
                change = f"{row['change']:+.4f} ({row['change_low']:+.4f} to {row['change_high']:+.4f})"
            interval = f"{row['low']:.4f} to {row['high']:.4f}"
            cells.append((row["variant"], row["metric"], f"{row['value']:.4f}", interval, change))
        return table(["variant", "metric", "value", "95 % interval", "against clean"], cells)


def _metrics(metrics: Sequence[dict[str, Any]]) -> dict[str, Metric]:
    return {metric["name"]: Metric(metric["value"], metric["low"], metric["high"]) for metric in metrics}


def _scores(variant: dict[str, Any], key: str, dtype: type) -> list[np.ndarray]:
    return [np.array([score[key] for score in item], dtype=dtype) for item in variant["scores"]]


class EvalApi:
    """The methods of `Model` about evaluation."""

    _core: _core.Model
    _edits: tuple[_core.Plan, ...]

    def eval(
        self,
        task: Any,
        *,
        variants: Mapping[str, Any] | None = None,
        limit: int | None = None,
        num_fewshot: int | None = None,
        fewshot_file: str | PathLike[str] | None = None,
        fewshot_seed: int = 1234,
        prefix: bool = True,
        seed: int = 0,
        progress: bool | None = None,
    ) -> Evaluation:
        """Evaluates the model on a task, as `pellucid eval` does; standing edits apply throughout.

        Args:
            task: A task file (JSONL, text, or a YAML file of lm-eval), or a list of items in the
                form of JSONL lines, see docs/eval.md.
            variants: Plans under which the task is evaluated too, by name: each a plan, a
                `SteeringVectors`, or the `Path` of a plan file.
            limit: Maximum number of items.
            num_fewshot: Examples in the prompt of each item; the task file's number by default.
            fewshot_file: JSONL file of these examples; by default the task file's split, or the
                other items.
            fewshot_seed: Seed of the choice of examples; the default is lm-eval's.
            prefix: Put the BOS token before texts without a prompt.
            seed: Seed of the bootstrap.
            progress: Show a progress bar; by default if stderr is a terminal.
        """
        options = (
            None if limit is None else _count(limit, "limit", 1),
            None if num_fewshot is None else _count(num_fewshot, "num_fewshot", 0),
            None if fewshot_file is None else convert.path(fewshot_file),
            _count(fewshot_seed, "fewshot_seed", 0),
        )
        if variants is not None and not isinstance(variants, Mapping):
            raise InputError(f"{type(variants).__name__} does not map names to plans", "pass {name: plan}")
        core = _task(task, options)
        plans = [_variant(name, plan) for name, plan in (variants or {}).items()]
        bar = Progress(sys.stderr.isatty() if progress is None else progress, "eval")
        try:
            result, text = _core.evaluate_task(
                self._core, core, self._edits, plans, not prefix, _count(seed, "seed", 0), bar.watch
            )
        finally:
            bar.end()
        return Evaluation(json.loads(result), text)


def _task(task: Any, options: tuple[int | None, int | None, str | None, int]) -> _core.EvalTask:
    if isinstance(task, (str, PathLike)):
        return _core.EvalTask.read(convert.path(task), options)
    items = convert.items(task, "the task", "give a task file, or a list of items")
    try:
        return _core.EvalTask.from_items(json.dumps(items), options)
    except TypeError as problem:
        raise InputError(f"the items are not JSON: {problem}", "use texts, numbers and lists") from None


def _variant(name: Any, plan: Any) -> tuple[str, _core.Plan, str]:
    name = convert.text(name, "the name of a variant")
    if name == "clean":
        raise InputError("a variant is named 'clean', as the plain model is", "give it another name")
    if isinstance(plan, PathLike):
        path = Path(plan)
        try:
            return name, as_plan(path.read_text(encoding="utf-8")), str(path.parent)
        except OSError as problem:
            raise InputError(f"{path}: {problem.strerror}", f"check the path of the variant {name!r}") from None
    return name, as_plan(plan), "."


def _count(value: Any, name: str, least: int) -> int:
    number = convert.integer(value, name)
    if number < least:
        raise InputError(f"{name} is {number}", f"give {least} or more")
    return number
