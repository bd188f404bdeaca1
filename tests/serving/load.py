"""Loads a server with streaming clients that arrive and go away, and compares every answer with a solo run.

Usage: python load.py PELLUCID [--model smollm2-135m] [--clients 64] [--seconds 120] [--json F]    (standard library only)

Starts `PELLUCID serve` on a free port of the loopback address. First every request runs alone; then CLIENTS clients
send random ones of them, a fifth of which are cut off after a random number of events. Checks that
- every finished answer has the bytes and the log-probabilities of its solo run,
- every capture has exactly prompt + generated - 1 positions,
- the rows of clients that went away are free within a second, and resident memory is flat,
- SIGTERM under load ends the process with 0.

Prints time to first token, time between tokens and tokens per second. Exits with 1 if a check fails.
"""

import argparse
import http.client
import json
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

NAMES = ["Tom", "Lily", "The capital of France", "One day, a cat", "def add(a, b):", "In 1919 the treaty"]
REQUESTS = 48


def request(number):
    """A request that differs from the others in prompt, length, sampling, plan and captures."""
    body = {
        "prompt": f"{NAMES[number % len(NAMES)]} saw {number} birds. " + "They flew over the house. " * (number % 9) + "Then",
        "max_tokens": 8 + number * 7 % 40,
        "temperature": (number % 3) * 0.5,
        "seed": number - 5,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": number % 3,
        "ignore_eos": True,
    }
    if number % 4 == 1:
        body["plan"] = {"taps": [{"site": "layers.1.resid_post", "scale": 0.9}]}
    if number % 6 == 2:
        body["capture"] = ["layers.2.resid_post"]
    return body


class Server:
    def __init__(self, command, model, clients):
        line = [command, "serve", "--addr", "127.0.0.1:0", "--log", "json", "--max-tokens", "512", "--connections", str(4 * clients)]
        line += ["--model", model] if model else []
        self.process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        url = self.process.stdout.readline().strip()
        self.port = int(url.rsplit(":", 1)[1].split("/")[0])

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)

    def events(self, body, stop_after=None):
        """The events of a stream with the time of each; `None` for a client that goes away."""
        connection = self.connect()
        started, events = time.perf_counter(), []
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise RuntimeError(f"{response.status}: {response.read()[:500]}")
            for line in response:
                if line.startswith(b"data: "):
                    events.append((time.perf_counter() - started, line[6:].strip()))
                    if stop_after is not None and len(events) >= stop_after:
                        return None
        finally:
            connection.close()
        if not events or events[-1][1] != b"[DONE]":
            raise RuntimeError("the stream ended without [DONE]")
        return [(when, json.loads(data)) for when, data in events[:-1]]

    def get(self, path):
        connection = self.connect()
        connection.request("GET", path)
        answer = connection.getresponse().read()
        connection.close()
        return answer

    def metric(self, name):
        lines = self.get("/metrics").decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + " ", name + "{")))

    def resident_mb(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024


def answer(events):
    """What must not depend on the load: texts, log-probabilities, usage, shapes of captures."""
    chunks = [event for _, event in events]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    usage = next(chunk["usage"] for chunk in reversed(chunks) if chunk.get("usage"))
    shapes = [tensor["shape"] for chunk in chunks for info in chunk.get("captures", []) for tensor in info["tensors"]]
    for shape in shapes:
        assert shape[0] == usage["prompt_tokens"] + usage["completion_tokens"] - 1, (shape, usage)
    logprobs = [choice["logprobs"]["token_logprobs"] for choice in choices if choice.get("logprobs")]
    return {
        "text": "".join(choice["text"] for choice in choices),
        "logprobs": [value for values in logprobs for value in values],
        "finish": [choice["finish_reason"] for choice in choices if choice["finish_reason"]],
        "usage": usage,
        "captures": shapes,
    }


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pellucid")
    parser.add_argument("--model", default="smollm2-135m", help='"" for the built-in model')
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--json")
    args = parser.parse_args()
    server = Server(args.pellucid, args.model, args.clients)
    problems, lock = [], threading.Lock()
    try:
        solo = [answer(server.events(request(number))) for number in range(REQUESTS)]
        first_tokens, gaps, tokens, finished, left = [], [], 0, 0, 0
        resident = [server.resident_mb()]
        end = time.monotonic() + args.seconds

        def client(seed):
            nonlocal tokens, finished, left
            chance = random.Random(seed)
            time.sleep(chance.random() * 2)
            while time.monotonic() < end:
                number = chance.randrange(REQUESTS)
                goes = chance.random() < 0.2
                try:
                    events = server.events(request(number), chance.randint(1, 10) if goes else None)
                    if events is None:
                        with lock:
                            left += 1
                        continue
                    own = answer(events)
                    with lock:
                        if own != solo[number]:
                            problems.append(f"request {number} differs from its solo run: {own} {solo[number]}")
                        finished += 1
                        tokens += own["usage"]["completion_tokens"]
                        first_tokens.append(events[0][0])
                        gaps.extend(b - a for (a, _), (b, _) in zip(events, events[1:]))
                except Exception as error:
                    with lock:
                        problems.append(f"request {number}: {error!r}")
                time.sleep(chance.random() * 0.2)

        threads = [threading.Thread(target=client, args=(seed,)) for seed in range(args.clients)]
        for thread in threads:
            thread.start()
        while time.monotonic() < end:
            time.sleep(2)
            resident.append(server.resident_mb())
        for thread in threads:
            thread.join()
        time.sleep(1)
        rows, waiting = server.metric("pellucid_running_rows"), server.metric("pellucid_waiting_requests")
        if rows or waiting:
            problems.append(f"{rows} rows run and {waiting} requests wait after the last client")
        middle, last = max(resident[len(resident) // 3 : len(resident) // 2 + 1]), max(resident[-max(1, len(resident) // 6) :])
        if last > middle * 1.1 + 20:
            problems.append(f"memory grows: {middle:.0f} MB in the middle, {last:.0f} MB at the end")

        # SIGTERM while requests run: they finish, and the process exits with 0.
        streams = [threading.Thread(target=lambda n=n: server.events(request(n))) for n in range(8)]
        for stream in streams:
            stream.start()
        time.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        code = server.process.wait(timeout=60)
        for stream in streams:
            stream.join()
        if code != 0:
            problems.append(f"SIGTERM under load ended the process with {code}")
    finally:
        server.process.kill()
    result = {
        "clients": args.clients,
        "seconds": args.seconds,
        "finished": finished,
        "cut off": left,
        "tokens per second": round(tokens / args.seconds, 1),
        "first token p50, p99 (s)": [round(percentile(first_tokens, share), 3) for share in (0.5, 0.99)],
        "between tokens p50, p99 (ms)": [round(1000 * percentile(gaps, share), 1) for share in (0.5, 0.99)],
        "resident start, middle, end (MB)": [round(resident[0]), round(middle), round(last)],
        "problems": problems[:10],
    }
    for name, value in result.items():
        print(f"{name}: {value}")
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
