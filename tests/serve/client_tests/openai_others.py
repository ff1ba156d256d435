# SPDX-License-Identifier: Apache-2.0
"""openai-python: /v1/completions, /v1/embeddings and /v1/models."""
import math

import openai

from client_tests.checks import check, equal, raises, strict
from client_tests.openai_chat import connect


def complete(server, prompt="Once upon a time", **options):
    fields = {"model": server.name, "max_tokens": 8, "temperature": 0, **options}
    return connect(server).completions.create(prompt=prompt, **fields)


def ids_of(server, text):
    return connect(server).post("/../tokenize", cast_to=object, body={"prompt": text})["tokens"]


def test_completion_and_stream(servers):
    whole = strict(complete(servers["chat"]))
    equal((whole.object, whole.usage.completion_tokens), ("text_completion", 8))
    chunks = list(complete(servers["chat"], stream=True, stream_options={"include_usage": True}))
    text = "".join(c.text for chunk in chunks for c in chunk.choices)
    equal(text, whole.choices[0].text)
    equal(chunks[-1].usage.total_tokens, whole.usage.total_tokens)


def test_list_of_prompts(servers):
    texts = ["Once upon a time", "The sky is", "A cat"]
    many = strict(complete(servers["chat"], texts)).choices
    equal([c.index for c in many], [0, 1, 2])
    equal([c.text for c in many],
          [complete(servers["chat"], text).choices[0].text for text in texts])
    twice = complete(servers["chat"], texts, n=2, temperature=1).choices
    equal([c.index for c in twice], list(range(6)))


def test_token_ids(servers):
    server = servers["chat"]
    texts = ["Once upon a time", "The sky is"]
    expected = [c.text for c in complete(server, texts).choices]
    ids = [ids_of(server, text) for text in texts]
    equal(complete(server, ids[0]).choices[0].text, expected[0])
    equal([c.text for c in complete(server, ids).choices], expected)
    returned = complete(server, extra_body={"return_token_ids": True}).choices[0]
    equal(len(returned.token_ids), 8)


def test_echo_with_logprobs(servers):
    server, text = servers["chat"], "The sky is blue, é and 猫."
    scored = complete(server, text, max_tokens=0, echo=True, logprobs=2).choices[0]
    equal(scored.text, text)
    logprobs, ids = scored.logprobs, ids_of(server, text)
    equal(len(logprobs.tokens), len(ids))
    equal((logprobs.token_logprobs[0], logprobs.top_logprobs[0]), (None, None))
    check(all(p <= 0 for p in logprobs.token_logprobs[1:]))
    # Pieces of characters have one text, U+FFFD.
    check(all(1 <= len(t) <= 3 for t in logprobs.top_logprobs[1:]))
    # With tokens behind the prompt, the prompt's own are the same.
    longer = complete(server, text, max_tokens=3, echo=True, logprobs=2).choices[0]
    check(longer.text.startswith(text) and len(longer.logprobs.tokens) == len(ids) + 3)
    equal(longer.logprobs.token_logprobs[:len(ids)], logprobs.token_logprobs)
    # Each written token has the probability that the echo of the whole gives it.
    again = complete(server, ids + ids_behind(server, ids), max_tokens=0, echo=True, logprobs=0)
    check(all(abs(a - b) < 1e-4 for a, b in zip(longer.logprobs.token_logprobs[1:],
                                                again.choices[0].logprobs.token_logprobs[1:])))


def ids_behind(server, ids):
    answer = complete(server, ids, max_tokens=3, extra_body={"return_token_ids": True})
    return answer.choices[0].token_ids


def test_embeddings(servers):
    client = connect(servers["chat"])
    texts = ["A cat sleeps.", "A dog sleeps.", "Stock prices fell."]
    fields = {"model": "chat-model", "input": texts}
    plain = strict(client.embeddings.create(**fields))  # The client asks for base64 itself.
    floats = client.embeddings.create(**fields, encoding_format="float")
    equal([d.index for d in plain.data], [0, 1, 2])
    for a, b in zip(plain.data, floats.data):
        check(all(abs(x - y) < 1e-6 for x, y in zip(a.embedding, b.embedding)))
        check(abs(math.fsum(x * x for x in b.embedding) - 1) < 1e-5)
    product = [math.fsum(x * y for x, y in zip(floats.data[0].embedding, d.embedding))
               for d in floats.data]
    check(product[1] > product[2], "likeness", product)
    equal(plain.usage.prompt_tokens, sum(len(ids_of(servers["chat"], t)) for t in texts))
    single = client.embeddings.create(model="chat-model", input=ids_of(servers["chat"], texts[0]))
    check(all(abs(x - y) < 1e-5 for x, y in zip(single.data[0].embedding,
                                                plain.data[0].embedding)))


def test_models(servers):
    client = connect(servers["chat"])
    equal([strict(m).id for m in client.models.list()], ["chat-model"])
    equal(strict(client.models.retrieve("chat-model")).owned_by, "nibble")
    with raises(openai.NotFoundError, "model_not_found"):
        client.models.retrieve("another")


def test_errors(servers):
    server = servers["chat"]
    for field, value in [("prompt", []), ("prompt", {}), ("prompt", [[]]), ("suffix", "x"),
                         ("max_tokens", -1), ("logprobs", 99), ("best_of", 3),
                         ("prompt", [1 << 30]), ("prompt", [-1])]:
        try:
            complete(server, **{field: value})
        except openai.BadRequestError as error:
            equal((field, value, error.param), (field, value, field))
        else:
            raise AssertionError(f"{field} = {value} is taken")
    with raises(openai.BadRequestError, "encoding_format"):
        connect(server).embeddings.create(model=server.name, input="x", encoding_format="bits")
