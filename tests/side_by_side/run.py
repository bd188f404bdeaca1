#!/usr/bin/env python3
"""What nnsight and Pellucid do with the same weights, side by side.

    run.py MODEL [MODEL ...]                  prints a table for each model
    run.py --write MODEL [MODEL ...]          writes docs/side-by-side.md as well

A model is a directory of Hugging Face's layout with f32 weights; only token ids go in, so it needs no tokenizer. Needs torch, transformers, nnsight
0.8 and pellucid in one interpreter. Exits with 1 where the two differ. Every behaviour is a pair of functions of the same name, in
`with_nnsight.py` and `with_pellucid.py`; each gives arrays and lists by name, which are compared.
"""
import argparse, os, sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import nnsight, numpy as np, pellucid, torch, transformers
import with_nnsight, with_pellucid
from behaviours import BEHAVIOURS, Prompts

TOLERANCE = 2e-4
"""Of the largest number of an array: both compute in f32, in different orders."""
ROUNDING = 10
"""Where two f32 results lie further apart, double precision says what is right: ours may be so many times as far from it as theirs."""


def difference(theirs, ours):
    """The largest difference of two results, relative to the largest number; infinite where they have no common shape."""
    if theirs.keys() != ours.keys():
        return float("inf")
    worst = 0.0
    for name, a in theirs.items():
        a, b = np.asarray(a), np.asarray(ours[name])
        if a.shape != b.shape or np.isnan(a).any() or np.isnan(b).any():
            return float("inf")
        if a.dtype.kind in "iub":
            worst = max(worst, 0.0 if np.array_equal(a, b) else float("inf"))
        elif a.size:
            worst = max(worst, float(np.abs(a - b).max() / max(1.0, np.abs(a).max())))
    return worst


class Judge:
    """Who is right where the two differ: nnsight in double precision, loaded when it is first needed."""

    def __init__(self, path, prompts):
        self.load = lambda: with_nnsight.Behaviours(path, prompts, torch.float64)
        self.exact = None

    def compare(self, name, theirs, ours):
        """The distances of both from what is right, and whether ours is rounding as theirs is."""
        self.exact = self.exact or self.load()
        right = getattr(self.exact, name)()
        theirs, ours = difference(right, theirs), difference(right, ours)
        return ours <= ROUNDING * theirs, f"from double precision: nnsight {theirs:.1e}, pellucid {ours:.1e}"


def table(path):
    """The rows of a model's table."""
    prompts = Prompts(path)
    theirs, ours = with_nnsight.Behaviours(path, prompts), with_pellucid.Behaviours(path, prompts)
    judge, rows = Judge(path, prompts), []
    for number, name, meaning in BEHAVIOURS:
        try:
            a, b = getattr(theirs, name)(), getattr(ours, name)()
            off = difference(a, b)
            same = off <= TOLERANCE
            said = ("exact" if off == 0 else f"{off:.1e}") if np.isfinite(off) else "other results"
            if not same and np.isfinite(off):
                same, of_both = judge.compare(name, a, b)
                said = f"{said}; {of_both}"
        except Exception as error:
            same, said = False, f"{type(error).__name__}: {' '.join(str(error).split())[:90]}"
        rows.append((number, meaning, "agree" if same else "differ", said))
        print(f"{number:>4}  {'agree ' if same else 'DIFFER'}  {said:<14}  {meaning}", flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="write docs/side-by-side.md")
    options = parser.parse_args()
    # On a busy machine torch's threads wait for each other at every product for longer than the product takes.
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    versions = f"nnsight {nnsight.__version__}, transformers {transformers.__version__}, torch {torch.__version__}, pellucid {pellucid.__version__}"
    page = ["# Side by side with nnsight", "",
            "Made by `python tests/side_by_side/run.py --write MODEL …`: each behaviour is written twice, as a user of either library would, and runs on the same weights.", "",
            f"{versions}; f32, eager attention. The difference is the largest of all arrays of a row, relative to the largest number; up to {TOLERANCE:g} is agreement. "
            f"Beyond that nnsight runs in double precision to say what is right, and ours may be {ROUNDING} times as far from it as theirs: f32 itself leaves that room where a change makes a model sensitive. "
            "The numbers are those of the behaviours that a tracing library is expected to have; those without a number are compared besides.", ""]
    all_agree = True
    for path in options.models:
        name = path.resolve().name.split(".")[0]
        print(f"\n{name}: {versions}")
        rows = table(path)
        all_agree &= all(same == "agree" for _, _, same, _ in rows)
        page += [f"## {name}", "", "| | behaviour | | difference |", "|---|---|---|---|"]
        page += [f"| {number} | {meaning} | {same} | {said} |" for number, meaning, same, said in rows] + [""]
    if options.write:
        (Path(__file__).resolve().parents[2] / "docs/side-by-side.md").write_text("\n".join(page))
    sys.exit(0 if all_agree else 1)


if __name__ == "__main__":
    main()
