"""Benchmark of the Python overhead of a trace: python benches/trace_overhead.py

Measures the total time of a block minus the engine's time, on the built-in model with token ids,
and the time to read a saved value as a numpy array. Numbers of saves alternate within a round; the
cost of a save is the median over rounds of the difference from the empty block of the same round,
so that a drifting machine affects both. Targets: an empty trace at most 20 µs, each save at most 3
µs, generation with every layer captured at most 1.03 times generation without.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import pellucid

POINTS = ("resid_pre", "attn_in", "attn_out", "mlp_in", "mlp_out", "resid_post")


def overhead(block: Callable[[], float], calls: int) -> float:
    """Microseconds of a call outside the engine: the median over calls."""
    seconds = []
    for _ in range(calls):
        started = time.perf_counter()
        engine = block()
        seconds.append(time.perf_counter() - started - engine)
    return statistics.median(seconds) * 1e6


def read_time(save: Callable[[], list[pellucid.Value]], calls: int) -> float:
    """Microseconds to read `.value` for the first time: the median over calls of the mean over
    values.
    """
    seconds = []
    for _ in range(calls):
        values = save()
        started = time.perf_counter()
        for value in values:
            value.value  # noqa: B018
        seconds.append((time.perf_counter() - started) / len(values))
    return statistics.median(seconds) * 1e6


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
    generator = pellucid.load(options.generate, threads=options.threads)

    def block(saves: int) -> Callable[[], float]:
        sites = [(number // 6, POINTS[number % 6]) for number in range(saves)]

        def run() -> float:
            with model.trace(tokens) as t:
                for layer, point in sites:
                    getattr(t.layers[layer], point).save()
            return t.seconds

        return run

    def save_all() -> list[pellucid.Value]:
        with model.trace(tokens) as t:
            return [getattr(layer, point).save() for layer in t.layers for point in POINTS]

    blocks = {saves: block(saves) for saves in (0, 1, 6, 12, 36)}
    rounds = max(options.calls // 25, 1)
    for run in blocks.values():
        overhead(run, 25)
    costs = [{saves: overhead(run, 25) for saves, run in blocks.items()} for _ in range(rounds)]
    print(f"{'saves':>6}  {'overhead, µs':>22}  {'per save, µs':>12}")
    for saves in blocks:
        total = statistics.median(cost[saves] for cost in costs)
        per_save = statistics.median((cost[saves] - cost[0]) / saves for cost in costs) if saves else None
        print(f"{saves:>6}  {total:>22.1f}  {'' if per_save is None else f'{per_save:12.2f}':>12}")

    print(f"reading a saved value: {read_time(save_all, options.calls):.2f} µs")

    def generation(captured: bool) -> float:
        started = time.perf_counter()
        with generator.generate(tokens, max_new=100, eos=False) as t:
            if captured:
                t.cache("layers.*.resid_post")
        return time.perf_counter() - started

    pairs = [(generation(False), generation(True)) for _ in range(options.rounds)]
    ratio = statistics.median(with_capture / without for without, with_capture in pairs)
    print(f"generation with every layer captured: {ratio:.3f} times as long as without")


if __name__ == "__main__":
    main()
