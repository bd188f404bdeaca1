"""Hints name functions and arguments of the package, never flags or commands of the command line."""

import json
import re
import shutil
from pathlib import Path

import pytest
from conftest import DOG, GOLDEN, REPOSITORY

import pellucid

BUILTIN = REPOSITORY / "crates/models/builtin"
FOREIGN = re.compile(r"(?<![\w-])--[a-z]|`pellucid |LoadOptions|::")
"""A flag or command of the command line, or a name of the Rust API."""
CHAT = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def acme(tmp_path_factory) -> Path:
    """A copy of the built-in model with a type that is not native."""
    path = tmp_path_factory.mktemp("acme") / "model"
    shutil.copytree(BUILTIN, path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"model_type": "acme_llm"}))
    return path


@pytest.fixture(scope="module")
def adapter(tmp_path_factory) -> Path:
    """An adapter whose base model does not exist here."""
    path = tmp_path_factory.mktemp("adapter")
    config = {"peft_type": "LORA", "base_model_name_or_path": "acme/missing-base"}
    (path / "adapter_config.json").write_text(json.dumps(config))
    return path


def refused(action, *, hint: str) -> None:
    """Asserts that `action` raises an error with this hint and without foreign names."""
    with pytest.raises(pellucid.Error) as caught:
        action()
    assert hint in caught.value.hint
    assert not FOREIGN.search(str(caught.value)), str(caught.value)


def capture(model, site: str, positions=None):
    tap = {"site": site, "capture": True} | ({} if positions is None else {"positions": positions})
    return lambda: model.run(DOG, {"taps": [tap]})


def test_hints_about_sites_and_prompts(model):
    refused(lambda: model.sites["layers.0.resid_psot"], hint="`model.sites` lists them all")
    refused(capture(model, "layers.0.resid_psot"), hint="`model.sites` lists them all")
    refused(capture(model, "layers.*.router_logits"), hint="`model.sites` lists the sites of a model")
    add = {"taps": [{"site": "layers.0.resid_post", "add": [1, 2, 3]}]}
    refused(lambda: model.run(DOG, add), hint="`model.sites` shows each site's shape")
    assert not any(FOREIGN.search(problem) for problem in model.check(add, DOG))
    refused(capture(model, "layers.0.z", {"token": " cat"}), hint="`model.to_str_tokens` lists them")
    refused(lambda: model.generate(DOG, temperature=-1).text, hint="`help(pellucid.Model.generate)`")
    refused(lambda: model.generate(CHAT).text, hint="give the prompt as a string")
    bare = pellucid.load(GOLDEN / "llama")
    refused(lambda: bare.to_tokens("hi"), hint="pass token ids")
    refused(lambda: bare.generate([1, 2], stop=["."]).result, hint="give token ids (a list of integers)")


def test_hints_about_assumed_families(acme):
    refused(lambda: pellucid.load(acme), hint='`pellucid.load(..., assume="llama")` runs it as `llama`')
    refused(lambda: pellucid.load(acme, assume="qwen2"), hint="leave out `assume` to see which native family fits")
    refused(lambda: pellucid.load(BUILTIN, assume="qwen2"), hint="leave out `assume`; it is for models")
    with pytest.warns(UserWarning, match="because `assume` says so") as caught:
        pellucid.load(acme, assume="llama")
    assert not FOREIGN.search(str(caught[0].message))
    assert not any(FOREIGN.search(str(attempt)) for attempt in pellucid.strategies(acme))


def test_hints_about_names_and_paths(adapter, tmp_path, monkeypatch):
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path))
    refused(lambda: pellucid.load("smollm2-135m"), hint='call `pellucid.pull("smollm2-135m")` first')
    refused(lambda: pellucid.load(tmp_path), hint="`pellucid.inspect` says what a directory is")
    refused(lambda: pellucid.load(adapter), hint='`pellucid.load("acme/missing-base", adapters=[')
    refused(lambda: pellucid.load_tokenizer(adapter), hint='`pellucid.pull("acme/missing-base")`')


def test_hints_in_reports(acme, adapter):
    report = pellucid.inspect(acme)
    assert 'runs as       llama, with assume="llama"\n' in repr(report)
    assert repr(report).splitlines()[-1].startswith("It will not run by itself: `pellucid.load(..., assume=")
    assert report.problems[0]["remedy"].startswith("`pellucid.load(..., assume=")
    wanting = pellucid.inspect(adapter)
    assert 'with the adapter: `pellucid.load("acme/missing-base", adapters=[' in repr(wanting)
    for text in [repr(report), repr(wanting), json.dumps(report.to_dict()), json.dumps(wanting.to_dict())]:
        assert not FOREIGN.search(text), text
