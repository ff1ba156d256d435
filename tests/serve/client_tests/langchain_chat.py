# SPDX-License-Identifier: Apache-2.0
"""langchain-openai: ChatOpenAI, OpenAI and OpenAIEmbeddings."""
import json

import langchain_openai

from client_tests.checks import WEATHER, check, equal, valid


def connect(server, **options):
    return langchain_openai.ChatOpenAI(model=server.name, base_url=server.url + "/v1",
                                       api_key=server.key or "none", max_retries=0,
                                       **{"max_tokens": 24, **options})


def test_invoke_and_stream(servers):
    model = connect(servers["chat"], seed=3, stream_usage=True)
    answer = model.invoke("Tell me about cats.")
    equal(answer.usage_metadata["output_tokens"], 24)
    chunks = list(model.stream("Tell me about cats."))
    equal("".join(c.content for c in chunks), answer.content)
    equal([c.usage_metadata["output_tokens"] for c in chunks if c.usage_metadata][-1], 24)


def test_batch(servers):
    answers = connect(servers["chat"], temperature=0).batch(["Cats", "Dogs", "Birds"])
    check(all(a.content for a in answers))


def test_tools(servers):
    model = connect(servers["tools"], max_tokens=100)
    tool = {"name": "weather", "description": "Weather of a city", "parameters": WEATHER}
    bound = model.bind_tools([tool], tool_choice="required")
    call = bound.invoke("Weather?").tool_calls[0]
    equal(call["name"], "weather")
    check(call["args"]["city"] in ("Paris", "Rome"))
    whole = None
    for chunk in bound.stream("Weather?"):
        whole = chunk if whole is None else whole + chunk
    check(whole.tool_calls[0]["args"]["city"] in ("Paris", "Rome"))


def test_structured_output(servers):
    schema = {"title": "weather", "description": "Weather of a city", **WEATHER}
    for server, method in (("chat", "json_schema"), ("tools", "function_calling")):
        model = connect(servers[server], max_tokens=200)
        value = model.with_structured_output(schema, method=method).invoke("Weather?")
        valid(json.dumps(value), WEATHER)


def test_responses(servers):
    answer = connect(servers["chat"], use_responses_api=True).invoke("Tell me about cats.")
    check(answer.text)
    chunks = list(connect(servers["chat"], use_responses_api=True).stream("Tell me about cats."))
    check(any(c.text for c in chunks))


def test_text_and_embeddings(servers):
    server = servers["chat"]
    fields = {"model": server.name, "base_url": server.url + "/v1", "api_key": "none"}
    check(langchain_openai.OpenAI(max_tokens=8, **fields).invoke("A cat"))
    # Token ids of OpenAI's own tokenizer would mean other texts here.
    vectors = langchain_openai.OpenAIEmbeddings(check_embedding_ctx_length=False, **fields)
    equal(len(vectors.embed_documents(["A cat", "A dog"])), 2)
