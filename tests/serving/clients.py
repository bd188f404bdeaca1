"""Talks to a running server with clients that we did not write; each needs its package.

Usage: python clients.py URL [openai] [langchain] [litellm] [inspect]

URL is the base of the server (`http://127.0.0.1:7117/v1`), whose model has a chat template and the aliases
`gpt-4o-mini` and `text-embedding-3-small`. Every client gets the same greedy answer to the same chat, whole and streamed.
Exits with 1 if one differs or fails.
"""

import os
import sys

CHAT = "gpt-4o-mini"
EMBEDDING = "text-embedding-3-small"
QUESTION = "Name a fruit."
OPTIONS = {"max_tokens": 16, "temperature": 0, "seed": 1}


def with_openai(url):
    from openai import OpenAI

    client = OpenAI(base_url=url, api_key="none")
    request = {"model": CHAT, "messages": [{"role": "user", "content": QUESTION}], **OPTIONS}
    whole = client.chat.completions.create(**request).choices[0].message.content
    chunks = client.chat.completions.create(**request, stream=True)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert len(client.embeddings.create(model=EMBEDDING, input=["a cat", "a dog"]).data) == 2
    return whole, streamed


def with_langchain(url):
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    chat = ChatOpenAI(base_url=url, api_key="none", model=CHAT, **OPTIONS)
    whole = chat.invoke(QUESTION).content
    streamed = "".join(chunk.content for chunk in chat.stream(QUESTION))
    # Without this option the client asks for a tokenizer of OpenAI on the network.
    embeddings = OpenAIEmbeddings(base_url=url, api_key="none", model=EMBEDDING, check_embedding_ctx_length=False)
    assert len(embeddings.embed_documents(["a cat", "a dog"])) == 2
    return whole, streamed


def with_litellm(url):
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import litellm

    request = {"model": f"openai/{CHAT}", "api_base": url, "api_key": "none", **OPTIONS}
    messages = [{"role": "user", "content": QUESTION}]
    whole = litellm.completion(messages=messages, **request).choices[0].message.content
    chunks = litellm.completion(messages=messages, stream=True, **request)
    return whole, "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def with_inspect(url):
    os.environ.update(PELLUCID_BASE_URL=url, PELLUCID_API_KEY="none")
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate

    task = Task(dataset=[Sample(input=QUESTION, target="a")], solver=generate(), scorer=includes())
    (log,) = eval(task, model=f"openai-api/pellucid/{CHAT}", display="none", log_dir="/tmp/inspect-logs", **OPTIONS)
    assert log.status == "success", log.error
    answer = log.samples[0].output.completion
    return answer, answer


CLIENTS = {"openai": with_openai, "langchain": with_langchain, "litellm": with_litellm, "inspect": with_inspect}


def main():
    url, names = sys.argv[1], sys.argv[2:] or list(CLIENTS)
    answers = {}
    for name in names:
        whole, streamed = CLIENTS[name](url)
        print(f"{name}: {whole!r}, streamed {'the same' if streamed == whole else repr(streamed)}")
        answers[name] = {whole.strip(), streamed.strip()}
    sys.exit(0 if len(set().union(*answers.values())) == 1 else 1)


if __name__ == "__main__":
    main()
