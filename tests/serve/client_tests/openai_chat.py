# SPDX-License-Identifier: Apache-2.0
"""openai-python: /v1/chat/completions without tools."""
import openai

from client_tests.checks import PERSON, QUESTION, check, equal, raises, strict, valid


def connect(server, **options):
    return openai.OpenAI(base_url=server.url + "/v1", api_key=server.key or "none", max_retries=0,
                         **options)


def ask(server, **options):
    fields = {"model": server.name, "messages": QUESTION, "max_tokens": 24, **options}
    return connect(server).chat.completions.create(**fields)


def joined(stream, index=0):
    """The text and the last finish_reason of one choice."""
    text, finish = "", None
    for chunk in stream:
        strict(chunk)
        for choice in chunk.choices:
            if choice.index == index:
                check(finish is None, "a chunk behind the end")
                text += choice.delta.content or ""
                finish = choice.finish_reason
    return text, finish


def test_whole(servers):
    answer = strict(ask(servers["chat"]))
    choice = answer.choices[0]
    equal((answer.object, answer.model), ("chat.completion", "chat-model"))
    equal((choice.message.role, choice.finish_reason), ("assistant", "length"))
    check(choice.message.content)
    usage = answer.usage
    equal(usage.completion_tokens, 24)
    equal(usage.total_tokens, usage.prompt_tokens + 24)


def test_stream_is_whole(servers):
    whole = ask(servers["chat"], seed=5).choices[0]
    text, finish = joined(ask(servers["chat"], seed=5, stream=True))
    equal((text, finish), (whole.message.content, whole.finish_reason))


def test_stream_helper(servers):
    client = connect(servers["chat"])
    # The helper refuses answers that max_tokens cuts.
    with client.chat.completions.stream(model="chat-model", messages=QUESTION, max_tokens=40,
                                        extra_body={"guided_regex": "[A-Za-z ]{8,16}"}) as stream:
        text = "".join(e.delta for e in stream if e.type == "content.delta")
        equal(stream.get_final_completion().choices[0].message.content, text)


def test_several_answers(servers):
    answer = strict(ask(servers["chat"], n=2, seed=3))
    equal([c.index for c in answer.choices], [0, 1])
    texts = [c.message.content for c in answer.choices]
    check(texts[0] != texts[1])
    equal(answer.usage.completion_tokens, 48)
    for index in (0, 1):
        stream = ask(servers["chat"], n=2, seed=3, stream=True)
        equal(joined(stream, index), (texts[index], "length"))


def test_seed(servers):
    texts = [ask(servers["chat"], seed=s, temperature=1).choices[0].message.content
             for s in (7, 7, 8)]
    equal(texts[0], texts[1])
    check(texts[0] != texts[2])


def test_stop(servers):
    free = ask(servers["chat"], temperature=0, max_tokens=40).choices[0].message.content
    word = free.split()[5]
    for stream in (False, True):
        answer = ask(servers["chat"], temperature=0, max_tokens=40, stop=[word], stream=stream)
        text, finish = joined(answer) if stream else (answer.choices[0].message.content,
                                                      answer.choices[0].finish_reason)
        equal((text, finish), (free[:free.index(word)], "stop"))


def test_logprobs(servers):
    fields = {"logprobs": True, "top_logprobs": 3, "temperature": 0, "max_tokens": 12}
    answer = strict(ask(servers["chat"], **fields)).choices[0]
    content = answer.logprobs.content
    equal(len(content), 12)
    for item in content:
        equal(len(item.top_logprobs), 3)
        equal(item.logprob, max(t.logprob for t in item.top_logprobs))  # It is greedy.
        check(item.logprob <= 0)
    written = b"".join(bytes(item.bytes) for item in content).decode(errors="ignore")
    equal(written.strip(), answer.message.content.strip())
    streamed = [item for chunk in ask(servers["chat"], stream=True, **fields)
                for c in chunk.choices if c.logprobs for item in c.logprobs.content]
    equal([i.token for i in streamed], [i.token for i in content])
    check(all(abs(a.logprob - b.logprob) < 1e-5 for a, b in zip(streamed, content)))


def test_max_tokens(servers):
    for field in ("max_tokens", "max_completion_tokens"):
        fields = {"max_tokens": openai.NOT_GIVEN, field: 3, "logprobs": True}
        answer = ask(servers["chat"], **fields)
        equal((answer.usage.completion_tokens, len(answer.choices[0].logprobs.content)), (3, 3))


def test_usage_in_stream(servers):
    whole = ask(servers["chat"], seed=1)
    chunks = list(ask(servers["chat"], seed=1, stream=True,
                      stream_options={"include_usage": True}))
    check(all(c.usage is None for c in chunks[:-1]))
    equal(chunks[-1].choices, [])
    equal((chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens),
          (whole.usage.prompt_tokens, whole.usage.completion_tokens))
    equal(len({c.id for c in chunks}), 1)


def test_json_schema(servers):
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON,
                                                   "strict": True}}
    answer = ask(servers["chat"], response_format=form, max_tokens=200)
    equal(answer.choices[0].finish_reason, "stop")
    valid(answer.choices[0].message.content, PERSON)
    text, finish = joined(ask(servers["chat"], response_format=form, max_tokens=200, stream=True))
    valid(text, PERSON)
    equal(finish, "stop")


def test_parsed_model(servers):
    import pydantic

    class Point(pydantic.BaseModel):
        x: int = pydantic.Field(ge=0, le=99)
        label: str = pydantic.Field(max_length=8)

    answer = connect(servers["chat"]).chat.completions.parse(
        model="chat-model", messages=QUESTION, response_format=Point, max_tokens=100)
    check(0 <= answer.choices[0].message.parsed.x <= 99)


def test_json_object(servers):
    for seed in range(3):
        # A small model may write whitespace and text forever: what is whole must be an object.
        answer = ask(servers["chat"], response_format={"type": "json_object"}, max_tokens=400,
                     temperature=0.2, seed=seed).choices[0]
        if answer.finish_reason == "stop":
            valid(answer.message.content, {"type": "object"})
            return
    raise AssertionError("three answers without an end")


def test_several_messages(servers):
    messages = [{"role": "system", "content": "Be short."}, *QUESTION,
                {"role": "assistant", "content": "There was a cat."},
                {"role": "user", "content": [{"type": "text", "text": "And"},
                                             {"type": "text", "text": " then?"}]}]
    longer = strict(ask(servers["chat"], messages=messages)).usage.prompt_tokens
    check(longer > ask(servers["chat"]).usage.prompt_tokens)


def test_logit_bias(servers):
    server = servers["chat"]
    greedy = ask(server, temperature=0, max_tokens=1, logprobs=True).choices[0]
    client = connect(server)
    ids = client.post("/../tokenize", cast_to=object, body={
        "prompt": greedy.logprobs.content[0].token, "add_special_tokens": False})["tokens"]
    answer = ask(server, temperature=0, max_tokens=1, logit_bias={str(ids[0]): -100})
    check(answer.choices[0].message.content != greedy.message.content)


def test_errors(servers):
    server = servers["chat"]
    with raises(openai.NotFoundError, "model_not_found"):
        ask(server, model="another")
    for field, value in [("temperature", -1), ("top_p", -1), ("n", 0), ("max_tokens", 0),
                         ("messages", []), ("messages", [{"role": "user"}]), ("stop", 5),
                         ("presence_penalty", 500), ("logit_bias", {"x": 1}), ("top_logprobs", 99),
                         ("response_format", {"type": "json_schema", "json_schema": {
                             "name": "x", "schema": {"type": "nonsense"}}})]:
        try:
            ask(server, **{field: value})
        except openai.BadRequestError as error:
            equal((field, error.param), (field, field))
        else:
            raise AssertionError(f"{field} = {value} is taken")
    with raises(openai.BadRequestError, "context_length_exceeded"):
        ask(server, messages=[{"role": "user", "content": "cat " * 20000}])
    with raises(openai.NotFoundError):
        connect(server).get("/nothing", cast_to=object)


def test_key(servers):
    server = servers["tools"]
    ask(server, max_tokens=2)
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0)
    with raises(openai.AuthenticationError, "invalid_api_key"):
        client.models.list()


def test_cancel_in_stream(servers):
    server = servers["chat"]
    stream = ask(server, stream=True, max_tokens=4000, extra_body={"ignore_eos": True})
    for _, unused in zip(range(4), stream):
        pass
    equal(server.metric("num_requests_running"), 1)
    stream.close()
    server.wait_idle(1)


def test_cancel_whole(servers):
    server = servers["chat"]
    with raises(openai.APITimeoutError):
        connect(server, timeout=0.5).chat.completions.create(
            model=server.name, messages=QUESTION, max_tokens=4000,
            extra_body={"ignore_eos": True})
    server.wait_idle(1)
