"""Measures the cost of tracing: Pellucid, plain PyTorch hooks and nnsight on the same network, in one run.

    python tracing_cost.py [--rounds N] [--model DIR] [--md FILE] [--json FILE]

Needs the package `pellucid`. torch and nnsight are measured if they can be imported; `--model` (a
Hugging Face directory) adds a language model's generation. Every round measures everything once, in
random order; results are medians over the rounds.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pellucid

LAYERS, WIDTH, TOKENS = 12, 64, 5
COUNTS = (1, 6, 12)
Measure = Callable[[], float]


def timed(work: Callable[[], Any], calls: int = 5) -> float:
    """Returns the minimum seconds of a few calls, because disturbances only add time."""
    least = float("inf")
    for _ in range(calls):
        started = time.perf_counter()
        work()
        least = min(least, time.perf_counter() - started)
    return least


def network() -> tuple[dict[str, np.ndarray], pellucid.Network]:
    """Returns twelve consecutive projections and their weights."""
    rng = np.random.default_rng(0)
    net, weights, x = pellucid.Network(), {}, None
    x = net.input("x", WIDTH)
    for layer in range(LAYERS):
        x = net.linear(f"layer{layer}", x, WIDTH)
        weights[x] = (rng.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32)
    return weights, net


class Ours:
    """This package."""

    name = "pellucid"

    def __init__(self, weights: dict[str, np.ndarray], net: pellucid.Network, x: np.ndarray) -> None:
        self.model, self.x, self.weights = net.build(weights), x, weights

    def create(self) -> None:
        """Builds a network and packs its weights."""
        _, net = network()
        net.build(self.weights)

    def trace(self, count: int, write: bool = False) -> Any:
        """Traces: saves the outputs of some layers, or doubles them."""
        with self.model.trace(self.x) as t:
            for layer in range(count):
                site = t[f"layer{layer}"]
                if write:
                    site *= 2.0
                else:
                    site.save()
            out = t[f"layer{LAYERS - 1}"].save()
        return t, out

    def forward(self) -> None:
        """Runs the forward pass alone."""
        self.trace(0)

    def cross_row(self, shared: bool) -> None:
        """Traces two rows; with `shared` the second row uses a value of the first."""
        with self.model.trace([self.x, self.x]) as t:
            first = t["layer3"][0, -1]
            t["layer6"][1, -1] = first if shared else 0.0
            t[f"layer{LAYERS - 1}"].save()


class Torch:
    """Plain hooks."""

    name = "PyTorch hooks"

    def __init__(self, weights: dict[str, np.ndarray], x: np.ndarray) -> None:
        import torch

        self.torch = torch
        torch.set_grad_enabled(False)
        modules = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
        for module, weight in zip(modules, weights.values(), strict=True):
            module.weight.copy_(torch.from_numpy(weight))
        self.modules = modules
        self.model = torch.nn.Sequential(*modules)
        self.x = torch.from_numpy(x)

    def forward(self) -> Any:
        """Runs the module without hooks."""
        return self.model(self.x)

    def trace(self, count: int, write: bool = False) -> dict[int, Any]:
        """Registers hooks that copy or double layer outputs, runs, and removes them."""
        found: dict[int, Any] = {}

        def hook(layer: int) -> Any:
            def see(module: Any, inputs: Any, output: Any) -> Any:
                if write:
                    return output * 2
                found[layer] = output.clone()
                return None

            return see

        handles = [self.modules[layer].register_forward_hook(hook(layer)) for layer in range(count)]
        self.model(self.x)
        for handle in handles:
            handle.remove()
        return found

    def parts(self) -> dict[str, float]:
        """Times registering, calling and removing hooks."""
        started = time.perf_counter()
        handles = [module.register_forward_hook(lambda *_: None) for module in self.modules]
        setup = time.perf_counter() - started
        called = timed(self.forward)
        started = time.perf_counter()
        for handle in handles:
            handle.remove()
        cleanup = time.perf_counter() - started
        plain = timed(self.forward)
        return {
            "setup": setup,
            "per hook": max(called - plain, 0.0) / LAYERS,
            "cleanup": cleanup,
        }


class NNsight:
    """nnsight on the same modules."""

    name = "nnsight"

    def __init__(self, torch: Torch) -> None:
        import nnsight

        self.nnsight, self.torch = nnsight, torch
        self.model = nnsight.NNsight(torch.model)

    def create(self) -> None:
        """Wraps the model."""
        self.nnsight.NNsight(self.torch.model)

    def trace(self, count: int, write: bool = False) -> Any:
        """Traces: saves the outputs of some layers, or doubles them."""
        model, x, saved = self.model, self.torch.x, self.nnsight.save
        if count == 0:
            with model.trace(x):
                out = saved(model[LAYERS - 1].output)
            return out
        if write:
            with model.trace(x):
                for layer in range(count):
                    model[layer].output = model[layer].output * 2
                out = saved(model[LAYERS - 1].output)
            return out
        with model.trace(x):
            kept = saved([])
            for layer in range(count):
                kept.append(model[layer].output)
            out = saved(model[LAYERS - 1].output)
        return out


def rounds(measures: dict[str, Measure], count: int) -> dict[str, float]:
    """Returns the median seconds of each measure over rounds in random order."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    order, shuffle = list(measures), random.Random(1)
    for _ in range(count):
        shuffle.shuffle(order)
        for name in order:
            found[name].append(measures[name]())
    return {name: statistics.median(times) for name, times in found.items()}


def agree(ours: Ours, others: list[Any]) -> None:
    """Exits unless all libraries compute the same values."""
    expected = ours.trace(0)[1].value
    for other in others:
        found = other.forward() if isinstance(other, Torch) else other.trace(0)
        if not np.allclose(np.asarray(found), expected, atol=1e-4):
            raise SystemExit(f"{other.name} computes different values: nothing is compared")


def trace_breakdown(ours: Ours, without: Ours, count: int) -> dict[str, float]:
    """Splits a trace into recording, execution and returning results; also plan compilation, which the plan cache skips."""
    record, engine, new, rest = [], [], [], []
    for _ in range(count):
        new.append(without.trace(LAYERS)[0].seconds)
        started = time.perf_counter()
        block = ours.model.trace(ours.x)
        t = block.__enter__()
        for layer in range(LAYERS):
            t[f"layer{layer}"].save()
        recorded = time.perf_counter()
        block.__exit__(None, None, None)
        ended = time.perf_counter()
        record.append(recorded - started)
        engine.append(t.seconds)
        rest.append(ended - recorded - t.seconds)
    return {
        "record": statistics.median(record),
        "check and compile (the first time only)": max(statistics.median(new) - statistics.median(engine), 0.0),
        "execute": statistics.median(engine),
        "hand over": statistics.median(rest),
    }


class LanguagePeer:
    """A language model in transformers and in nnsight, in f32 on one thread, as ours."""

    def __init__(self, path: str, steps: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        folder, file = os.path.split(path)
        where = (
            {"pretrained_model_name_or_path": folder, "gguf_file": file}
            if path.endswith(".gguf")
            else {"pretrained_model_name_or_path": path}
        )
        self.torch, self.steps = torch, steps
        self.model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
        self.model.generation_config.eos_token_id = None  # exactly `steps` tokens
        self.model.generation_config.pad_token_id = 0
        depth = self.model.config.get_text_config().num_hidden_layers
        self.layers = next(m for m in self.model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == depth)
        self.traced = None
        if importlib.util.find_spec("nnsight"):
            from nnsight.modeling.transformers import TransformersModel
            from tokenizers import Tokenizer, models
            from transformers import PreTrainedTokenizerFast

            # nnsight requires a tokenizer; the prompts are token ids.
            words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
            tokenizer = PreTrainedTokenizerFast(
                tokenizer_object=words,
                unk_token="a",
                bos_token="b",
                eos_token="b",
                pad_token="b",
            )
            self.traced = TransformersModel(self.model, task="text-generation", tokenizer=tokenizer)
            names = next(name for name, m in self.model.named_modules() if m is self.layers)
            self.traced_layers = self.traced
            for part in names.split("."):
                self.traced_layers = getattr(self.traced_layers, part)

    def plain(self, tokens: list[int]) -> tuple[list[int], Any]:
        """`generate` of transformers."""
        with self.torch.no_grad():
            out = self.model.generate(self.torch.tensor([tokens]), max_new_tokens=self.steps, do_sample=False)
        return out[0, len(tokens) :].tolist(), None

    def hooked(self, tokens: list[int]) -> tuple[list[int], Any]:
        """`generate` with a forward hook on every layer that keeps its output."""
        kept: list[Any] = []
        keep = lambda module, args, output: kept.append(output[0] if isinstance(output, tuple) else output)
        hooks = [layer.register_forward_hook(keep) for layer in self.layers]
        try:
            return self.plain(tokens)[0], kept
        finally:
            for hook in hooks:
                hook.remove()

    def nnsight(self, tokens: list[int]) -> tuple[list[int], Any]:
        """`generate` of nnsight without an intervention."""
        with (
            self.torch.no_grad(),
            self.traced.generate(self.torch.tensor([tokens]), max_new_tokens=self.steps, do_sample=False) as tracer,
        ):
            out = tracer.result.save()
        return out[0, len(tokens) :].tolist(), None

    def nnsight_captured(self, tokens: list[int]) -> tuple[list[int], Any]:
        """`generate` of nnsight that saves every layer's output at every step."""
        import nnsight

        layers, steps = self.traced_layers, self.steps
        with (
            self.torch.no_grad(),
            self.traced.generate(self.torch.tensor([tokens]), max_new_tokens=steps, do_sample=False) as tracer,
        ):
            kept = nnsight.save([])
            for _step in tracer.iter[:steps]:
                for layer in layers:
                    kept.append(layer.output[0] if isinstance(layer.output, tuple) else layer.output)
            out = tracer.result.save()
        return out[0, len(tokens) :].tolist(), kept


def generation(path: str, count: int) -> dict[str, float]:
    """Measures generation without and with every layer captured, and the cost per captured layer and step; the same
    in transformers and nnsight if they can be imported. Outputs must agree."""
    # One thread: on a busy machine several wait for each other, which would hide the cost of
    # captures.
    model = pellucid.load(path, dtype="f32", threads=1)
    tokens, steps = list(range(1, 10)), 16

    def ours(captured: bool) -> tuple[list[int], Any]:
        with model.generate(tokens, max_new=steps, eos=False) as t:
            if captured:
                t.cache("layers.*.resid_post")
        return list(t.result.tokens), t

    works: dict[str, Callable[[], tuple[list[int], Any]]] = {
        "pellucid generation, one thread": lambda: ours(False),
        "pellucid generation, one thread, all layers captured": lambda: ours(True),
    }
    if importlib.util.find_spec("transformers") and importlib.util.find_spec("torch"):
        peer = LanguagePeer(path, steps)
        works["transformers generation, one thread"] = lambda: peer.plain(tokens)
        works["transformers generation, one thread, hook on every layer"] = lambda: peer.hooked(tokens)
        if peer.traced is not None:
            works["nnsight generation, one thread"] = lambda: peer.nnsight(tokens)
            works["nnsight generation, one thread, all layers saved"] = lambda: peer.nnsight_captured(tokens)
    expected = ours(False)[0]
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(-1, count):
        # Every other round is reversed: drift of the machine affects all alike. The first round is
        # the warm-up.
        for name in list(works)[:: 1 if number % 2 else -1]:
            started = time.perf_counter()
            found, kept = works[name]()
            seconds = time.perf_counter() - started
            if found != expected:
                raise SystemExit(f"{name}: generated {found} instead of {expected}: nothing is compared")
            if isinstance(kept, list) and len(kept) != steps * model.layers:
                raise SystemExit(f"{name}: kept {len(kept)} activations instead of {steps * model.layers}")
            if number >= 0:
                times[name].append(seconds)
    medians = {name: statistics.median(found) for name, found in times.items()}

    def ratio(name: str, to: str) -> float:
        return statistics.median(a / b for a, b in zip(times[name], times[to], strict=True))

    plain, captured = list(works)[:2]
    more = statistics.median(b - a for a, b in zip(times[plain], times[captured], strict=True))
    ratios = {name: ratio(name, plain) for name in list(works)[1:]}
    own = {name: ratio(name, "transformers generation, one thread") for name in works if name.startswith("nnsight")}
    return medians | {
        "per layer of a step": more / (steps * model.layers),
        "ratio": ratios[captured],
        "ratios": ratios,
        "ratios to transformers": own,
    }


def table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    """A Markdown table."""
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(str(cell) for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines) + "\n"


def ms(seconds: float | None) -> str:
    """Milliseconds, or a dash."""
    return "–" if seconds is None else f"{seconds * 1e3:.3f}"


def report(
    found: dict[str, float],
    split: dict[str, float],
    hooks: dict[str, float] | None,
    names: list[str],
) -> str:
    """Formats the report."""

    def row(title: str, key: str, note: str = "") -> tuple[Any, ...]:
        return (title, *(ms(found.get(f"{name} {key}")) for name in names), note)

    head = ("Component", *(f"{name}, Time (ms)" for name in names), "Notes")
    text = "# Tracing Performance Profile\n\n"
    text += f"**Device:** {platform.processor() or platform.machine()}, {os.cpu_count()} cores  \n"
    text += f"**Version:** pellucid {pellucid.__version__}\n\n"
    text += "## 1. Overhead Breakdown\n\n### 1.1 Core Timing Results\n\n"
    core = [
        row(
            "Model baseline (forward)",
            "forward",
            f"{LAYERS} projections of {WIDTH}, {TOKENS} tokens",
        ),
        row("Wrapper creation", "create", "one-time cost; ours packs the weights"),
        row("Empty trace", "0", "fixed cost per trace; the last layer is saved"),
        *(row(f"{count} interventions (read)", str(count)) for count in COUNTS),
        row(f"{LAYERS} interventions (write)", "write"),
    ]
    text += table(head, core)
    per = [
        (f"{(found[f'{name} 12'] - found[f'{name} 0']) / 12 * 1e6:.1f}" if f"{name} 12" in found else "–")
        for name in names
    ]
    text += f"\nPer read, µs: {', '.join(f'{name} {each}' for name, each in zip(names, per, strict=True))}.\n\n"
    language = [(key, value) for key, value in found.items() if "generation" in key or key.startswith("per layer")]
    if language:
        ratios, to_transformers = found["ratios"], found["ratios to transformers"]

        def shown(table: dict[str, float], key: str) -> str:
            return f"{table[key]:.2f}x" if key in table else "–"

        text += "### 1.2 LanguageModel Results\n\n"
        text += table(
            (
                "Operation",
                "Time (ms)",
                "to pellucid's generation",
                "to transformers' generation",
            ),
            [(key, ms(value), shown(ratios, key), shown(to_transformers, key)) for key, value in language],
        )
        text += "\nThe generated tokens are the same in all rows.\n\n"
    whole = sum(split.values())
    text += "## 2. Tracing Phase Analysis\n\n### 2.1 Breakdown of a Pellucid trace (12 saves)\n\n"
    text += table(
        ("Operation", "Time (ms)", "% of Trace"),
        [(k, ms(v), f"{v / whole:.1%}") for k, v in split.items()],
    )
    cached, uncached = found["pellucid 12"], found["pellucid uncached"]
    text += "\n### 2.2 Full Trace Timing\n\n" + table(
        ("Trace Type", "Time (ms)", "Improvement"),
        [
            ("Uncached trace", ms(uncached), "Baseline"),
            ("Cached trace", ms(cached), f"{uncached / cached:.2f}x faster"),
        ],
    )
    text += "\n## 4. Configuration Impact Analysis\n\n" + table(
        ("Setting", "Time (ms)", "Impact"),
        [
            ("rows apart", ms(found["pellucid apart"]), "Baseline"),
            (
                "cross-row value",
                ms(found["pellucid cross"]),
                f"{(found['pellucid cross'] - found['pellucid apart']) * 1e3:+.3f} ms",
            ),
        ],
    )
    if hooks is not None:
        text += "\n## 7. Overhead Comparison: PyTorch Hooks\n\n"
        text += table(("Part", "Time (ms)"), [(key, ms(value)) for key, value in hooks.items()])
    text += (
        "\n## Performance Tuning\n\n"
        "- Compiled plans are cached by content; `model.keep_plans(False)` disables the cache.\n"
        "- Save sites rather than values computed from them: a saved site takes over the buffer without a copy.\n"
        "- Save only what you need: layers after the last site in use do not run.\n"
        "- For many edits of one prompt use `model.sweep`, which recomputes each from its first edited layer.\n"
    )
    return text


def main() -> None:
    """Runs all measurements and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--model", help="a Hugging Face directory or GGUF file, for generation")
    parser.add_argument("--md", help="write the report here instead of printing it")
    parser.add_argument("--json", help="write all figures here, in seconds")
    options = parser.parse_args()
    weights, net = network()
    x = np.random.default_rng(1).standard_normal((TOKENS, WIDTH)).astype(np.float32)
    ours = Ours(weights, net, x)
    without = Ours(weights, network()[1], x)
    without.model.keep_plans(False)
    measures: dict[str, Measure] = {
        "pellucid forward": lambda: ours.trace(0)[0].seconds,
        "pellucid create": lambda: timed(ours.create, 1),
        "pellucid write": lambda: timed(lambda: ours.trace(LAYERS, True)),
        "pellucid uncached": lambda: timed(lambda: without.trace(12)),
        "pellucid apart": lambda: timed(lambda: ours.cross_row(False)),
        "pellucid cross": lambda: timed(lambda: ours.cross_row(True)),
    }
    measures |= {f"pellucid {n}": lambda n=n: timed(lambda: ours.trace(n)) for n in (0, *COUNTS)}
    others: list[Any] = []
    hooks = None
    if importlib.util.find_spec("torch"):
        others.append(plain := Torch(weights, x))
        hooks = {key: statistics.median(plain.parts()[key] for _ in range(9)) for key in plain.parts()}
        if importlib.util.find_spec("nnsight"):
            others.append(NNsight(plain))
    agree(ours, others)
    for other in others:
        if isinstance(other, Torch):
            measures[f"{other.name} forward"] = lambda other=other: timed(other.forward)
        else:
            measures[f"{other.name} create"] = lambda other=other: timed(other.create, 1)
        measures[f"{other.name} write"] = lambda other=other: timed(lambda: other.trace(LAYERS, True))
        for n in (0, *COUNTS):
            measures[f"{other.name} {n}"] = lambda other=other, n=n: timed(lambda: other.trace(n))
    found = rounds(measures, options.rounds)
    if options.model:
        found |= generation(options.model, max(options.rounds // 3, 5))
    split = trace_breakdown(ours, without, options.rounds * 5)
    text = report(found, split, hooks, ["pellucid", *(other.name for other in others)])
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"seconds": found, "where": split, "hooks": hooks}, file, indent=1)
    if options.md:
        with open(options.md, "w") as file:
            file.write(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
