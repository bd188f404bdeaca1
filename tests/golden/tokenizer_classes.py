"""Tokenizer classes that use the file format of another class: ids of transformers for the files of
tokenizer_forms.py.

    python tests/golden/tokenizer_classes.py

Writes crates/models/tests/tokenizers/classes.json, and the vocabulary of GPT-1, which no other
class uses.
"""

import json
import shutil
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

FORMS = Path(__file__).resolve().parents[2] / "crates/models/tests/tokenizers"

# Name, directory with the files, class, other settings. Without a class, config.json gives the
# model type.
CASES = [
    ("gpt-neox", "gpt2", "GPTNeoXTokenizer", {}),
    ("gpt-neox-bos", "gpt2", "GPTNeoXTokenizer", {"add_bos_token": True, "add_prefix_space": True}),
    ("openai-gpt", "openai-gpt", "OpenAIGPTTokenizer", {}),
    ("code-llama", "llama", "CodeLlamaTokenizer", {}),
    ("code-llama-plain", "llama", "CodeLlamaTokenizer", {"add_bos_token": False, "add_prefix_space": False, "fill_token": None}),
    ("camembert", "xlm-roberta", "CamembertTokenizer", {}),
    ("mbart50", "xlm-roberta", "MBart50Tokenizer", {}),
    ("mbart50-french", "xlm-roberta", "MBart50Tokenizer", {"src_lang": "fr_XX"}),
    ("pegasus", "t5", "PegasusTokenizer", {}),
    ("gpt-neox-type", "gpt2", None, {"model_type": "gpt_neox"}),
    ("camembert-type", "xlm-roberta", None, {"model_type": "camembert"}),
    ("pegasus-type", "t5", None, {"model_type": "pegasus"}),
    ("openai-gpt-type", "openai-gpt", None, {"model_type": "openai-gpt"}),
]
# <FILL_ME> is omitted: transformers splits a text there and inserts the infilling tokens itself.
MORE = ["a <mask> b", "fr_XX Bonjour sl_SI", "<mask_1> and<mask_2> <unk_5>", "x ▁<PRE> y ▁<MID>z", "<|padding|>"]


def train_gpt1(directory, texts):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False)
    # Trained on two thirds of each text, so that some characters are unknown.
    tokenizer.train_from_iterator([text[: 2 * len(text) // 3] for text in texts], trainer)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    tokenizer.model.save(str(directory))


def main():
    texts = json.loads((FORMS / "expected.json").read_text())["texts"]
    train_gpt1(FORMS / "openai-gpt", texts)
    cases = {}
    for name, form, kind, settings in CASES:
        with tempfile.TemporaryDirectory() as root:
            directory = Path(root) / name
            shutil.copytree(FORMS / form, directory)
            for file in ("tokenizer_config.json", "config.json"):
                (directory / file).unlink(missing_ok=True)
            file = "tokenizer_config.json" if kind else "config.json"
            settings = {"tokenizer_class": kind, **settings} if kind else settings
            (directory / file).write_text(json.dumps(settings))
            tokenizer = AutoTokenizer.from_pretrained(directory)
            assert kind in (None, type(tokenizer).__name__), f"{name} is a {type(tokenizer).__name__}"
            ids = [tokenizer(text)["input_ids"] for text in texts + MORE]
            cases[name] = {
                "form": form,
                file: settings,
                "special": {role: getattr(tokenizer, f"{role}_token_id") for role in ("bos", "eos", "unk", "pad")},
                "decoded": [tokenizer.decode(row, skip_special_tokens=True, clean_up_tokenization_spaces=False) for row in ids],
                "ids": ids,
            }
    text = json.dumps({"texts": texts + MORE, "cases": cases}, ensure_ascii=True, separators=(",", ":"))
    (FORMS / "classes.json").write_text(text + "\n")
    print(len(text), "bytes")


if __name__ == "__main__":
    main()
