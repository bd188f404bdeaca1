"""What a trace costs beyond the engine: python benches/trace_overhead.py

Total time of a block minus the engine's own, on the built-in model with token ids; and what it then takes to read a saved value as a numpy
array. Numbers of saves take turns, and what a save adds is the median over the rounds of its difference from the empty block beside it: a
machine that slows down slows both. The promises: an empty trace at most 20 µs, at most 3 µs more for each save, generation with every
layer captured at most 1.03 times generation without.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import pellucid

POINTS = ("resid_pre", "attn_in", "attn_out", "mlp_in", "mlp_out", "resid_post")


def beyond_engine(block: Callable[[], float], calls: int) -> float:
    """Microseconds of a call that are not the engine's: the median over calls."""
    found = []
    for _ in range(calls):
        started = time.perf_counter()
        engine = block()
        found.append(time.perf_counter() - started - engine)
    return statistics.median(found) * 1e6


def reading(saved: Callable[[], list[pellucid.Value]], calls: int) -> float:
    """Microseconds that the first `.value` of a saved value takes: the median over calls of the mean over values."""
    found = []
    for _ in range(calls):
        values = saved()
        started = time.perf_counter()
        for value in values:
            value.value  # noqa: B018
        found.append((time.perf_counter() - started) / len(values))
    return statistics.median(found) * 1e6


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=15, help="pairs of generations")
    parser.add_argument("--threads", type=int, help="threads of the engine; all cores by default")
    parser.add_argument("--generate", metavar="MODEL", help="generate with this model; the built-in one by default")
    options = parser.parse_args()
    model = pellucid.load(threads=options.threads)
    tokens = model.to_tokens("Once upon a time, there was")
    writer = pellucid.load(options.generate, threads=options.threads)

    def block(saves: int) -> Callable[[], float]:
        sites = [(number // 6, POINTS[number % 6]) for number in range(saves)]

        def run() -> float:
            with model.trace(tokens) as t:
                for layer, point in sites:
                    getattr(t.layers[layer], point).save()
            return t.seconds

        return run

    def saved() -> list[pellucid.Value]:
        with model.trace(tokens) as t:
            return [getattr(layer, point).save() for layer in t.layers for point in POINTS]

    blocks = {saves: block(saves) for saves in (0, 1, 6, 12, 36)}
    turns = max(options.calls // 25, 1)
    for run in blocks.values():
        beyond_engine(run, 25)
    costs = [{saves: beyond_engine(run, 25) for saves, run in blocks.items()} for _ in range(turns)]
    print(f"{'saves':>6}  {'beyond the engine, µs':>22}  {'each, µs':>9}")
    for saves in blocks:
        whole = statistics.median(cost[saves] for cost in costs)
        each = statistics.median((cost[saves] - cost[0]) / saves for cost in costs) if saves else None
        print(f"{saves:>6}  {whole:>22.1f}  {'' if each is None else f'{each:9.2f}':>9}")

    print(f"reading a saved value afterwards: {reading(saved, options.calls):.2f} µs")

    def generation(captured: bool) -> float:
        started = time.perf_counter()
        with writer.generate(tokens, max_new=100, eos=False) as t:
            if captured:
                t.cache("layers.*.resid_post")
        return time.perf_counter() - started

    pairs = [(generation(False), generation(True)) for _ in range(options.rounds)]
    ratio = statistics.median(with_capture / without for without, with_capture in pairs)
    print(f"generation with every layer captured: {ratio:.3f} times generation without")


if __name__ == "__main__":
    main()
