"""Makes `rte.jsonl` and `tokenizer.json` in this directory:

    python make.py RTE.zip TOKENIZER.json

RTE.zip is the corpus `rte` of NLTK's data, TOKENIZER.json that of GPT-2. Needs `tokenizers`.
"""
import json
import sys
import zipfile
from pathlib import Path
from xml.etree import ElementTree

from tokenizers import Tokenizer

HERE = Path(__file__).parent
# Prompts with 150 to 160 tokens: file and id of the pair.
PAIRS = [("rte3_dev", "228"), ("rte2_test", "311"), ("rte2_test", "347"), ("rte3_test", "216")]
LABELS = ["Yes", "No"]
PROMPT = "{premise}Does the previous passage imply that {hypothesis}? Answer with only one word, either Yes or No."


def examples(corpus):
    for file, number in PAIRS:
        root = ElementTree.fromstring(corpus.read(f"rte/{file}.xml"))
        pair = next(pair for pair in root.iter("pair") if pair.get("id") == number)
        text = {tag: " ".join(pair.find(tag).text.split()) for tag in ("t", "h")}
        answer = pair.get("entailment") or pair.get("value")
        yield {"source": f"{file} {number}", "premise": text["t"], "hypothesis": text["h"], "label": int(answer == "NO")}


def merges_of(tokenizer, words):
    """Returns the merges that byte-pair encoding applies to the words, by rank."""
    listed = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in tokenizer["model"]["merges"]]
    ranks, used = {merge: rank for rank, merge in enumerate(listed)}, set()
    for word in words:
        parts = list(word)
        while pairs := [pair for pair in zip(parts, parts[1:]) if pair in ranks]:
            best = min(pairs, key=ranks.get)
            used.add(best)
            merged, at = [], 0
            while at < len(parts):
                width = 2 if tuple(parts[at : at + 2]) == best else 1
                merged.append("".join(parts[at : at + width]))
                at += width
            parts = merged
    return sorted(used, key=ranks.get)


def main():
    rows = list(examples(zipfile.ZipFile(sys.argv[1])))
    path = Path(sys.argv[2])
    full, tokenizer = Tokenizer.from_file(str(path)), json.loads(path.read_text())
    prompts = [PROMPT.format(**row) for row in rows]
    words = {word for text in prompts + LABELS for word, _ in full.pre_tokenizer.pre_tokenize_str(text)}
    merges = merges_of(tokenizer, words)
    vocabulary = tokenizer["model"]["vocab"]
    # The 256 bytes, so that any text can be encoded, and the results of the merges, with GPT-2's ids.
    kept = {token for token, index in vocabulary.items() if index < 256} | {a + b for a, b in merges}
    tokenizer["model"]["vocab"] = {token: index for token, index in vocabulary.items() if token in kept}
    tokenizer["model"]["merges"] = [" ".join(merge) for merge in merges]
    (HERE / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")) + "\n")
    (HERE / "rte.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    reduced = Tokenizer.from_file(str(HERE / "tokenizer.json"))
    for text in prompts + LABELS:
        assert reduced.encode(text).ids == full.encode(text).ids, text
    print([len(full.encode(text).ids) for text in prompts], len(merges), "merges")


main()
