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


def pellucid(command, model, task, *more):
    output = subprocess.run(
        [command, "eval", str(task), "--model", model, "--json", *more], check=True, capture_output=True
    )
    return json.loads(output.stdout)["tasks"][0]["variants"][0]


def loglikelihoods(backend, pairs):
    requests = [Instance("loglikelihood", {}, pair, index) for index, pair in enumerate(pairs)]
    return backend.loglikelihood(requests, disable_tqdm=True)


FEWSHOT_TASK = """
task: few_{name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
    train: {examples}
test_split: test
{split}
output_type: multiple_choice
description: "Stories for children.\\n\\n"
doc_to_text: "{{{{prompt}}}}"
doc_to_choice: choices
doc_to_target: answer
num_fewshot: {count}
{more}
metric_list:
  - metric: acc
"""
FEWSHOT_CASES = {
    "from_another_split": (2, "fewshot_split: train", ""),
    "from_the_same_split": (3, "fewshot_split: test", 'fewshot_delimiter: " | "'),
    "first_of_a_split": (2, "fewshot_split: train", "fewshot_config:\n  sampler: first_n"),
    "by_default": (6, "training_split: train", 'target_delimiter: " = "'),
}


def fewshot_contexts(path, backend):
    """The requests that lm-eval makes of a task file, and their results."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(Path(path).parent), include_defaults=False)
    name = next(line.split()[1] for line in Path(path).read_text().splitlines() if line.startswith("task:"))
    results = simple_evaluate(backend, tasks=[name], task_manager=manager, log_samples=True, bootstrap_iters=0)
    samples = sorted(results["samples"][name], key=lambda sample: sample["doc_id"])
    return [tuple(one) for sample in samples for one in sample["filtered_resps"]], results["results"][name]["acc,none"]


def main():
    command, model = sys.argv[1:3]
    backend, failed = hf_backend(model), False

    def compare(name, ours, theirs):
        nonlocal failed
        scores = [score for item in ours["scores"] for score in item]
        largest = max(abs(a["log_likelihood"] - b[0]) for a, b in zip(scores, theirs, strict=True))
        greedy = all(a["greedy"] == b[1] for a, b in zip(scores, theirs, strict=True) if b[1] is not None)
        failed |= largest > 1e-3 or not greedy
        print(
            f"{name}: {len(scores)} texts, largest difference {largest:.1e}, greedy flags {'equal' if greedy else 'DIFFER'}"
        )

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

    with tempfile.TemporaryDirectory() as home:
        # lm-eval needs the same type in every row.
        same_type = [
            doc | {"answer": doc["choices"][doc["answer"]] if isinstance(doc["answer"], int) else doc["answer"]}
            for doc in docs
        ]
        data, examples = Path(home, "data.jsonl"), Path(home, "examples.jsonl")
        data.write_text("".join(json.dumps(doc) + "\n" for doc in same_type))
        pool = [doc | {"prompt": f"One day, {doc['prompt']}"} for doc in same_type]
        examples.write_text("".join(json.dumps(doc) + "\n" for doc in pool))
        for name, (count, split, more) in FEWSHOT_CASES.items():
            file = Path(home, f"few_{name}.yaml")
            file.write_text(
                FEWSHOT_TASK.format(name=name, data=data, examples=examples, count=count, split=split, more=more)
            )
            theirs, accuracy = fewshot_contexts(file, backend)
            ours = pellucid(command, model, file)
            compare(f"few-shot, {name}", ours, theirs)
            failed |= ours["metrics"][0]["value"] != accuracy

    docs = [json.loads(line) for line in (EXAMPLES / "pairs.jsonl").read_text().splitlines()]
    pairs = [("", doc[key]) for doc in docs for key in ("good", "bad")]
    compare("pairs.jsonl", pellucid(command, model, EXAMPLES / "pairs.jsonl"), loglikelihoods(backend, pairs))

    with tempfile.TemporaryDirectory() as home:
        file = Path(home, "targets.jsonl")
        file.write_text("".join(json.dumps(doc) + "\n" for doc in TARGETS))
        pairs = [
            (doc["prompt"], doc["target"] if doc["prompt"].endswith(" ") else f" {doc['target']}") for doc in TARGETS
        ]
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
