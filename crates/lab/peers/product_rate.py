"""Measures torch's fastest f32 matmul. Prints [name, FLOP/s] as JSON to stdout."""
import json, os, sys, time

sys.stdin.read()
answer_to = os.dup(1)
os.dup2(2, 1)  # libraries may print; stdout is reserved for the answer
import torch


def rate(rows, columns, inner):
    x, w, best = torch.full((rows, inner), 0.25), torch.full((inner, columns), 0.5), float("inf")
    for _ in range(20):
        begin = time.perf_counter()
        x @ w
        best = min(best, time.perf_counter() - begin)
    return 2 * rows * columns * inner / best


found = max(rate(*sizes) for sizes in [(512, 512, 512), (256, 1024, 512), (512, 1536, 576), (512, 576, 1536), (1024, 1024, 1024)])
with os.fdopen(answer_to, "w") as out:
    json.dump([f"torch {torch.__version__}", found], out)
