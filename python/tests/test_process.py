"""Threads, signals and forks."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
from conftest import BIRD, DOG, STORY


@contextmanager
def alarm(seconds, handler=signal.default_int_handler):
    """Raises a signal after some seconds, like Ctrl-C."""
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_threads_share_a_model(model, logits):
    prompts = [STORY, DOG, BIRD] * 8
    expected = {prompt: logits(prompt) for prompt in set(prompts)}
    with ThreadPoolExecutor(4) as pool:
        for prompt, found in zip(prompts, pool.map(logits, prompts), strict=True):
            assert np.array_equal(found, expected[prompt])


def test_exceptions_stay_in_their_thread(model, logits):
    expected = logits(DOG)

    def fails(_):
        with pytest.raises(ZeroDivisionError), model.trace(STORY) as t:
            t.call(lambda h: 1 / 0, t.layers[1].resid_post).save()
        return logits(DOG)

    with ThreadPoolExecutor(4) as pool:
        assert all(np.array_equal(found, expected) for found in pool.map(fails, range(16)))


def test_other_threads_run_while_the_engine_does(model):
    ticks = []
    done = threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    started = time.perf_counter()
    model.generate(STORY, max_new=200, eos=False).result  # noqa: B018 - reading it runs it
    ended = time.perf_counter()
    done.set()
    thread.join()
    assert sum(started < at < ended for at in ticks) > 5


@pytest.mark.parametrize("kind", ["run", "generate", "gradient", "sweep"])
def test_ctrl_c_stops_a_run_and_the_model_is_fine(model, logits, kind):
    expected = logits(STORY)
    long = [int(token) for token in np.resize(model.to_tokens(STORY), 250)]

    def endless():
        while True:
            if kind == "run":
                model.run([long] * 40, capture="logits", positions=[-1])
            elif kind == "gradient":
                with model.trace([long] * 20) as t:
                    t.gradient(t.logits.sum(), t.layers[0].resid_post).save()
            elif kind == "sweep":
                model.sweep(long, lambda t, layer: t.layers[layer].skip(), range(model.n_layers))
            else:
                model.generate([long] * 4, max_new=6, eos=False).result  # noqa: B018 - reading it runs it

    with alarm(0.2), pytest.raises(KeyboardInterrupt):
        endless()
    assert np.array_equal(logits(STORY), expected)


def test_a_long_run_ends_soon_after_the_signal(model):
    prompts = [[int(token) for token in np.resize(model.to_tokens(STORY), 250)]] * 200
    raised = []

    def handler(*_):
        raised.append(time.perf_counter())
        raise KeyboardInterrupt

    with alarm(0.1, handler), pytest.raises(KeyboardInterrupt):
        model.run(prompts, capture="layers.*.resid_post", positions=[-1])
    assert time.perf_counter() - raised[0] < 1


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_after_load_works(model, logits):
    expected = logits(STORY)
    model.generate(STORY, max_new=3).result  # noqa: B018 - starts the thread pool before the fork
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        same = np.array_equal(logits(STORY), expected)
        os.write(write, b"same" if same else b"different")
        os._exit(0)
    os.close(write)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(read, 20) == b"same"
    assert np.array_equal(logits(STORY), expected)


def test_torch_is_never_imported():
    program = "import pellucid, sys; m = pellucid.load(); m.generate('Tom', max_new=2).text; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)
