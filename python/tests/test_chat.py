"""Conversations as prompts, and the text of generated rows."""

from __future__ import annotations

import numpy as np
import pytest

import pellucid

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
MESSAGES = [
    {"role": "user", "content": " Tom saw a dog. "},
    {"role": "assistant", "content": "It was big."},
    {"role": "user", "content": "Lily saw a bird."},
]
SITE = "layers.3.resid_post"


@pytest.fixture(scope="module")
def chat(model):
    return model.chat(MESSAGES, chat_template=TEMPLATE)


def test_spans_cover_every_token_once(model, chat):
    assert chat == model.to_tokens(model.to_tokens(list(chat)))
    covered = [at for span in chat.spans for part in span[1:] for at in part] + list(chat.generation_prompt)
    assert covered == list(range(len(chat)))
    assert [span.role for span in chat.spans] == ["user", "assistant", "user"]
    for span, message in zip(chat.spans, MESSAGES, strict=True):
        content = model.to_string(chat[span.content.start : span.content.stop])
        assert content.strip() == message["content"].strip()
    assert chat.positions(role="user") == chat.positions(0) + chat.positions(-1)
    assert chat.positions(1, part="all") == [at for part in chat.spans[1][1:] for at in part]


def test_positions_of_messages_in_traces_plans_and_captures(model, chat):
    with model.trace(chat) as t:
        whole = t.layers[3].resid_post.save()
        message = t.layers[3].resid_post[:, {"message": 1}].save()
    expected = whole.value[list(chat.spans[1].content)]
    assert np.array_equal(message.value, expected)
    assert np.array_equal(model.run(chat, capture=SITE, positions={"message": 1})[SITE], expected)
    plan = {"taps": [{"site": SITE, "positions": {"message": 1}, "capture": True}]}
    assert np.array_equal(model.run(chat, plan)[SITE], expected)
    captures = model.run(chat, capture=[SITE, "layers.2.z"])
    assert np.array_equal(captures.message(1, SITE), expected)
    assert np.array_equal(captures.message(1, layer=3), expected)
    with pytest.raises(pellucid.InputError, match="a site or a layer"):
        captures.message(1)
    assert len(captures.message(-1, "layers.2.z")) == len(chat.spans[2].content)
    # The positions of attention are its queries: [heads, queries, keys].
    attention = model.run(chat, capture="layers.2.attn_probs")
    queries = attention["layers.2.attn_probs"][:, list(chat.spans[2].content)]
    assert np.array_equal(attention.message(-1, "layers.2.attn_probs"), queries)
    assert captures.spans == chat.spans
    # Each row of a batch has its own positions.
    other = model.chat(MESSAGES[:2], chat_template=TEMPLATE)
    rows = model.run([chat, other], capture=SITE, positions={"role": "user"})[SITE]
    assert [len(row) for row in rows] == [len(chat.positions(role="user")), len(other.positions(0))]
    with model.generate(chat, max_new=3) as g:
        cache = g.cache(SITE)
    assert np.array_equal(cache.message(1, SITE), expected)
    assert g.result.spans == chat.spans


def test_the_final_message_can_be_continued(model):
    chat = model.chat(MESSAGES, chat_template=TEMPLATE, continue_final_message=True)
    assert chat.text.endswith("Lily saw a bird.")
    assert len(chat.generation_prompt) == 0
    assert chat.spans[-1].footer == range(len(chat), len(chat))


def test_template_variables(model):
    chat = model.chat(MESSAGES, chat_template="{{ mood }}" + TEMPLATE, mood="happy")
    assert chat.text.startswith("happyuser:")


def test_chats_that_cannot_be_used_are_errors(model, chat):
    with pytest.raises(pellucid.InputError, match="there is no message 7"):
        chat.positions(7)
    with pytest.raises(pellucid.InputError, match="no part"):
        chat.positions(0, part="middle")
    with pytest.raises(pellucid.InputError, match="either `message` or `role`"):
        chat.positions()
    with pytest.raises(pellucid.InputError, match="message 0: missing field"):
        model.chat([{"role": "user"}], chat_template=TEMPLATE)
    with pytest.raises(pellucid.InputError, match="not a chat"):
        model.run("Tom", capture=SITE, positions={"message": 0})
    with pytest.raises(pellucid.Error, match="not a chat"):
        model.run("Tom", {"taps": [{"site": SITE, "positions": {"message": 0}, "capture": True}]})
    with pytest.raises(pellucid.InputError, match="not a chat"), model.trace("Tom") as t:
        t.layers[3].resid_post[:, {"message": 0}].save()
    twice = model.chat(MESSAGES, chat_template="{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}")
    assert model.generate(twice, max_new=1).text
    with pytest.raises(pellucid.InputError, match=r"message 0 \(user\) .* more than once"):
        _ = twice.spans


@pytest.mark.parametrize("stop", [[], ["zzz"], [" was"], ["dog w"], ["o"], [" "], ["og", "g"], ["g", "og w"]])
def test_r1_pieces_concatenate_to_the_text(model, stop):
    for seed in range(4):
        pieces: dict[int, str] = {0: "", 1: ""}

        def watch(row, token, text, pieces=pieces):
            pieces[row] += text or ""

        prompts = ["Tom saw a dog. The", "Lily saw a bird. The"]
        results = model.generate(prompts, max_new=15, stop=stop, temperature=0.9, seed=seed, watch=watch).result
        for row, result in enumerate(results):
            assert pieces[row] == result.text
            assert not any(text in result.text for text in stop)
            whole = model.to_string(result.tokens, skip_special=True)
            assert whole.startswith(result.text)
            assert (result.finish == "stop") == any(text in whole for text in stop)


def test_r13_a_conversation_has_a_system_prompt_turns_variables_and_a_start_of_the_answer(model):
    template = TEMPLATE.replace("assistant:", "{{ name | default('assistant') }}:")
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Tom saw a dog."},
        {"role": "assistant", "content": "The dog"},
    ]
    asked = model.chat(turns[:2], chat_template=template, name="Lily")
    continued = model.chat(turns, chat_template=template, continue_final_message=True)
    assert model.to_string(list(asked)) == "system: Be brief.\nuser: Tom saw a dog.\nLily:"
    assert model.to_string(list(continued)) == "system: Be brief.\nuser: Tom saw a dog.\nassistant: The dog"
    # Several conversations and prompts are rows of one call.
    prompts = [asked, continued, "Tom saw a dog. The"]
    together = model.generate(prompts, max_new=4).result
    for prompt, row in zip(prompts, together, strict=True):
        assert list(row.tokens) == list(model.generate(prompt, max_new=4).result.tokens)
