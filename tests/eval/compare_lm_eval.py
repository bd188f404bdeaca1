"""Compares `pellucid eval` with lm-eval's `hf` backend on the same model and tasks.

Usage: python compare_lm_eval.py PELLUCID MODEL    (needs lm-eval, torch, transformers)

MODEL is a directory with a Hugging Face model and its tokenizer, or a GGUF file. The tasks are those of examples/eval and
stories of the built-in corpus. Prints the largest difference of log-likelihoods of each task and exits with 1 if one is
above 1e-3, or if a choice, a greedy flag or a metric differs.
"""

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import AutoModelForCausalLM, AutoTokenizer

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "eval"
TEXTS = [
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park.",
    "The Treaty of Versailles was signed in 1919.\nIt ended the state of war between Germany and most of the Allies.",
    " def add(a, b):\n    return a + b\n",
]
TARGETS = [
    {"prompt": "The capital of France is", "target": "Paris"},
    {"prompt": "One, two, three, four,", "target": "five"},
    {"prompt": "The opposite of hot is ", "target": "cold"},
]


def hf_backend(path):
    where = dict(pretrained_model_name_or_path=path)
    if path.endswith(".gguf"):
        where = dict(pretrained_model_name_or_path=str(Path(path).parent), gguf_file=Path(path).name)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    return HFLM(pretrained=model, tokenizer=AutoTokenizer.from_pretrained(**where), batch_size=1)


def pellucid(command, model, task):
    output = subprocess.run([command, "eval", str(task), "--model", model, "--json"], check=True, capture_output=True)
    return json.loads(output.stdout)["tasks"][0]["variants"][0]


def loglikelihoods(backend, pairs):
    requests = [Instance("loglikelihood", {}, pair, index) for index, pair in enumerate(pairs)]
    return backend.loglikelihood(requests, disable_tqdm=True)


def main():
    command, model = sys.argv[1:3]
    backend, failed = hf_backend(model), False

    def compare(name, ours, theirs):
        nonlocal failed
        scores = [score for item in ours["scores"] for score in item]
        largest = max(abs(a["log_likelihood"] - b[0]) for a, b in zip(scores, theirs, strict=True))
        greedy = all(a["greedy"] == b[1] for a, b in zip(scores, theirs, strict=True) if b[1] is not None)
        failed |= largest > 1e-3 or not greedy
        print(f"{name}: {len(scores)} texts, largest difference {largest:.1e}, greedy flags {'equal' if greedy else 'DIFFER'}")

    docs = [json.loads(line) for line in (EXAMPLES / "choices.jsonl").read_text().splitlines()]
    pairs = [(doc["prompt"], f" {choice}") for doc in docs for choice in doc["choices"]]
    theirs = loglikelihoods(backend, pairs)
    for task in ("choices.jsonl", "task.yaml"):
        ours = pellucid(command, model, EXAMPLES / task)
        compare(task, ours, theirs)
        right = 0
        for index, doc in enumerate(docs):
            answer = doc["answer"] if isinstance(doc["answer"], int) else doc["choices"].index(doc["answer"])
            own = [score[0] for score in theirs[2 * index : 2 * index + 2]]
            right += own.index(max(own)) == answer
        failed |= ours["metrics"][0]["value"] != right / len(docs)
        print(f"{task}: acc {ours['metrics'][0]['value']}, lm-eval {right / len(docs)}")

    docs = [json.loads(line) for line in (EXAMPLES / "pairs.jsonl").read_text().splitlines()]
    pairs = [("", doc[key]) for doc in docs for key in ("good", "bad")]
    compare("pairs.jsonl", pellucid(command, model, EXAMPLES / "pairs.jsonl"), loglikelihoods(backend, pairs))

    with tempfile.TemporaryDirectory() as home:
        file = Path(home, "targets.jsonl")
        file.write_text("".join(json.dumps(doc) + "\n" for doc in TARGETS))
        pairs = [(doc["prompt"], doc["target"] if doc["prompt"].endswith(" ") else f" {doc['target']}") for doc in TARGETS]
        compare("targets", pellucid(command, model, file), loglikelihoods(backend, pairs))

        file = Path(home, "texts.jsonl")
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
        requests = [Instance("loglikelihood_rolling", {}, (text,), index) for index, text in enumerate(TEXTS)]
        rolling = backend.loglikelihood_rolling(requests, disable_tqdm=True)
        ours = pellucid(command, model, file)
        compare("texts", ours, [(value, None) for value in rolling])
        size = sum(len(text.encode()) for text in TEXTS)
        expected = -sum(rolling) / size / math.log(2)
        bits = next(metric["value"] for metric in ours["metrics"] if metric["name"] == "bits_per_byte")
        failed |= abs(bits - expected) > 1e-4
        print(f"texts: bits per byte {bits:.5f}, lm-eval {expected:.5f}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
