"""Tiny tokenizers in every format other than tokenizer.json, with the ids of their own libraries.

    python tests/golden/tokenizer_forms.py TEXT_FILE

Trains them on an English text, writes them to crates/models/tests/tokenizers, and encodes a list of
difficult strings with transformers (or with tiktoken for formats that transformers cannot read).
Needs transformers, sentencepiece, tiktoken.
"""

import base64
import io
import json
import os
import shutil
import sys
from pathlib import Path

import sentencepiece
import tiktoken
from tokenizers import ByteLevelBPETokenizer, BertWordPieceTokenizer
from transformers import AutoTokenizer

OUT = Path(__file__).resolve().parents[2] / "crates/models/tests/tokenizers"

TEXTS = [
    "",
    " ",
    "   ",
    "Hello world",
    " Hello world",
    "  two  spaces ",
    "one\ntwo\n\nthree\n",
    "\n",
    "\t tab\tand\r\nreturn",
    "I'm sure we'll say it's THEY'RE",
    "1234567 and 3.14",
    "naïve café ÀÉÎ",
    "e\u0301 is not \u00e9",
    "日本語 テスト 中文",
    "🙂 👩‍👩‍👧 🇫🇷",
    "\u00a0no-break\u2003em space",
    "ﬁne ½ ①",
    "«quotes» — “dashes”… ",
    "<s>inside</s> text <unk>",
    "<|endoftext|>and<|im_start|>user\n",
    "[CLS] [MASK] [SEP]",
    "<extra_id_0> <pad><bos><eos>",
    "[INST] ask [/INST]",
    "x<|eot_id|> y",
    "aaaaaaaaaaaaaaaaaaaaaaaa",
    "\x00\x07 control",
    "▁under▁score",
    "mixedCASE_and_snake-kebab.dots/slashes\\",
]


def bpe(text, directory, specials):
    trainer = ByteLevelBPETokenizer()
    trainer.train_from_iterator([text, *TEXTS], vocab_size=480, special_tokens=specials, show_progress=False)
    trainer.save_model(str(directory))


def pieces(text, path, **options):
    lines = [line for line in text.splitlines() if line.strip()]
    # Written to memory first: a model trained into a file contains the path of that file.
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, minloglevel=2, num_threads=1, **options
    )
    path.write_bytes(model.getvalue())


def ranks(text, size=480):
    """Trains byte-level BPE and returns its tokens as bytes, in order of rank, as tiktoken stores
    them."""
    trainer = ByteLevelBPETokenizer()
    trainer.train_from_iterator([text, *TEXTS], vocab_size=size, show_progress=False)
    visible = [b for b in range(256) if chr(b).isprintable() and b not in (0x20, 0xA0, 0xAD) and not 0x7F <= b <= 0xA0]
    byte_of = {chr(b): b for b in visible}
    byte_of |= {chr(256 + n): b for n, b in enumerate(b for b in range(256) if b not in visible)}
    vocab = sorted(trainer.get_vocab().items(), key=lambda entry: entry[1])
    tokens = [bytes(byte_of[c] for c in token) for token, _ in vocab]
    assert len(set(tokens)) == len(tokens) and sum(len(token) == 1 for token in tokens) == 256
    return tokens


def tiktoken_file(path, tokens):
    path.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)))


def config(directory, **settings):
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")


def main(text):
    if OUT.exists():
        shutil.rmtree(OUT)
    OUT.mkdir()
    os.chdir(OUT)
    cases = {}

    def case(name):
        directory = OUT / name
        directory.mkdir(parents=True)
        cases[name] = None
        return directory

    directory = case("gpt2")
    bpe(text, directory, ["<|endoftext|>"])
    config(directory, tokenizer_class="GPT2Tokenizer")

    directory = case("opt")
    bpe(text, directory, ["<s>", "<pad>", "</s>", "<unk>"])
    config(directory, tokenizer_class="GPT2Tokenizer", add_bos_token=True, bos_token="</s>", eos_token="</s>", unk_token="</s>", pad_token="<pad>")

    directory = case("roberta")
    bpe(text, directory, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    (directory / "config.json").write_text('{"model_type": "roberta"}\n')

    directory = case("qwen2")
    bpe(text, directory, [])
    added = {str(480 + i): {"content": token, "special": True} for i, token in enumerate(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])}
    config(directory, tokenizer_class="Qwen2Tokenizer", added_tokens_decoder=added, eos_token="<|im_end|>", pad_token="<|endoftext|>")

    llama = dict(model_type="bpe", vocab_size=640, byte_fallback=True, normalization_rule_name="identity", character_coverage=0.99,
                 split_digits=True, allow_whitespace_only_pieces=True, remove_extra_whitespaces=False, max_sentence_length=20000)
    directory = case("llama")
    pieces(text, directory / "tokenizer.model", **llama)
    config(directory, tokenizer_class="LlamaTokenizer", add_bos_token=True, add_eos_token=False)

    directory = case("llama-legacy")
    pieces(text, directory / "tokenizer.model", **llama)
    config(directory, tokenizer_class="LlamaTokenizer", add_bos_token=True, add_eos_token=True, legacy=True)

    directory = case("gemma")
    pieces(text, directory / "tokenizer.model", **llama | dict(pad_id=0, eos_id=1, bos_id=2, unk_id=3, pad_piece="<pad>", eos_piece="<eos>", bos_piece="<bos>",
           add_dummy_prefix=False, user_defined_symbols=["<start_of_turn>", "<end_of_turn>"]))
    config(directory, tokenizer_class="GemmaTokenizer", add_bos_token=True)

    rules = Path("rules.tsv")
    # A few rules of nmt_nfkc; the whole table has 250 KB.
    fold = {"ﬁ": "fi", "½": "1⁄2", "①": "1", "\u00a0": " ", "\u2003": " ", "\t": " ", "\n": " ", "\r": " ", "e\u0301": "é"}
    rules.write_text("".join(" ".join(f"{ord(c):X}" for c in a) + "\t" + " ".join(f"{ord(c):X}" for c in b) + "\n" for a, b in fold.items()))
    unigram = dict(model_type="unigram", vocab_size=400, normalization_rule_tsv=str(rules), character_coverage=0.99, max_sentence_length=20000)
    directory = case("t5")
    pieces(text, directory / "spiece.model", **unigram, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    config(directory, tokenizer_class="T5Tokenizer", extra_ids=4, additional_special_tokens=[f"<extra_id_{i}>" for i in range(4)])

    directory = case("xlm-roberta")
    pieces(text, directory / "sentencepiece.bpe.model", **unigram)
    config(directory, tokenizer_class="XLMRobertaTokenizer")

    directory = case("plain-bpe")
    pieces(text, directory / "tokenizer.model", **llama)
    config(directory, tokenizer_class="PreTrainedTokenizerFast", add_bos_token=True)

    directory = case("plain-unigram")
    pieces(text, directory / "tokenizer.model", **unigram | dict(byte_fallback=True, vocab_size=640))
    config(directory, tokenizer_class="PreTrainedTokenizerFast", add_eos_token=True)
    rules.unlink()

    tokens = ranks(text)
    directory = case("llama3")
    tiktoken_file(directory / "tokenizer.model", tokens)
    added = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    config(directory, tokenizer_class="PreTrainedTokenizerFast", bos_token=added[0], eos_token=added[1], add_bos_token=True,
           added_tokens_decoder={str(len(tokens) + i): {"content": token, "special": True} for i, token in enumerate(added)})

    directory = case("qwen-tiktoken")
    tiktoken_file(directory / "qwen.tiktoken", tokens)
    config(directory, tokenizer_class="QWenTokenizer")
    pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205))]
    qwen = tiktoken.Encoding("qwen", pat_str=pattern, mergeable_ranks={token: rank for rank, token in enumerate(tokens)},
                             special_tokens={name: len(tokens) + i for i, name in enumerate(names)})
    cases["qwen-tiktoken"] = [qwen.encode(text, allowed_special="all") for text in TEXTS]

    directory = case("tekken")
    specials = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    tekken = {
        "config": {"pattern": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
                   "num_vocab_tokens": len(tokens), "default_vocab_size": len(tokens) + 8 - 20, "default_num_special_tokens": 8, "version": "v7"},
        "vocab": [{"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None} for rank, token in enumerate(tokens)],
        "special_tokens": [{"rank": rank, "token_str": token, "is_control": True} for rank, token in enumerate(specials)],
    }
    (directory / "tekken.json").write_text(json.dumps(tekken))
    from transformers.integrations.mistral.tokenizer import MistralConverter
    converted = MistralConverter(str(directory / "tekken.json")).converted()
    # mistral-common starts every text with <s>.
    cases["tekken"] = [[1, *converted.encode(text).ids] for text in TEXTS]

    for name, lower in [("bert", True), ("bert-cased", False)]:
        directory = case(name)
        trainer = BertWordPieceTokenizer(lowercase=lower)
        trainer.train_from_iterator([text, *TEXTS], vocab_size=480, show_progress=False)
        trainer.save_model(str(directory))
        config(directory, tokenizer_class="BertTokenizer", do_lower_case=lower)

    expected = {"texts": TEXTS, "cases": {}}
    for name, ids in cases.items():
        entry = {}
        if ids is None:
            tokenizer = AutoTokenizer.from_pretrained(OUT / name)
            ids = [tokenizer(text)["input_ids"] for text in TEXTS]
            entry["special"] = {role: getattr(tokenizer, f"{role}_token_id") for role in ("bos", "eos", "unk", "pad")}
            entry["decoded"] = [tokenizer.decode(row, skip_special_tokens=True, clean_up_tokenization_spaces=False) for row in ids]
        entry["ids"] = ids
        expected["cases"][name] = entry
    (OUT / "expected.json").write_text(json.dumps(expected, ensure_ascii=True) + "\n")
    print(sum(path.stat().st_size for path in OUT.rglob("*") if path.is_file()), "bytes")


main(Path(sys.argv[1]).read_text()[:120_000])
