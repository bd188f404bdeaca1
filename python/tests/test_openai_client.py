"""The server with the official `openai` client: what its types read is what the server sends."""

import base64
import contextlib
import struct
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import openai
import pytest

import pellucid

COMMAND = Path(sys.executable).with_name("pellucid")
PROMPT = "Tom saw a dog. The"
MODEL = "gpt-4o-mini"


@contextlib.contextmanager
def serving(*options):
    """The URL of a server on a free port."""
    command = [COMMAND, "serve", "--addr", "127.0.0.1:0", "--alias", MODEL, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
            assert process.wait(timeout=60) == 0


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    template = tmp_path_factory.mktemp("template") / "chat.jinja"
    template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:")
    with serving("--chat-template", str(template)) as url:
        yield url


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def test_completions_have_the_text_of_the_library(client, model):
    options = {"model": MODEL, "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    whole = client.completions.create(**options)
    with model.generate(PROMPT, max_new=8) as generation:
        pass
    assert whole.choices[0].text == generation.result.text
    assert whole.usage.prompt_tokens == 6
    chunks = list(client.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage


def test_echoed_log_probabilities_are_those_of_a_forward_pass(client, model):
    answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=1, echo=True, logprobs=2, temperature=0)
    logprobs = answer.choices[0].logprobs
    with model.trace(PROMPT) as t:
        rows = t.logits.log_softmax().save()
    ids = model.to_tokens(PROMPT)
    expected = [rows.value[at - 1, ids[at]] for at in range(1, len(ids))]
    assert len(logprobs.token_logprobs) == len(ids) + 1
    assert logprobs.token_logprobs[0] is None
    np.testing.assert_allclose(logprobs.token_logprobs[1:-1], expected, atol=1e-5)
    assert "".join(logprobs.tokens) == answer.choices[0].text


def test_chats_are_streamed_with_log_probabilities(client):
    options = {
        "model": MODEL,
        "messages": [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "Hello", "name": "Tom"}],
        "max_completion_tokens": 6,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 3,
    }
    whole = client.chat.completions.create(**options)
    chunks = [chunk for chunk in client.chat.completions.create(**options, stream=True) if chunk.choices]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert [len(token.top_logprobs) for token in whole.choices[0].logprobs.content] == [3] * 6


def test_embeddings_are_the_mean_of_a_site_in_both_encodings(client, model):
    site = {"site": "layers.3.resid_post", "normalize": False}
    plain = client.embeddings.create(model=MODEL, input=PROMPT, extra_body=site, encoding_format="float")
    # The client asks for base64 if the caller asks for nothing.
    decoded = client.embeddings.create(model=MODEL, input=PROMPT, extra_body=site)
    with model.trace(PROMPT) as t:
        mean = t.layers[3].resid_post.mean(1).save()
    np.testing.assert_allclose(plain.data[0].embedding, mean.value, atol=1e-5)
    np.testing.assert_allclose(decoded.data[0].embedding, plain.data[0].embedding, atol=1e-7)


def test_captures_and_steering_travel_as_data(client, url, model):
    plan = {"taps": [{"site": "layers.2.resid_post", "scale": 0.5}, {"site": "layers.3.resid_post", "capture": True}]}
    answer = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=4, temperature=0, extra_body={"plan": plan}
    )
    (info,) = answer.captures
    assert info["tensors"][0]["shape"] == [6 + 4 - 1, 128]
    with urllib.request.urlopen(f"{url}/captures/{info['id']}") as response:
        captured = pellucid_arrays(response.read())["layers.3.resid_post"]
    with model.generate(PROMPT, max_new=4) as t:
        t.layers[2].resid_post *= 0.5
        local = t.layers[3].resid_post.save()
    assert answer.choices[0].text == t.result.text
    assert np.array_equal(captured, np.concatenate(local.value) if isinstance(local.value, list) else local.value)


def pellucid_arrays(body):
    """The arrays of a JSON answer with base64 data."""
    import json

    arrays = {}
    for tensor in json.loads(body)["tensors"]:
        data = base64.b64decode(tensor["data"])
        floats = struct.unpack(f"<{len(data) // 4}f", data)
        arrays[tensor["name"]] = np.array(floats, np.float32).reshape(tensor["shape"])
    return arrays


def test_errors_are_the_clients_own(client):
    with pytest.raises(openai.NotFoundError, match="does not exist") as unknown:
        client.completions.create(model="gpt-9", prompt="x")
    assert unknown.value.param == "model"
    with pytest.raises(openai.BadRequestError, match=r"layers\.9") as site:
        client.completions.create(model=MODEL, prompt="x", extra_body={"capture": ["layers.9.resid_post"]})
    assert site.value.param == "capture"
    with pytest.raises(openai.BadRequestError) as tools:
        client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "x"}],
            tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}],
        )
    assert tools.value.param == "tools"
    with pytest.raises(openai.BadRequestError) as hot:
        client.completions.create(model=MODEL, prompt="x", temperature=3)
    assert hot.value.param == "temperature"


def test_a_token_is_needed_where_one_is_set(tmp_path):
    token = tmp_path / "token"
    token.write_text("a-token-of-24-characters\n")
    with serving("--token-file", str(token)) as url:
        with openai.OpenAI(base_url=url, api_key="wrong", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError):
                client.models.list()
        with openai.OpenAI(base_url=url, api_key="a-token-of-24-characters", max_retries=0) as client:
            assert MODEL in [model.id for model in client.models.list()]


def test_the_model_of_the_fixture_is_the_served_one(url, model):
    assert pellucid.load().name == model.name
    with urllib.request.urlopen(url.removesuffix("/v1") + "/health") as response:
        assert response.status == 200
