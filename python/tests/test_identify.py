"""Inspection reports, quick reports and the former `identify` queries."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict

import pytest
from conftest import GOLDEN

import pellucid
from pellucid import identify


@pytest.fixture
def directory(tmp_path):
    """A directory with this configuration."""

    def make(**config):
        (tmp_path / "config.json").write_text(json.dumps(config))
        return tmp_path

    return make


def test_a_report_has_attributes_and_prints_as_a_summary():
    report = pellucid.inspect(GOLDEN / "llama")
    assert (report.category, report.support, report.model_type, report.layers) == ("transformers", "native", "llama", 3)
    assert report.runs
    assert report.problems == []
    assert report.parameters > 0
    facts = report.to_dict()
    assert facts["schema"] == "pellucid/inspect-report/v1"
    assert facts["shards"]["count"] == 1
    facts["shards"]["count"] = 7
    assert report.shards["count"] == 1, "it is a copy"
    assert repr(report).endswith("It will run.")
    assert "LlamaForCausalLM" in repr(report)
    assert "<b>" in report._repr_html_()
    assert "It will run." in report._repr_html_()
    assert (report.family, report.strategy, report.warnings) == ("llama", "native", [])
    assert [attempt["outcome"] for attempt in report.strategies] == ["taken", *["not_needed"] * 4]
    assert "category" in dir(report)
    with pytest.raises(AttributeError, match="has no 'color'; it has schema"):
        _ = report.color


def test_the_schema_lists_every_attribute():
    schema = pellucid.inspect_schema()
    assert set(schema["properties"]) == set(pellucid.inspect(GOLDEN / "llama").to_dict())


def test_a_quick_report_agrees_with_the_full_one_and_with_the_former_queries(directory):
    models = [
        GOLDEN / "llama",
        directory(model_type="siglip", architectures=["SiglipModel"], quantization_config={"quant_method": "awq"}),
    ]
    for path in models:
        quick, full = pellucid.inspect(path, quick=True), pellucid.inspect(path)
        keys = ["format", "category", "support", "model_type", "architecture", "reason", "family", "quantisation"]
        assert [getattr(quick, key) for key in keys] == [getattr(full, key) for key in keys]
        info, check = identify.get_model_info(path), identify.is_model_supported(path)
        assert (check.tier, check.category, check.error) == (quick.support, quick.category, quick.reason)
        assert (info.is_supported, info.error) == (quick.support == "native", quick.reason)
        assert quick.strategies is None
        assert quick.parameters == 0
    assert "identify" not in pellucid.__all__
    with pytest.raises(pellucid.InputError, match="takes no `assume`"):
        pellucid.inspect(GOLDEN / "llama", quick=True, assume="llama")
    with pytest.raises(pellucid.Error, match="nowhere"):
        pellucid.inspect("nowhere", quick=True)


def test_a_report_and_a_load_error_have_the_same_text(directory):
    path = directory(model_type="acme_llm")
    with pytest.raises(pellucid.Error) as error:
        pellucid.load(path)
    assert str(error.value).startswith(pellucid.inspect(path).reason)


def test_queries_agree_with_the_report(directory):
    info = identify.get_model_info(GOLDEN / "llama")
    assert asdict(info) == {
        "name": "llama",
        "size": pellucid.inspect(GOLDEN / "llama").parameters,
        "is_quantized": False,
        "has_talker": False,
        "architecture": "LlamaForCausalLM",
        "model_type": "llama",
        "is_supported": True,
        "has_custom_files": False,
        "error": None,
    }
    check = identify.is_model_supported(directory(model_type="siglip", architectures=["SiglipModel"]))
    assert (check.supported, check.tier, check.category) == (False, "inspect-only", "vision_encoder")
    assert "siglip" in check.error


def test_the_predicates(directory):
    def model_dir(model_type, architecture="X"):
        return directory(model_type=model_type, architectures=[architecture])

    assert identify.is_omni_model(model_dir("qwen2_5_omni"))
    assert not identify.is_omni_model(model_dir("qwen2_vl"))
    assert identify.is_asr_model(model_dir("whisper"))
    assert identify.is_vision_encoder(model_dir("dinov2"))
    assert identify.detect_model_category(model_dir("wav2vec2")) == "audio_encoder"
    site = model_dir("x") / "resid_post" / "layer_0"
    site.mkdir(parents=True)
    (site.parents[1] / "config.json").unlink()
    (site / "config.json").write_text('{"model_name": "google/gemma-3-1b"}')
    assert identify.is_sae_model(site.parents[1])
    assert not identify.is_diffusers_model(site.parents[1])
    assert identify.get_sae_base_model(site.parents[1]) == "google/gemma-3-1b"


def test_only_inspect_raises_for_bad_paths(tmp_path):
    nowhere = tmp_path / "nowhere"
    assert identify.detect_model_category(nowhere) == "unknown"
    assert str(nowhere) in identify.get_model_info(nowhere).error
    with pytest.raises(pellucid.Error, match="nowhere"):
        pellucid.inspect(nowhere)
    with pytest.raises(pellucid.Error, match="no native type `lama`"):
        pellucid.inspect(tmp_path, assume="lama")
    assert pellucid.inspect(tmp_path).problems[0]["what"].endswith("no config.json here: the directory is empty")


def test_a_registered_type_loads_as_its_family(tmp_path):
    config = json.loads((GOLDEN / "llama" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "python_llm"}))
    (tmp_path / "model.safetensors").write_bytes((GOLDEN / "llama" / "model.safetensors").read_bytes())
    with pytest.raises(pellucid.Error, match="python_llm"):
        pellucid.load(tmp_path)
    pellucid.register_architecture("python_llm", "llama")
    assert pellucid.registered_architectures()["python_llm"] == "llama"
    assert pellucid.inspect(tmp_path).registered_as == "llama"
    with pytest.warns(UserWarning, match="`python_llm`, is not native; it runs as `llama`"):
        assert pellucid.load(tmp_path).n_layers == 3
    with pytest.raises(pellucid.Error, match="itself native"):
        pellucid.register_architecture("mistral", "llama")
    with pytest.raises(pellucid.Error, match="no native family `lama`"):
        pellucid.register_architecture("other_llm", "lama")


def test_types_come_from_files_and_from_the_environment(tmp_path):
    file = tmp_path / "architectures.toml"
    file.write_text('[architectures]\nfile_llm = "gpt2"\n')
    pellucid.register_architectures(file)
    assert pellucid.registered_architectures()["file_llm"] == "gpt2"
    program = "import pellucid; print(pellucid.registered_architectures()['file_llm'])"
    run = subprocess.run(
        [sys.executable, "-c", program], env={"PELLUCID_ARCHITECTURES": str(file)}, capture_output=True, text=True
    )
    assert run.stdout.strip() == "gpt2", run.stderr
