"""Measures `pellucid serve`: throughput beside llama.cpp's server, and the costs of HTTP, prefill and captures.

Usage: python throughput.py PELLUCID MODEL.gguf [--rounds 3] [--threads 2]    (needs xllamacpp for llama.cpp's server)

Rounds alternate between the servers in fresh processes; results are medians and ratios of the rounds.
- Throughput: 16 equal prompts of about 60 tokens with 64 new tokens each, 8 clients at a time. llama.cpp's server has 8 slots
  and the same number of threads.
- HTTP: the share of the process's CPU time in threads that serve HTTP, at 16 streams.
- First token: a request of 60 tokens alone, and one that arrives while 2,000 tokens of another request are prefilled.
- Captures: 16 requests that capture the residual stream of all layers as bf16 and fetch it as safetensors, over the same
  requests without captures.
"""

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PROMPT = "The history of the city begins with a small harbor on the river, where merchants met to trade wool, salt and wine. " * 2
TICK = os.sysconf("SC_CLK_TCK")

LLAMA_CPP = """
import sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, threads = sys.argv[1], int(sys.argv[2])
params.n_parallel, params.n_ctx, params.port, params.warmup = 8, 8 * 2560, 0, True
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
time.sleep(600)
"""


class Server:
    """A server in a process of its own, ended on exit."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        while "http" not in (line := self.process.stdout.readline()):
            if not line:
                raise SystemExit(f"{command[0]} ended before it listened")
        self.port = int(line.strip().removesuffix("/v1").rsplit(":", 1)[1].rstrip("/"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def request(self, method, path, body=None, headers=()):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"Content-Type": "application/json", **dict(headers)})
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(f"{path}: {response.status} {response.read()[:500]}")
        return connection, response

    def complete(self, **fields):
        """Seconds to the first event, all seconds, and the last event with choices; streamed."""
        body = {"prompt": PROMPT, "max_tokens": 64, "temperature": 0, "ignore_eos": True, "stream": True, **fields}
        started, first, events = time.perf_counter(), None, []
        connection, response = self.request("POST", "/v1/completions", body)
        for line in response:
            if line.startswith(b"data: {"):
                first = first or time.perf_counter() - started
                events.append(json.loads(line[6:]))
        connection.close()
        return first, time.perf_counter() - started, events

    def fetch(self, id):
        connection, response = self.request("GET", f"/v1/captures/{id}", headers={"Accept": "application/vnd.safetensors"})
        size = len(response.read())
        connection.close()
        connection, _ = self.request("DELETE", f"/v1/captures/{id}")
        connection.close()
        return size

    def cpu(self):
        """CPU seconds of the threads that serve HTTP, and of all."""
        http_seconds = seconds = 0.0
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            name, _, rest = (task / "stat").read_text().rpartition(")")
            own = sum(map(int, rest.split()[11:13])) / TICK
            seconds += own
            http_seconds += own if "pellucid-http" in name else 0
        return http_seconds, seconds


def together(count, clients, work):
    """Seconds of `count` calls by so many clients."""
    started = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        results = list(pool.map(work, range(count)))
    return time.perf_counter() - started, results


def throughput(server, llama):
    extra = {"n_predict": 64, "cache_prompt": False} if llama else {}
    server.complete(max_tokens=4, **({"n_predict": 4} if llama else {}))
    seconds, _ = together(16, 8, lambda number: server.complete(prompt=f"{number}. {PROMPT}", **extra))
    return 16 * 64 / seconds


def captures(server, site):
    """CPU seconds of 16 requests, with their captures if there is a site."""
    fields = {"capture": [site], "capture_dtype": "bf16"} if site else {}

    def work(number):
        _, _, events = server.complete(prompt=f"{number}. {PROMPT}", **fields)
        return sum(server.fetch(info["id"]) for event in events for info in event.get("captures", []))

    before = server.cpu()[1]
    _, sizes = together(16, 16, work)
    return server.cpu()[1] - before, sum(sizes)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pellucid")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    ours = [args.pellucid, "serve", "--model", args.model, "--addr", "127.0.0.1:0", "--threads", str(args.threads), "--prefix-bytes", "0"]
    theirs = [sys.executable, "-c", LLAMA_CPP, args.model, str(args.threads)]
    rates = {"pellucid": [], "llama.cpp": []}
    shares, alone, beside, ratios, sizes = [], [], [], [], set()
    for _ in range(args.rounds):
        with Server(theirs) as server:
            rates["llama.cpp"].append(throughput(server, True))
        with Server(ours) as server:
            rates["pellucid"].append(throughput(server, False))
            before = server.cpu()
            together(16, 16, lambda number: server.complete(prompt=f"{number}. {PROMPT}"))
            after = server.cpu()
            shares.append((after[0] - before[0]) / (after[1] - before[1]))
            alone.append(server.complete(prompt=f"Alone. {PROMPT}", max_tokens=1)[0])
            tokens = list(range(1000, 3000))
            long = threading.Thread(target=lambda: server.complete(prompt=tokens, max_tokens=1))
            long.start()
            time.sleep(0.2)
            beside.append(server.complete(prompt=f"Beside. {PROMPT}", max_tokens=1)[0])
            long.join()
            plain, with_captures = captures(server, None)[0], captures(server, "layers.*.resid_post")
            plain = statistics.mean([plain, captures(server, None)[0]])
            ratios.append(with_captures[0] / plain)
            sizes.add(with_captures[1])
    both = [a / b for a, b in zip(rates["pellucid"], rates["llama.cpp"])]

    def show(name, values, unit="", scale=1.0):
        values = [scale * value for value in values]
        print(f"{name}: {statistics.median(values):.3g}{unit} ({min(values):.3g} to {max(values):.3g})")

    show("tokens per second, pellucid", rates["pellucid"])
    show("tokens per second, llama.cpp's server", rates["llama.cpp"])
    show("ratio", both, "x")
    show("CPU time of HTTP at 16 streams", shares, " %", 100)
    show("first token of 60 tokens alone", alone, " ms", 1000)
    show("first token beside a prefill of 2,000 tokens", beside, " ms", 1000)
    show("ratio", [b / a for a, b in zip(alone, beside)], "x")
    show("CPU time with captures of all layers", ratios, "x")
    print(f"bytes fetched: {sorted(sizes)}")


if __name__ == "__main__":
    main()
