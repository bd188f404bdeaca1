"""Models of a server: `pellucid.connect` gives the bits of a local run."""

import http.server
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from conftest import BIRD, DOG, GOLDEN, REPOSITORY, STORY

import pellucid

COMMAND = Path(sys.executable).with_name("pellucid")
TOKEN = "0123456789abcdef0123"


@contextmanager
def serving(*arguments):
    """A server in a process of its own; yields its URL and the process."""
    command = [COMMAND, "serve", "--addr", "127.0.0.1:0", *map(str, arguments)]
    environment = {**os.environ, "PELLUCID_LOG": "error"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=REPOSITORY)
    try:
        yield process.stdout.readline().strip(), process
    finally:
        process.kill()
        process.wait(timeout=30)
        process.stdout.close()


@pytest.fixture(scope="module")
def url():
    """A server of the built-in model and of a mixture of experts."""
    with serving("--model", "builtin", "--model", GOLDEN / "mixtral") as (url, _):
        assert url.endswith("/v1")
        yield url


@pytest.fixture(scope="module")
def remote(url):
    return pellucid.connect(url)


def assert_same_bits(a, b, where=""):
    """Compares results recursively; arrays by dtype, shape and bytes."""
    if isinstance(a, pellucid.Value):
        try:
            a, b = a.value, b.value
        except pellucid.RecordError:  # of a scan, which computes shapes
            a, b = a.shape, b.shape
    if isinstance(a, (list, tuple)):
        assert type(a) is type(b), where
        assert len(a) == len(b), where
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same_bits(x, y, f"{where}[{index}]")
    elif isinstance(a, (pellucid.Captures, pellucid.Cache)):
        assert list(a.keys()) == list(b.keys()), where
        for site in a.keys():  # noqa: SIM118  it is not a dictionary
            assert_same_bits(a[site], b[site], f"{where}.{site}")
        assert getattr(a, "marks", None) == getattr(b, "marks", None), where
    elif isinstance(a, np.ndarray):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), where
        assert a.tobytes() == b.tobytes(), where
    elif isinstance(a, pellucid.Generated):
        assert (a.tokens, a.text, a.finish, a.marks) == (b.tokens, b.text, b.finish, b.marks), where
    else:
        assert a == b, where


REFUSED = {
    "t.call(": ("the plan cannot be sent to the server", "functions"),
    "with_weights(": ("needs the weights of builtin, which are at http", "pellucid.load"),
    "model.engine(": ("needs the weights of builtin, which are at http", "pellucid.load"),
    "model.prefix(": ("needs the weights of builtin, which are at http", "pellucid.load"),
    "prefixes=kept": ("`prefixes` is an option of the process that runs the model", "leave out `prefixes`"),
    "threads=": ("`threads` is an option of the process that runs the model", "leave out `threads`"),
    "run_with_hooks(": ("the plan cannot be sent to the server", "functions"),
}
"""What cannot work on a server, with the problem and the hint of the error."""

COMPARED = (pellucid.Value, pellucid.Captures, pellucid.Cache, np.ndarray, list, str, float)


def has_result(value):
    if isinstance(value, list):
        return all(isinstance(item, (pellucid.Value, str)) and has_result(item) for item in value)
    if isinstance(value, pellucid.Value):
        return value._recorder.failure is None and value._result is not None
    return isinstance(value, COMPARED)


def results_of(names):
    """The variables of a guide that hold results: saved values, captures, arrays, texts."""
    return {name: value for name, value in names.items() if has_result(value) and not name.startswith("__")}


@pytest.mark.parametrize("page", ["docs/python.md", "docs/generation.md"])
def test_the_blocks_of_a_guide_give_the_same_bits_on_a_server(page, url, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", (REPOSITORY / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    load, refused = pellucid.load, []

    def connect(name=None, **options):
        if options:  # of another model, which no server has
            return load(name, **options)
        if name is None:
            return pellucid.connect(url)
        return pellucid.connect(url, model=Path(name).name)

    here, there, compared, lost = {}, {}, set(), ""
    for number, block in enumerate(blocks):
        code = compile(block, f"{page}, block {number}", "exec")
        monkeypatch.setattr(pellucid, "load", load)
        exec(code, here)
        monkeypatch.setattr(pellucid, "load", connect)
        found = [expected for sign, expected in REFUSED.items() if sign in block]
        if found:
            with pytest.raises(pellucid.InputError) as failure:
                exec(code, there)
            assert found[0][0] in failure.value.problem
            assert found[0][1] in failure.value.hint
            refused.append(number)
            lost += block
            continue
        exec(code, there)
        own, other = results_of(here), results_of(there)
        # What a refused block computes is known here only.
        common = {name for name in own if not re.search(rf"^ *(\w+, )*{name}(, \w+)* \+?= ", lost, re.MULTILINE)}
        assert common <= other.keys()
        compared |= common
        for name in common:
            assert_same_bits(own[name], other[name], f"{page}, block {number}, {name}")
    assert len(compared) >= (20 if page == "docs/python.md" else 4), compared
    expected = {"docs/python.md": 4, "docs/generation.md": 3}
    assert len(refused) == expected[page], refused


def test_captures_of_every_kind_are_the_same(model, remote):
    plan = {
        "taps": [
            {"site": "layers.*.resid_post", "capture": True},
            {"site": "layers.1.mlp_act", "capture": {"reduce": {"topk": 5}}},
            {"site": "layers.2.z", "heads": [1, 3], "positions": "-2:", "capture": True},
            {"site": "layers.3.resid_post", "positions": "last", "scale": 0.5},
            {"site": "layers.2.resid_post", "as": "h"},
            {"when": {"site": "layers.1.resid_post", "direction": [1.0] * 128, "above": 0.0}, "mark": "positive"},
            {"site": "logits", "capture": True},
        ],
        "values": [{"name": "norm", "norm": "h"}, {"name": "top", "argmax": {"of": "h", "axis": -1}}],
        "save": ["norm", "top"],
    }
    prompts = [STORY, DOG]
    assert_same_bits(model.run(prompts, plan), remote.run(prompts, plan))
    reduced = model.run(prompts, plan)
    assert reduced.passed_over == remote.run(prompts, plan).passed_over
    assert_same_bits(model.run(BIRD, capture="layers.0.attn_probs"), remote.run(BIRD, capture="layers.0.attn_probs"))


def test_gradients_and_rows_that_read_each_other_are_the_same(model, remote):
    def record(model):
        with model.trace() as t:
            with t.row(DOG):
                dog = t.layers[0].resid_post[:, " dog"]
            with t.row(BIRD):
                t.layers[0].resid_post[:, " bird"] = dog
                loss = t.logits[:, -1].log_softmax()[:, 7].sum()
                with loss.backward():
                    grad = t.layers[0].resid_post.grad.save()
                weight = t.weight_grad("layers.1.mlp.down", of=loss).save()
        return grad, weight, loss

    for here, there in zip(record(model)[:2], record(remote)[:2], strict=True):
        assert_same_bits(here, there)


def test_non_finite_constants_and_large_arrays_travel(model, remote):
    rng = np.random.default_rng(1)
    large = rng.normal(size=(128, 128)).astype(np.float32)

    def record(model):
        with model.trace(STORY, allow_nan=True) as t:
            mask = t.where(t.layers[1].attn_scores > 0, t.layers[1].attn_scores, -np.inf)
            top = mask.max(axis=-1).save()
            product = (t.layers[1].resid_post @ large).save()
        return [top, product]

    assert_same_bits(record(model), record(remote))


def test_generations_are_the_same_and_stream(model, remote):
    options = {"max_new": 12, "temperature": 0.9, "top_p": 0.95, "seed": 11, "stop": [" and", "."], "eos": False}

    def record(model):
        pieces = []
        with model.generate([STORY, DOG], watch=lambda *piece: pieces.append(piece), **options) as t:
            t.layers[2].mlp_out[:, "last"] *= 0.5
            words = t.steps[:].logits[:, -1].argmax(-1).save()
            stream = t.layers[1].resid_post.save()
        return t.result, pieces, [words, stream]

    here, there = record(model), record(remote)
    assert_same_bits(list(here), list(there))
    assert len(here[1]) > 4
    half = [m.generate(STORY, max_new=3, capture_dtype="bf16") for m in (model, remote)]
    captured = []
    for block in half:
        with block as t:
            h = t.layers[1].resid_post.save()
        captured.append(h)
    assert_same_bits(captured[0], captured[1])


def test_weights_and_unembedding_are_fetched(model, remote):
    assert_same_bits(model.weight("layers.3.mlp.down"), remote.weight("layers.3.mlp.down"))
    vectors = np.random.default_rng(0).normal(size=(2, 128)).astype(np.float32)
    assert_same_bits(model.unembed(vectors), remote.unembed(vectors))
    plan = {"taps": [{"site": "layers.1.z", "zero": True}]}
    here, there = model.explain(plan, STORY).facts, remote.explain(plan, STORY).facts
    assert here["flops"] == there["flops"]


def test_errors_are_those_of_a_local_call(model, remote):
    calls = [
        lambda m: m.run(STORY, {"taps": [{"site": "layers.99.z", "zero": True}]}),
        lambda m: m.run(STORY, {"taps": [{"site": "layers.1.z", "positions": [99], "zero": True}]}),
        lambda m: m.run([99999], capture="logits"),
        lambda m: m.run(STORY, {"taps": [{"site": "layers.1.resid_post", "set": [1.0, 2.0]}]}),
        lambda m: m.generate(STORY, max_new=10**6).text,
        lambda m: m.generate(STORY, temperature=-1.0),
        lambda m: m.sweep(STORY, lambda t, _: t.layers[7].z.save(), [0]),
    ]
    for number, call in enumerate(calls):
        failures = []
        for each in (model, remote):
            with pytest.raises(pellucid.Error) as failure:
                call(each)
            failures.append(failure.value)
        here, there = failures
        assert type(here) is type(there), number
        fields = ("problem", "hint", "tap", "site")
        assert [getattr(here, f) for f in fields] == [getattr(there, f) for f in fields], number


def test_nan_warns_as_in_a_local_run(model, remote):
    def record(model):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with model.trace(STORY) as t:
                (t.layers[1].resid_post * 0.0).log().sum().save()
                value = (t.layers[1].resid_post * 0.0 / 0.0).save()
        return str(caught[0].message), value

    here, there = record(model), record(remote)
    assert here[0] == there[0]
    assert "has NaN" in here[0]
    assert_same_bits(here[1], there[1])


def test_options_of_the_other_process_are_refused_by_name(remote):
    for options in ({"threads": 1}, {"prefixes": remote.prefixes()}):
        with pytest.raises(pellucid.InputError, match=next(iter(options))):
            with remote.trace(STORY, **options) as t:
                t.logits.save()
    with pytest.raises(pellucid.InputError, match="capture_memory"):
        remote.generate(STORY, max_new=1, capture_memory=1).text  # noqa: B018


def test_the_model_says_where_it_is(remote, url):
    server = url.removesuffix("/v1")
    assert remote.server == server
    assert repr(remote).startswith(f"Model('builtin' at {server}: llama, ")
    assert pellucid.connect(server).server == server
    assert not remote.loaded
    assert remote.to_string(remote.to_tokens(STORY)) == STORY
    with remote.scan(STORY) as t:
        shape = t.layers[0].attn_probs.save()
    assert shape.shape == (4, 13, 13)


def test_a_server_that_is_missing_or_refuses_is_named():
    with pytest.raises(pellucid.ServerError, match=r"no server listens at http://127\.0\.0\.1:9") as failure:
        pellucid.connect("http://127.0.0.1:9")
    assert "pellucid serve" in failure.value.hint
    for wrong in ("127.0.0.1:7117", "ftp://127.0.0.1", "http://user:secret@127.0.0.1"):
        with pytest.raises(pellucid.InputError, match="is not the URL of a server"):
            pellucid.connect(wrong)


def test_a_token_is_needed_checked_and_read_from_the_environment(tmp_path, monkeypatch):
    (tmp_path / "token").write_text(TOKEN)
    with serving("--token-file", tmp_path / "token") as (url, process):
        monkeypatch.delenv("PELLUCID_TOKEN", raising=False)
        for token in (None, "wrong"):
            with pytest.raises(pellucid.ServerError, match="token") as failure:
                pellucid.connect(url, token=token)
            assert "PELLUCID_TOKEN" in failure.value.hint
        with pytest.raises(pellucid.ServerError, match="`other` does not exist"):
            pellucid.connect(url, token=TOKEN, model="other")
        monkeypatch.setenv("PELLUCID_TOKEN", TOKEN)
        model = pellucid.connect(url)
        assert model.generate(STORY, max_new=5).text == " She loved to play outside"
        process.kill()
        process.wait(timeout=30)
        with pytest.raises(pellucid.ServerError, match="no server listens at"):
            model.generate(STORY, max_new=5).text  # noqa: B018


def test_a_server_that_stops_amid_a_call_is_named():
    with serving() as (url, process):
        model = pellucid.connect(url)

        def watch(row, token, text):
            process.kill()
            process.wait(timeout=30)

        with pytest.raises(pellucid.ServerError, match="closed the connection"):
            model.generate(STORY, max_new=200, eos=False, watch=watch).text  # noqa: B018


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_ctrl_c_ends_the_call_on_the_server(remote, url):
    def rows():
        with urllib.request.urlopen(url.removesuffix("/v1") + "/metrics") as answer:
            text = answer.read().decode()
        (line,) = [line for line in text.splitlines() if line.startswith("pellucid_running_rows{")][:1]
        return float(line.rsplit(" ", 1)[1])

    def interrupt(row, token, text):
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        remote.generate(STORY, max_new=200, eos=False, watch=interrupt).text  # noqa: B018
    deadline = time.monotonic() + 30
    while rows() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert rows() == 0
    assert remote.generate(STORY, max_new=5).text == " She loved to play outside"


@contextmanager
def answering(status, body, headers=()):
    """A server that is not ours: it gives one answer to everything, and notes their tokens."""
    requests = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(self.headers.get("Authorization"))
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_other_servers_and_other_versions_are_named():
    old = b'{"error": {"message": "there is no route", "code": "route_not_found"}}'
    newer = b'{"protocol": 99, "version": "9.9.9", "id": "a", "outline": null}'
    for status, body, problem in [
        (404, old, "is older than this client"),
        (200, newer, r"\(version 9.9.9\) is newer than this client"),
        (200, b"<html>hello</html>", "does not answer as a Pellucid server does"),
        (404, b"not here", "with the status 404"),
    ]:
        with answering(status, body) as (url, _):
            with pytest.raises(pellucid.ServerError, match=problem):
                pellucid.connect(url)


def test_no_redirect_is_followed_with_the_token():
    with answering(200, b"{}") as (target, requests):
        with answering(307, b"", [("Location", target)]) as (url, asked):
            with pytest.raises(pellucid.ServerError, match="redirects"):
                pellucid.connect(url, token=TOKEN)
            assert asked == [f"Bearer {TOKEN}"]
    assert requests == []
