"""Evaluation on tasks: the results of `pellucid eval`, as objects."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pellucid

EXAMPLES = Path(__file__).parents[2] / "examples"
ZERO = {"taps": [{"site": "layers.3.mlp_out", "zero": True}]}


@pytest.fixture(scope="module")
def model():
    return pellucid.load()


def command(*args):
    script = "from pellucid_command import main; main()"
    done = subprocess.run([sys.executable, "-c", script, *map(str, args)], capture_output=True, text=True, check=True)
    return done.stdout


def test_results_are_those_of_the_command(model):
    plan = EXAMPLES / "plans" / "zero.json"
    for task, more in [("choices.jsonl", {}), ("task.yaml", {"num_fewshot": 2}), ("pairs.jsonl", {"limit": 5})]:
        ours = model.eval(EXAMPLES / "eval" / task, variants={"zero": plan}, **more)
        flags = [text for name, value in more.items() for text in (f"--{name.replace('_', '-')}", str(value))]
        text = command("eval", EXAMPLES / "eval" / task, "--plan", plan, *flags)
        assert repr(ours) == text
        theirs = json.loads(command("eval", EXAMPLES / "eval" / task, "--plan", plan, "--json", *flags))["tasks"][0]
        for variant in theirs["variants"]:
            expected = [[score["log_likelihood"] for score in item] for item in variant["scores"]]
            assert [item.tolist() for item in ours.log_likelihoods[variant["name"]]] == expected
            assert {name: metric.value for name, metric in ours[variant["name"]].items()} == {
                metric["name"]: metric["value"] for metric in variant["metrics"]
            }
        assert (ours.task, ours.items, ours.num_fewshot) == (theirs["task"], theirs["items"], theirs["num_fewshot"])


def test_items_are_dicts_and_rows_go_to_pandas(model):
    items = [json.loads(line) for line in (EXAMPLES / "eval" / "choices.jsonl").read_text().splitlines()]
    evaluation = model.eval(items, variants={"zero": ZERO})
    from_file = model.eval(EXAMPLES / "eval" / "choices.jsonl")
    assert all(map(np.array_equal, evaluation.log_likelihoods["clean"], from_file.log_likelihoods["clean"]))
    assert (evaluation.kind, evaluation.items) == ("choices", 8)
    metric = evaluation["clean"]["acc"]
    assert metric.low <= float(metric) == metric.value <= metric.high
    assert evaluation.changes["zero"]["acc"].value == evaluation["zero"]["acc"].value - metric.value
    rows = evaluation.rows()
    assert [(row["variant"], row["metric"]) for row in rows] == [
        (variant, metric) for variant in ("clean", "zero") for metric in ("acc", "acc_norm")
    ]
    assert rows[0]["change"] is None
    assert rows[2]["change"] == evaluation.changes["zero"]["acc"].value
    html = evaluation._repr_html_()
    assert html.count("<tr>") == 5
    assert "against clean" in html
    pandas = pytest.importorskip("pandas")
    frame = evaluation.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame.shape == (4, 8)


def test_steering_and_standing_edits_are_variants(model):
    items = [{"prompt": "Tom saw a dog.", "target": "The"}]
    direction = np.linspace(-1, 1, model.d_model, dtype=np.float32)
    vectors = pellucid.SteeringVectors({3: direction})
    steered = model.eval(items, variants={"steered": 4 * vectors, "zero": ZERO})
    clean = steered.log_likelihoods["clean"][0][0]
    assert steered.log_likelihoods["steered"][0][0] != clean
    # A standing edit applies to every variant.
    edited = model.edit(ZERO).eval(items)
    assert edited.log_likelihoods["clean"][0][0] == steered.log_likelihoods["zero"][0][0] != clean


def test_mistakes_are_named(model, tmp_path):
    items = [{"prompt": "Tom saw a dog.", "target": "The"}]
    for arguments, problem in [
        ({"task": tmp_path / "nosuch.jsonl"}, "nosuch.jsonl"),
        ({"task": [{"prompt": "x"}]}, "line 1: no text `text`"),
        ({"task": [{"text": {1, 2}}]}, "not JSON"),
        ({"task": ["x", 3]}, "items"),
        ({"task": {"text": "x"}}, "not a list"),
        ({"task": []}, "has no item"),
        ({"task": items, "limit": 0}, "limit is 0"),
        ({"task": items, "num_fewshot": -1}, "num_fewshot is -1"),
        ({"task": items, "num_fewshot": 1}, "there are 0 examples"),
        ({"task": items, "variants": [ZERO]}, "does not map names to plans"),
        ({"task": items, "variants": {"clean": ZERO}}, "named 'clean'"),
        ({"task": items, "variants": {"zero": tmp_path / "nosuch.json"}}, "nosuch.json"),
        (
            {"task": items, "variants": {"rows": {"taps": [{"site": "layers.0.z", "rows": [0], "zero": True}]}}},
            "`rows`",
        ),
        ({"task": items, "variants": {"sae": {"saes": ["builtin"], "taps": []}}}, "not attached"),
    ]:
        with pytest.raises(pellucid.Error, match=problem):
            model.eval(**arguments)
