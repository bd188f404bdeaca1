"""Steering vectors: files, arithmetic, generation, traces and extraction."""

import json

import numpy as np
import pytest
from conftest import GOLDEN, REPOSITORY, STORY

import pellucid
from pellucid import SteeringVectors

PROMPT = "One day, Lily went to the park."


@pytest.fixture(scope="module")
def mood(model):
    """Happy minus sad."""
    lines = (REPOSITORY / "examples" / "steering" / "mood.jsonl").read_text().splitlines()
    return model.extract_steering(map(json.loads, lines))


def test_vectors_come_back_from_files_with_the_same_bits(mood, tmp_path):
    for name in ("a.safetensors", "a.gguf"):
        mood.save(tmp_path / name)
        loaded = SteeringVectors.load(tmp_path / name)
        assert loaded == mood
        assert loaded.info == mood.info
        assert loaded.info["method"] == "mean"
    with pytest.raises(pellucid.InputError, match=r"saved as \.safetensors or \.gguf"):
        mood.save(tmp_path / "a.pt")


def test_a_control_vector_of_repeng_is_read():
    vectors = SteeringVectors.load(REPOSITORY / "tests" / "golden" / "steering" / "repeng.gguf")
    assert vectors.layers == [1]
    assert vectors.info["model_type"] == "llama"
    model = pellucid.load(GOLDEN / "llama")
    before, after = (
        model.run([1, 2, 3], plan, capture="layers.1.resid_post")["layers.1.resid_post"] for plan in (None, vectors)
    )
    assert np.array_equal(after, before + vectors.directions[1])


def test_arithmetic_is_that_of_the_directions(mood):
    twice = mood + mood
    assert twice == 2 * mood == mood * 2.0 == mood / 0.5 == mood - (-mood)
    assert np.array_equal(twice.directions[3], 2 * mood.directions[3])
    one, other = mood.select([1, 2]), mood.select([2, 3])
    assert (one - other).layers == [1, 2, 3]
    assert not (one - other).directions[2].any()
    assert np.array_equal((one - other).directions[3], -mood.directions[3])
    for wrong in (lambda: mood + 1, lambda: mood * mood, lambda: "a" * mood):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(pellucid.InputError, match="no direction for layer 0"):
        mood.select([0])


def test_a_steered_generation_is_the_same_as_writing_the_sites(model, mood):
    vectors = 1.5 * mood.select([2])
    with model.generate(PROMPT, max_new=12) as t:
        t.layers[2].resid_post += vectors.directions[2]
    with model.generate(PROMPT, max_new=12) as u:
        u.steer(vectors)
    steered = model.generate(PROMPT, max_new=12, steer=vectors).text
    assert steered == t.text == u.text == model.edit(vectors).generate(PROMPT, max_new=12).text
    plain = model.generate(PROMPT, max_new=12).text
    assert steered != plain
    assert model.generate(PROMPT, max_new=12, steer=0 * vectors).text == plain
    assert model.generate(PROMPT, max_new=12, steer=[mood.select([2]), 0.5 * mood.select([2])]).text == steered


def test_each_row_can_be_steered_differently(model, mood):
    vectors = mood.select([2, 3])
    with model.trace() as t:
        with t.row(PROMPT):
            up = t.logits[:, -1].save()
            t.steer(vectors)
        with t.row(PROMPT):
            down = t.logits[:, -1].save()
            t.steer(-vectors)
    for sign, row in ((1, up), (-1, down)):
        with model.edit(sign * vectors).trace(PROMPT) as alone:
            logits = alone.logits[:, -1].save()
        assert np.array_equal(np.ravel(row.value), np.ravel(logits.value))


def test_extraction_reports_the_layers(model, mood):
    assert mood.layers == list(range(1, model.n_layers))
    assert [row["layer"] for row in mood.quality] == mood.layers
    assert all(row["held_out_accuracy"] > 0.9 for row in mood.quality)
    pairs = [("I am happy", "I am sad"), (STORY, "Tom was sad."), ([5, 6, 7], [8, 9])]
    for method in ("pca_diff", "pca_center"):
        found = model.extract_steering(pairs, method=method, layers=[2, 4], positions="all")
        assert found.layers == [2, 4]
        assert all(abs(np.linalg.norm(direction) - 1) < 1e-5 for direction in found.directions.values())
        assert found.info["positions"] == "all"


def test_bad_input_is_an_error_with_a_hint(model, mood, tmp_path):
    def fails(match, call):
        with pytest.raises(pellucid.Error, match=match) as caught:
            call()
        assert caught.value.hint or isinstance(caught.value, pellucid.LoadError)

    fails('unknown method "median"', lambda: model.extract_steering([("a", "b")], method="median"))
    fails("no point `nonsense`", lambda: model.extract_steering([("a", "b")], point="nonsense"))
    fails("pair 1 is not a pair", lambda: model.extract_steering(["ab", ("c",)]))
    fails("there are no pairs", lambda: model.extract_steering([]))
    fails("there is no layer 99", lambda: model.extract_steering([("a", "b")], layers=[99]))
    fails("the same", lambda: model.extract_steering([("a", "a")]))
    fails("is not a SteeringVectors", lambda: model.generate(PROMPT, steer=["mood.gguf"]))
    fails("absent.gguf", lambda: SteeringVectors.load(tmp_path / "absent.gguf"))
    (tmp_path / "text.gguf").write_text("not a vector")
    fails("text.gguf", lambda: SteeringVectors.load(tmp_path / "text.gguf"))
    narrow = SteeringVectors({1: [1.0, 2.0]})
    fails("has 2 elements|have 2 elements", lambda: model.generate(PROMPT, steer=narrow))
    fails("NaN at index 1", lambda: SteeringVectors({1: [1.0, float("nan")]}).save(tmp_path / "a.gguf"))
    fails("is zero", lambda: (0 * mood).save(tmp_path / "a.gguf"))
    fails("layer 1 has", lambda: mood + narrow)


def test_vectors_of_another_model_are_reported(model, mood):
    other = SteeringVectors(mood.directions, info={"model_type": "gpt2"})
    with pytest.warns(UserWarning, match="a model of type `gpt2`"):
        _ = model.generate(PROMPT, max_new=1, steer=other).text
