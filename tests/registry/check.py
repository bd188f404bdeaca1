"""Holds what `pellucid inspect` says of every configuration type of `transformers` beside what its model classes say of themselves.

    python tests/registry/check.py target/debug/pellucid

For each type whose configuration can be made, a directory with its config.json is inspected, with the type's first class named in it. The expected
category comes from the class: whether it can generate, and what it takes in and gives out (`input_modalities`, `output_modalities`,
`main_input_name`). The expected tier is native exactly where Pellucid's table of families has the type. Prints the figures and every difference; where the
class itself says too little, the difference is listed apart.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import transformers
from transformers.models.auto import configuration_auto, modeling_auto

REPOSITORY = Path(__file__).resolve().parents[2]
ORDER = ["MODEL_FOR_CAUSAL_LM", "MODEL_FOR_MULTIMODAL_LM", "MODEL_FOR_SPEECH_SEQ_2_SEQ", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM", "MODEL_FOR_CTC"]


def first_class(kind):
    """The class that a checkpoint of the type would most likely name, and the tasks of the type."""
    tables = {name: table for name, table in vars(modeling_auto).items() if name.endswith("_NAMES") and name != "CONFIG_MAPPING_NAMES"}
    tasks = [name for name, table in tables.items() if kind in table]
    ranked = sorted(tasks, key=lambda name: ORDER.index(name.removesuffix("_MAPPING_NAMES")) if name.removesuffix("_MAPPING_NAMES") in ORDER else 99)
    if not ranked:
        return None
    entry = tables[ranked[0]][kind]
    return entry if isinstance(entry, str) else entry[0]


def expected(kind, name):
    """The category that a class claims for itself, and whether it gives several kinds of output; nothing where it does not say."""
    model = getattr(transformers, name, None) if name else None
    try:
        takes = set(getattr(model, "input_modalities", None) or ())
    except ImportError:  # a class of an optional library
        return None, None
    if model is None:
        return None, None
    gives = set(getattr(model, "output_modalities", None) or ())
    omni = len(gives) > 1
    main = getattr(model, "main_input_name", "input_ids")
    main = main if isinstance(main, str) else main[0]
    generates = model.can_generate()
    if main in ("input_features", "input_values") or takes == {"audio"}:
        heard = generates or any(name.endswith(end) for end in ("ForCTC", "ForTDT", "ForRNNT"))
        return ("asr" if heard else "audio_encoder"), omni
    if generates:
        return "transformers", omni
    if main.startswith("pixel_values") or takes & {"image", "video"}:
        return "vision_encoder", omni
    return "transformers", omni


def native():
    """The types of the table of families."""
    text = (REPOSITORY / "crates/models/src/families/mod.rs").read_text()
    table = text[text.index("const FAMILIES") : text.index("];", text.index("const FAMILIES"))]
    return {line.split('"')[1] for line in table.splitlines() if '("' in line}


def main():
    binary, families = sys.argv[1], native()
    rows, failed = [], []
    with tempfile.TemporaryDirectory() as root:
        for kind in sorted(configuration_auto.CONFIG_MAPPING_NAMES):
            name = first_class(kind)
            try:
                config = configuration_auto.CONFIG_MAPPING[kind]()
                if name:
                    config.architectures = [name]
                directory = Path(root) / kind
                config.save_pretrained(directory)
            except Exception as problem:  # every kind of failure of another library's constructors
                failed.append(f"{kind}: {type(problem).__name__}")
                continue
            rows.append((kind, name, directory))

        def look(row):
            answer = subprocess.run([binary, "inspect", "--json", row[2]], capture_output=True, text=True, check=True)
            return json.loads(answer.stdout)

        with ThreadPoolExecutor(2) as pool:
            reports = list(pool.map(look, [row for row in rows]))
    wrong, silent, tiers, counts = [], [], [], Counter()
    for (kind, name, _), report in zip(rows, reports, strict=True):
        category, omni = expected(kind, name)
        counts[report["category"], report["support"]] += 1
        tier = "native" if kind in families else "inspect-only"
        if report["support"] != tier:
            tiers.append(f"{kind} ({name}): {report['support']}, table says {tier}: {report['reason']}")
        line = f"{kind} ({name}): {report['category']}{' omni' * report['modalities']['omni']}, class says {category}{' omni' * bool(omni)}"
        if category is None:
            silent.append(line)
        elif (category, bool(omni)) != (report["category"], report["modalities"]["omni"]):
            wrong.append(line)
    print(f"{len(rows)} types inspected, {len(failed)} cannot be made without arguments: {', '.join(failed)}")
    for (category, tier), count in sorted(counts.items()):
        print(f"  {category:16}{tier:14}{count}")
    for title, lines in [("tier differs", tiers), ("category differs", wrong), ("no class to ask", silent)]:
        print(f"{title}: {len(lines)}", *lines, sep="\n  ")


if __name__ == "__main__":
    main()
