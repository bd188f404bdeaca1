"""`Model.engine`: many requests at once, from threads and from asyncio."""

from __future__ import annotations

import asyncio
import gc
import threading

import numpy as np
import pytest
from conftest import BIRD, DOG, STORY

import pellucid

SITES = "layers.*.resid_post"


@pytest.fixture
def engine(model):
    with model.engine(max_batch=8) as engine:
        yield engine


def test_requests_equal_their_solo_runs(model, engine):
    options = [
        {"max_new": 12},
        {"max_new": 7, "temperature": 0.9, "seed": 3},
        {"max_new": 20, "stop": ["."]},
        {"max_new": 1},
    ]
    prompts = [STORY, DOG, BIRD]
    requests = [(p, o, engine.submit(p, capture=SITES, **o)) for p in prompts for o in options]
    for prompt, option, request in requests:
        with model.generate(prompt, **option) as t:
            alone = t.cache(SITES)
        result = request.result()
        assert (result.tokens, result.text, result.finish) == (t.result.tokens, t.result.text, t.result.finish)
        captures = request.fetch()
        assert list(captures) == list(alone)
        for site in captures:
            assert captures[site].shape[0] == len(result.prompt) + len(result.tokens) - 1
            np.testing.assert_array_equal(captures[site], alone[site])


def test_tokens_stream_and_their_texts_join_to_the_result(engine):
    request = engine.submit(STORY, max_new=30, stop=["play"])
    tokens = list(request)
    assert "".join(token.text for token in tokens) == request.text
    assert "play" not in request.text
    assert [token.token for token in tokens if token.token is not None] == request.result().tokens
    assert list(request) == []


def test_captures_grow_while_the_request_runs(engine):
    request = engine.submit(STORY, max_new=8, capture="layers.2.resid_post")
    early = []
    for count, _ in enumerate(request, start=1):
        so_far = request.captures["layers.2.resid_post"]
        assert len(so_far) >= len(request._rows[0]) + count - 1
        early.append(so_far)
    whole = request.fetch()["layers.2.resid_post"]
    for so_far in early:
        np.testing.assert_array_equal(so_far, whole[: len(so_far)])
    assert request.fetch() is request.fetch()
    assert request.captures is request.fetch()


def test_several_prompts_form_one_request(model, engine):
    plan = {"taps": [{"site": "layers.2.resid_post", "rows": [1], "positions": "last", "set": {"from": {"rows": [0]}}}]}
    request = engine.submit([DOG, BIRD], plan, max_new=5, capture="layers.3.resid_post")
    texts = request.text
    assert len(texts) == 2
    alone = model.edit(plan).generate([DOG, BIRD], max_new=5)
    assert texts == alone.text
    assert [len(row) for row in request.fetch()["layers.3.resid_post"]] == [
        len(row.prompt) + len(row.tokens) - 1 for row in request.result()
    ]


def test_standing_edits_and_plan_blocks_apply(model):
    with model.edit() as edit:
        edit.layers[1].mlp_out[:] = 0
    with edit.model.engine() as engine:
        assert engine.submit(STORY, max_new=6).text == edit.model.generate(STORY, max_new=6).text
    with model.plan() as block:
        block.layers[1].mlp_out[:] = 0
    with model.engine() as engine:
        assert engine.submit(STORY, block, max_new=6).text == edit.model.generate(STORY, max_new=6).text


def test_a_list_of_prompts_keeps_its_order(model, engine):
    prompts = [STORY, DOG, BIRD] * 5
    texts = [result.text for result in engine.generate(prompts, max_new=6)]
    assert texts == [model.generate(prompt, max_new=6).text for prompt in [STORY, DOG, BIRD]] * 5
    with pytest.raises(pellucid.InputError, match="list of prompts"):
        engine.generate(STORY)


def test_await_and_async_for(engine):
    async def stream(prompt: str) -> str:
        request = engine.submit(prompt, max_new=10)
        return "".join([token.text async for token in request])

    async def main() -> tuple[list[str], list[str]]:
        prompts = [STORY, DOG, BIRD] * 4
        streamed = await asyncio.gather(*[stream(prompt) for prompt in prompts])
        awaited = await asyncio.gather(*[engine.submit(prompt, max_new=10) for prompt in prompts])
        return streamed, [result.text for result in awaited]

    streamed, awaited = asyncio.run(main())
    assert streamed == awaited


def test_a_cancelled_task_leaves_the_others_alone(engine):
    async def main() -> str:
        slow = asyncio.ensure_future(_wait(engine.submit(STORY, max_new=200)))
        await asyncio.sleep(0.01)
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        return (await engine.submit(DOG, max_new=4)).text

    async def _wait(request):
        return await request

    assert asyncio.run(main())


def test_threads_share_an_engine(model, engine):
    expected = {prompt: model.generate(prompt, max_new=9).text for prompt in (STORY, DOG, BIRD)}
    wrong = []

    def work(prompt):
        for _ in range(5):
            if engine.submit(prompt, max_new=9).text != expected[prompt]:
                wrong.append(prompt)

    threads = [threading.Thread(target=work, args=(prompt,)) for prompt in expected for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong


def test_a_python_function_in_a_plan_runs_on_the_engines_thread(model, engine):
    with model.plan() as block:
        block.layers[1].resid_post[:] = block.call(lambda x: x * 2, block.layers[1].resid_post)
    assert engine.submit(STORY, block, max_new=5).text == model.edit(block).generate(STORY, max_new=5).text

    def fail(_):
        raise ValueError("no such luck")

    with model.plan() as broken:
        broken.layers[1].resid_post[:] = broken.call(fail, broken.layers[1].resid_post)
    request, other = engine.submit(STORY, broken, max_new=5), engine.submit(STORY, max_new=5)
    with pytest.raises(pellucid.PlanError, match="no such luck"):
        request.result()
    assert other.text == model.generate(STORY, max_new=5).text


def test_bf16_captures_and_captures_in_a_file(engine, tmp_path):
    exact = engine.submit(STORY, max_new=4, capture=SITES).fetch()
    spilled = engine.submit(STORY, max_new=4, capture=SITES, capture_memory=0, capture_folder=tmp_path).fetch()
    half = engine.submit(STORY, max_new=4, capture=SITES, capture_dtype="bf16").fetch()
    for site in exact:
        np.testing.assert_array_equal(exact[site], spilled[site])
        np.testing.assert_allclose(exact[site], half[site], rtol=2**-8)
        assert half._arrays[site][0][0].bf16_bits().dtype == np.uint16
    assert any((exact[site] != half[site]).any() for site in exact)
    with pytest.raises(pellucid.InputError, match="float8"):
        engine.submit(STORY, capture_dtype="float8")
    with pytest.raises(pellucid.InputError, match="/no/such/folder"):
        engine.submit(STORY, capture=SITES, capture_memory=0, capture_folder="/no/such/folder").result()


def test_cancel_close_and_drop(model):
    engine = model.engine(max_batch=1)
    running, waiting = engine.submit(STORY, max_new=200), engine.submit(DOG, max_new=200)
    next(iter(running))
    assert engine.load.running == 1
    running.cancel()
    with pytest.raises(pellucid.Interrupted):
        running.result()
    with pytest.raises(pellucid.Interrupted):
        running.result()
    with pytest.raises(TimeoutError):
        waiting.result(timeout=0)
    engine.close()
    engine.close()
    with pytest.raises(pellucid.Interrupted):
        waiting.result()
    with pytest.raises(pellucid.InputError, match="closed"):
        engine.submit(STORY)
    with model.engine() as second:
        del second
    gc.collect()
    with model.engine() as third, third.submit(STORY, max_new=200) as request:
        pass
    assert request.done


def test_bad_requests_are_refused_at_once(model, engine):
    refused = [
        ({"prompts": ""}, "empty|tokens"),
        ({"prompts": STORY, "max_new": 0}, "max_new"),
        ({"prompts": STORY, "max_new": 10**6}, "positions|tokens"),
        ({"prompts": STORY, "capture": "layers.99.resid_post"}, "99"),
        ({"prompts": STORY, "stop": [""]}, "stop"),
        ({"prompts": STORY, "threads": 1}, "threads"),
        ({"prompts": STORY, "no_such": 1}, "no_such"),
        ({"prompts": [STORY] * 9}, "9 rows"),
        ({"prompts": STORY, "plan": {"taps": [{"site": "layers.0.resid_post", "add": [1.0]}]}}, "."),
    ]
    for arguments, message in refused:
        with pytest.raises(pellucid.Error, match=message):
            engine.submit(**arguments)
    for options, message in [({"max_batch": 0}, "max_rows"), ({"kv_bytes": -1}, "kv_bytes"), ({"queue": 0.5}, "queue")]:
        with pytest.raises(pellucid.InputError, match=message):
            model.engine(**options)
    with model.engine(kv_bytes=1000) as small, pytest.raises(pellucid.InputError, match="for KV caches"):
        small.submit(STORY)
