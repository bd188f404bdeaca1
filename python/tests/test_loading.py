"""Loading strategies, and tokenizers without a model."""

import json
import shutil
from pathlib import Path

import pytest

import pellucid

ROOT = Path(__file__).resolve().parents[2]
FORMS = ROOT / "crates/models/tests/tokenizers"
BUILTIN = ROOT / "crates/models/builtin"


def test_every_tokenizer_format_is_read():
    expected = json.loads((FORMS / "expected.json").read_text())
    index = expected["texts"].index("Hello world")
    for name, case in expected["cases"].items():
        assert pellucid.load_tokenizer(FORMS / name).encode("Hello world") == case["ids"][index], name


def test_a_tokenizer_has_origin_and_special_tokens():
    tokenizer = pellucid.load_tokenizer(FORMS / "llama")
    assert tokenizer.origin.endswith("tokenizer.model")
    assert tokenizer.base is None
    assert (tokenizer.bos, tokenizer.eos, tokenizer.pad, tokenizer.pad_from_eos) == (1, [2], 2, True)
    assert tokenizer.decode(tokenizer.encode("Hello world")) == "Hello world"
    assert tokenizer.find(tokenizer.token_text(600)) == 600


def test_a_missing_tokenizer_is_an_error_that_lists_the_searched_files(tmp_path):
    with pytest.raises(pellucid.LoadError, match=r"looked for tokenizer\.json"):
        pellucid.load_tokenizer(tmp_path)


def test_a_model_has_its_loading_strategy():
    model = pellucid.load(BUILTIN)
    assert (model.strategy, model.name_variants) == ("native family", [])
    attempts = pellucid.strategies(BUILTIN)
    assert [attempt.outcome for attempt in attempts] == ["taken", *["not needed"] * 4]


def test_a_load_error_lists_the_strategies(tmp_path):
    shutil.copytree(BUILTIN, tmp_path / "copy")
    config = json.loads((tmp_path / "copy/config.json").read_text())
    (tmp_path / "copy/config.json").write_text(json.dumps(config | {"model_type": "acme_llm"}))
    with pytest.raises(pellucid.LoadError, match="mapped custom type: passed over"):
        pellucid.load(tmp_path / "copy")
    with pytest.warns(UserWarning, match="acme_llm"):
        model = pellucid.load(tmp_path / "copy", assume="llama")
    assert model.strategy == "assumed family"


def test_weights_under_other_names_are_reported(tmp_path):
    shutil.copytree(BUILTIN, tmp_path / "copy")
    weights = tmp_path / "copy/model.safetensors"
    stored = weights.read_bytes()
    end = 8 + int.from_bytes(stored[:8], "little")
    tensors = json.loads(stored[8:end])
    renamed = {f"module.{name}": tensor for name, tensor in tensors.items() if name != "__metadata__"}
    header = json.dumps(renamed).encode()
    header += b" " * (-len(header) % 8)
    weights.write_bytes(len(header).to_bytes(8, "little") + header + stored[end:])
    with pytest.warns(UserWarning, match=r"the prefix `module\.model\.` is read as `model\.`"):
        model = pellucid.load(tmp_path / "copy")
    assert len(model.name_variants) == 1
    assert model.repairs == model.name_variants


def test_the_former_name_of_load_still_works():
    with pytest.warns(DeprecationWarning, match="load does the same"):
        model = pellucid.load_with_strategies(BUILTIN)
    assert model.strategy == "native family"
