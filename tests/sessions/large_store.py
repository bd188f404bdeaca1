"""Time and memory of a store with many rows: written, summarized, exported and reopened.

Usage: python large_store.py PELLUCID [ROWS …]    (reopening needs the Python package)

Each session runs the built-in model with its own SAE on prompts of two words, with about 16 active latents each; ROWS
(62500, 250000 and 1000000 by default) is the number of rows of the table of latents. Prints wall time and peak of the
resident memory (MB) of each command, of which only those of the prompts in memory may grow.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PER_EXAMPLE = 16
NAMES = ("Tom", "Lily", "Ben", "Anna", "Sam", "Mia", "Max", "Sue")
VERBS = ("ran", "saw", "was", "had", "said", "went", "sat", "ate")
REOPEN = """
import sys, pellucid
store = pellucid.open_store(sys.argv[1])
column = store.latents["activation"]
assert len(column) == store.latents.num_rows and len(store.latents["hook"]) == len(column)
store.latents._repr_html_()
"""


def write_dataset(path: Path, examples: int) -> None:
    with path.open("w") as file:
        for index in range(examples):
            text = f"{NAMES[index % 8]} {VERBS[index // 8 % 8]}"
            file.write(json.dumps({"text": text, "pronoun": " He" if index % 2 else " She"}) + "\n")


def measure(*command: str) -> tuple[float, float]:
    """Wall seconds and peak resident memory, MB, of a process."""
    started = time.perf_counter()
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(errors.decode())
    return time.perf_counter() - started, usage.ru_maxrss / 1000


def main() -> None:
    pellucid = str(Path(sys.argv[1]).resolve())
    sizes = [int(size) for size in sys.argv[2:]] or [62_500, 250_000, 1_000_000]
    print(f"{'rows':>9}  " + "  ".join(f"{name:>18}" for name in ("write", "show", "export", "reopen")))
    for rows in sizes:
        with tempfile.TemporaryDirectory() as home:
            data, store = Path(home, "data.jsonl"), Path(home, "store")
            write_dataset(data, rows // PER_EXAMPLE)
            session = Path(home, "session.toml")
            session.write_text(
                'ops = "labels_to_ids.model_fwd_w_cache_latent_models.logit_diffs_cache.get_alive_latents"\n'
                '[[saes]]\npath = "builtin"\nunchecked = true\n'
                f'[dataset]\npath = "{data}"\nprompt = "{{text}}"\nlabel_field = "pronoun"\n'
                f'labels = [" He", " She"]\nbatch_size = 64\n[output]\npath = "{store}"\n'
            )
            costs = [
                measure(pellucid, "analyze", session),
                measure(pellucid, "store", "show", store),
                measure(pellucid, "store", "export", store, "--format", "parquet", "-o", Path(home, "export")),
            ]
            if subprocess.run([sys.executable, "-c", "import pellucid"], capture_output=True).returncode == 0:
                costs.append(measure(sys.executable, "-c", REOPEN, store))
            manifest = json.loads((store / "manifest.json").read_text())
            written = sum(part["files"]["latents"]["rows"] for part in manifest["parts"])
            print(
                f"{written:>9}  " + "  ".join(f"{seconds:7.1f} s {peak:5.0f} MB" for seconds, peak in costs), flush=True
            )


if __name__ == "__main__":
    main()
