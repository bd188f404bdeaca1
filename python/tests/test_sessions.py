"""Sessions and stores: from a file or arguments to tables."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pellucid

EXAMPLES = Path(__file__).parents[2] / "examples" / "sessions"


def session(name, path, **settings):
    return pellucid.Session(EXAMPLES / name, output={"path": path}, **settings)


@pytest.fixture(scope="module")
def ablation(tmp_path_factory):
    return session("attr_ablation.toml", tmp_path_factory.mktemp("runs") / "ablation").run()


def test_a_session_runs_and_its_store_reopens(tmp_path):
    opened = session("sae.toml", tmp_path / "sae")
    assert opened.check()["examples"] == 8
    assert any("explained variance" in note for note in opened.notes)
    with pytest.raises(pellucid.InputError, match="has not run"):
        _ = opened.store
    store = opened.run()
    assert opened.store is store
    assert (opened.parts, opened.reused) == (1, 0)
    names = [phase["name"] for phase in opened.phases]
    assert names == ["config", "init", "prepare", "setup", "run", "save"]
    assert all(phase["rss_peak"] >= phase["rss_before"] > 0 for phase in opened.phases if sys.platform == "linux")
    again = pellucid.open_store(tmp_path / "sae")
    assert again.content_hash == store.content_hash
    assert again.diff(store)["columns"] == []
    assert "phase" in opened._repr_html_()
    assert "layers.3.resid_post" in again._repr_html_()


def test_columns_are_numpy_arrays_and_agree_with_a_trace(ablation):
    model = pellucid.load().attach()
    examples = ablation.examples
    assert examples.num_rows == len(ablation["logit_diffs"]) == 8
    assert ablation["logit_diffs"].dtype == np.float32
    he, she = (model.to_single_token(text) for text in (" He", " She"))
    for row in range(2):
        tokens = [int(token) for token in ablation["tokens"][row]]
        with model.spliced().trace([tokens]) as t:
            logits = t.logits[:, -1].save()
        own = logits.value[0].ravel()
        label = int(ablation["orig_labels"][row])
        difference = (own[he] - own[she]) * (1 if label == 0 else -1)
        assert difference == ablation["logit_diffs"][row]
    latents = ablation.latents.to_numpy()
    assert set(latents["hook"]) == {"layers.3.resid_post"}
    assert len(latents["attribution_values"]) == 16 * 8
    assert [len(pair) for pair in latents["answer_logits"]] == [2] * (16 * 8)
    with pytest.raises(pellucid.InputError, match="no column `nothing`"):
        _ = ablation["nothing"]


def test_a_store_of_the_command_is_the_same(tmp_path, ablation):
    # The same session from keyword arguments, without a file.
    kwargs = {
        "ops": "logit_diffs_attr_ablation",
        "saes": [{"path": "builtin"}],
        "dataset": {
            "path": EXAMPLES / "pronouns.jsonl",
            "prompt": "{text}",
            "label_field": "pronoun",
            "labels": [" He", " She"],
            "batch_size": 2,
        },
    }
    store = pellucid.Session(output={"path": tmp_path / "kwargs"}, **kwargs).run()
    assert store.content_hash == ablation.content_hash


def test_ops_in_python_add_columns_and_reuse_by_source(tmp_path):
    calls = []

    @pellucid.op(outputs={"margin": "float32", "kind": "text"})
    def margin(logit_diffs, prompts):
        """Magnitude of the difference."""
        calls.append(len(prompts))
        return {"margin": abs(logit_diffs), "kind": ["long" if len(text) > 25 else "short" for text in prompts]}

    @pellucid.op(inputs=["latents.activation"], outputs={"latents.double": "float32"}, needs_saes=True)
    def double(activation):
        return 2 * activation

    opened = session("sae.toml", tmp_path / "s", ops=["logit_diffs_sae", margin, double])
    store = opened.run()
    assert np.array_equal(store["margin"], abs(store["logit_diffs"]))
    assert set(store["kind"]) == {"long", "short"}
    assert np.array_equal(store["latents.double"], 2 * store["latents.activation"])
    assert calls == [2, 2, 2, 2]
    origin = {column["name"]: column["op"] for column in store.manifest["columns"]}
    assert origin["margin"] == "margin"
    again = session("sae.toml", tmp_path / "s", ops=["logit_diffs_sae", margin, double])
    again.run()
    assert (again.reused, calls) == (1, [2, 2, 2, 2])
    assert store.replay(ops=[margin, double])["difference"] is None


def test_errors_of_ops_reach_the_caller(tmp_path):
    @pellucid.op(outputs={"x": "float32"})
    def broken(logit_diffs):
        raise ZeroDivisionError("by hand")

    with pytest.raises(ZeroDivisionError, match="by hand"):
        session("base.toml", tmp_path / "s", ops=["logit_diffs_base", broken]).run()

    @pellucid.op(outputs={"x": "float32"})
    def too_short(logit_diffs):
        return logit_diffs[:1]

    with pytest.raises(pellucid.InputError, match="`x` has 1 rows"):
        session("base.toml", tmp_path / "s", ops=["logit_diffs_base", too_short]).run()

    @pellucid.op(outputs={"x": "float32"})
    def needs_more(nothing):
        return nothing

    with pytest.raises(pellucid.InputError, match="needs `nothing`"):
        session("base.toml", tmp_path / "s", ops=["logit_diffs_base", needs_more])
    with pytest.raises(pellucid.InputError, match="unknown type"):
        session("base.toml", tmp_path / "s", ops=[pellucid.op(outputs={"x": "f16"})(lambda logit_diffs: logit_diffs)])
    with pytest.raises(pellucid.InputError, match="is not an op"):
        session("base.toml", tmp_path / "s", extra_ops=[print])


def test_errors_of_sessions_are_input_errors(tmp_path):
    with pytest.raises(pellucid.InputError, match="there is no op `nothing`"):
        session("base.toml", tmp_path / "s", ops="nothing")
    with pytest.raises(pellucid.InputError, match="is not a session"):
        pellucid.Session(3)
    with pytest.raises(pellucid.InputError, match="there is no store"):
        pellucid.open_store(tmp_path / "none")
    session("base.toml", tmp_path / "s").run()
    with pytest.raises(pellucid.InputError) as caught:
        session("base.toml", tmp_path / "s", dataset={"limit": 2}).run()
    assert "session.run(replace=True)" in caught.value.hint
    replaced = session("base.toml", tmp_path / "s", dataset={"limit": 2}).run(replace=True)
    assert replaced.examples.num_rows == 2


def test_stores_export_and_summarize(tmp_path, ablation):
    files = ablation.export(tmp_path / "csv", "csv")
    assert [path.name for path in files] == ["examples.csv", "latents.csv"]
    summary = ablation.summary()
    assert summary["examples"] == 8
    assert summary["hooks"][0]["latents"][0]["total_effect"] is not None
    assert ablation.show(3).startswith("session    attr_ablation")
    with pytest.raises(pellucid.InputError, match="unknown format"):
        ablation.export(tmp_path / "x", "xlsx")


def test_the_debug_phase_reports_perplexity_and_generations(tmp_path):
    opened = session("base.toml", tmp_path / "s", debug={"examples": 1, "max_new": 4})
    assert opened.debug["perplexity"] > 1
    assert len(opened.debug["generations"]) == 1
    assert [phase["name"] for phase in opened.phases][-1] == "debug"
    assert "properties" in pellucid.session_schema()


@pytest.mark.parametrize("library", ["pandas", "pyarrow", "polars"])
def test_tables_convert_to_dataframes(ablation, library):
    pytest.importorskip(library)
    for table in ("examples", "latents"):
        frame = getattr(ablation, f"to_{library}")(table)
        assert len(frame) == getattr(ablation, table).num_rows
        assert list(frame.columns if library != "pyarrow" else frame.column_names) == getattr(ablation, table).columns


def test_parquet_files_are_read_by_pyarrow(ablation):
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(ablation.path / "latents")
    assert np.array_equal(table["attribution_values"].to_numpy(), ablation["latents.attribution_values"])
    examples = parquet.read_table(ablation.path / "examples")
    assert examples["tokens"].to_pylist() == [list(map(int, row)) for row in ablation["tokens"]]


def test_the_guide_runs(tmp_path, monkeypatch):
    guide = (EXAMPLES.parents[1] / "docs" / "sessions.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", guide, flags=re.DOTALL)
    assert len(blocks) == 2
    (tmp_path / "examples").symlink_to(EXAMPLES.parent)
    monkeypatch.chdir(tmp_path)
    names = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"docs/sessions.md, block {number}", "exec"), names)
    assert (tmp_path / "runs" / "margin" / "manifest.json").exists()


def test_a_notebook_without_a_terminal_prints_nothing(tmp_path):
    code = (
        "import sys, pellucid; "
        f"pellucid.Session({str(EXAMPLES / 'base.toml')!r}, output={{'path': {str(tmp_path / 's')!r}}}).run()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert json.loads((tmp_path / "s" / "manifest.json").read_text())["schema"] == 1


def test_graphs_are_dense_matrices(tmp_path):
    session = pellucid.Session(EXAMPLES / "concept.toml", output={"path": tmp_path / "s"}, dataset={"limit": 1})
    store = session.run()
    graph = store.graph(0)
    n_nodes = store.examples["n_nodes"][0]
    assert graph["adjacency"].shape == (n_nodes, n_nodes)
    assert np.count_nonzero(graph["adjacency"]) == len(store.examples["edge_weights"][0])
    assert graph["features"].shape == (len(graph["activations"]), 3)
    assert graph["targets"].tolist() == [-1]
