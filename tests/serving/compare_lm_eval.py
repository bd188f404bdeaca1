"""Compares lm-eval's `local-completions` client on a running server with its `hf` backend.

Usage: python compare_lm_eval.py URL MODEL    (needs lm-eval[api], torch, transformers)

URL is the base of the server (`http://127.0.0.1:7117/v1`), which serves MODEL: a directory with a Hugging Face model and
its tokenizer, or a GGUF file. Texts are tokenized by the server (`tokenizer_backend=remote`) and, in a second round, by
transformers. Prints the largest difference of log-likelihoods and exits with 1 if one is above 1e-3, or if a greedy
flag, a choice or a generated text differs.
"""

import json
import sys
from pathlib import Path

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.models.openai_completions import LocalCompletionsAPI
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
TEXTS = [
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park.",
    "The Treaty of Versailles was signed in 1919.\nIt ended the state of war between Germany and most of the Allies.",
    " def add(a, b):\n    return a + b\n",
    "naïve café — 東京 🙂",
]
PROMPTS = ["The capital of France is", "One, two, three, four,", "def add(a, b):\n    return"]
UNTIL = {"until": ["\n\n"], "max_gen_toks": 24, "do_sample": False, "temperature": 0}


def hf_backend(path):
    where = dict(pretrained_model_name_or_path=path)
    if path.endswith(".gguf"):
        where = dict(pretrained_model_name_or_path=str(Path(path).parent), gguf_file=Path(path).name)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(**where)
    return HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1), tokenizer


def requests(kind, arguments):
    return [Instance(kind, {}, argument, index) for index, argument in enumerate(arguments)]


def choices():
    docs = [json.loads(line) for line in (ROOT / "examples/eval/choices.jsonl").read_text().splitlines()]
    return docs, [(doc["prompt"], f" {choice}") for doc in docs for choice in doc["choices"]]


def best(docs, scores):
    """The index of the most likely choice of each document."""
    scores, picks = iter(scores), []
    for doc in docs:
        own = [next(scores)[0] for _ in doc["choices"]]
        picks.append(own.index(max(own)))
    return picks


def main():
    url, model = sys.argv[1:3]
    reference, tokenizer = hf_backend(model)
    docs, pairs = choices()
    scores = reference.loglikelihood(requests("loglikelihood", pairs), disable_tqdm=True)
    rolling = reference.loglikelihood_rolling(requests("loglikelihood_rolling", [(text,) for text in TEXTS]), True)
    texts = reference.generate_until(requests("generate_until", [(prompt, UNTIL) for prompt in PROMPTS]), True)
    failed = False
    for kind in ("remote", "huggingface"):
        where = dict(base_url=f"{url}/completions", model="gpt-4o-mini", tokenizer_backend=kind, num_concurrent=4)
        if kind == "huggingface":
            tokenizer.save_pretrained("/tmp/compare-lm-eval-tokenizer")
            where["tokenizer"] = "/tmp/compare-lm-eval-tokenizer"
        client = LocalCompletionsAPI(**where, max_length=2048, seed=0)
        own = client.loglikelihood(requests("loglikelihood", pairs), disable_tqdm=True)
        largest = max(abs(a[0] - b[0]) for a, b in zip(own, scores, strict=True))
        flags = all(a[1] == b[1] for a, b in zip(own, scores, strict=True))
        same = best(docs, own) == best(docs, scores)
        print(f"{kind}: {len(pairs)} choices, largest difference {largest:.1e}, greedy flags {flags}, picks equal {same}")
        own = client.loglikelihood_rolling(requests("loglikelihood_rolling", [(text,) for text in TEXTS]), True)
        rolled = max(abs(a - b) for a, b in zip(own, rolling, strict=True))
        print(f"{kind}: {len(TEXTS)} texts, largest difference {rolled:.1e}")
        own = client.generate_until(requests("generate_until", [(prompt, UNTIL) for prompt in PROMPTS]), True)
        equal = [a.strip() for a in own] == [b.strip() for b in texts]
        print(f"{kind}: {len(PROMPTS)} generated texts, equal: {equal}")
        failed |= max(largest, rolled) > 1e-3 or not (flags and same and equal)
        if not equal:
            print(own, texts, sep="\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
