# SPDX-License-Identifier: Apache-2.0
"""anthropic-sdk-python: /v1/messages."""
import json

import anthropic

from client_tests.checks import QUESTION, WEATHER, check, equal, raises, strict, valid

TOOLS = [{"name": "weather", "description": "Weather of a city", "input_schema": WEATHER}]
CALL = '<tool_call>\\n\\{"name": "weather", "arguments": \\{"city": "Rome", "days": 2\\}\\}\\n' \
       "</tool_call>"


def connect(server):
    return anthropic.Anthropic(base_url=server.url, api_key=server.key or "none", max_retries=0)


def ask(server, **options):
    fields = {"model": server.name, "messages": QUESTION, "max_tokens": 24, **options}
    return connect(server).messages.create(**fields)


def prompt_tokens(usage):
    """As Anthropic counts: what came out of the cache is not in input_tokens."""
    return usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_models(servers):
    models = list(connect(servers["chat"]).models.list())
    equal([(m.type, m.id, m.display_name) for m in models], [("model", "chat-model", "chat-model")])
    equal(connect(servers["chat"]).models.retrieve("chat-model").created_at, models[0].created_at)


def test_create(servers):
    message = strict(ask(servers["chat"]))
    equal((message.type, message.role, message.stop_reason), ("message", "assistant",
                                                              "max_tokens"))
    equal([c.type for c in message.content], ["text"])
    equal(message.usage.output_tokens, 24)


def test_stream_events(servers):
    fields = {"extra_body": {"seed": 3}}
    whole = ask(servers["chat"], **fields)
    events = [strict(e) for e in ask(servers["chat"], stream=True, **fields)]
    types = [e.type for e in events]
    equal(types[:3], ["message_start", "content_block_start", "content_block_delta"])
    equal(types[-3:], ["content_block_stop", "message_delta", "message_stop"])
    equal("".join(e.delta.text for e in events if e.type == "content_block_delta"),
          whole.content[0].text)
    equal(events[-2].usage.output_tokens, whole.usage.output_tokens)


def test_stream_helper(servers):
    fields = {"model": "chat-model", "messages": QUESTION, "max_tokens": 24,
              "extra_body": {"seed": 3}}
    with connect(servers["chat"]).messages.stream(**fields) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    equal(final.content[0].text, text)
    equal(final.stop_reason, "max_tokens")
    whole = connect(servers["chat"]).messages.create(**fields)
    equal(text, whole.content[0].text)
    equal(prompt_tokens(final.usage), prompt_tokens(whole.usage))


def test_counts_agree(servers):
    client = connect(servers["tools"])
    for options in ({}, {"system": "Be short."}, {"tools": TOOLS}):
        fields = {"model": "tool-model", "messages": QUESTION, **options}
        counted = strict(client.messages.count_tokens(**fields)).input_tokens
        for _ in range(2):  # The second finds the prompt in the cache.
            usage = client.messages.create(**fields, max_tokens=1).usage
            equal(prompt_tokens(usage), counted)


def test_cached_prompt(servers):
    fields = {"messages": [{"role": "user", "content": "A cat and a dog went out. " * 12}],
              "max_tokens": 1}
    ask(servers["chat"], **fields)
    usage = ask(servers["chat"], **fields).usage
    check(usage.cache_read_input_tokens > usage.input_tokens > 0)


def test_stop_sequences(servers):
    fields = {"extra_body": {"temperature": 0}, "max_tokens": 40}
    free = ask(servers["chat"], **fields).content[0].text
    word = free.split()[5]
    message = strict(ask(servers["chat"], stop_sequences=[word], **fields))
    equal((message.stop_reason, message.stop_sequence), ("stop_sequence", word))
    equal(message.content[0].text, free[:free.index(word)])


def test_system_and_turns(servers):
    messages = [*QUESTION, {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]},
                {"role": "user", "content": [{"type": "text", "text": "And then?"}]}]
    strict(ask(servers["chat"], messages=messages, system=[
        {"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}]))


def test_tools(servers):
    fields = {"tools": TOOLS, "max_tokens": 100}
    for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
        message = strict(ask(servers["tools"], tool_choice=choice, **fields))
        equal((message.stop_reason, [c.type for c in message.content]), ("tool_use", ["tool_use"]))
        use = message.content[0]
        valid(json.dumps(use.input), WEATHER)
    with connect(servers["tools"]).messages.stream(
            model="tool-model", messages=QUESTION, tool_choice={"type": "any"}, **fields) as stream:
        final = stream.get_final_message()
    valid(json.dumps(final.content[0].input), WEATHER)
    history = [*QUESTION, {"role": "assistant", "content": [c.to_dict() for c in message.content]},
               {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id,
                                             "content": "21 degrees"}]}]
    strict(ask(servers["tools"], messages=history, tools=TOOLS))


def test_auto_and_none(servers):
    fields = {"tools": TOOLS, "max_tokens": 100, "extra_body": {"guided_regex": CALL}}
    equal(ask(servers["tools"], **fields).content[0].input, {"city": "Rome", "days": 2})
    none = ask(servers["tools"], tool_choice={"type": "none"}, **fields)
    equal((none.stop_reason, none.content[0].type), ("end_turn", "text"))


def test_thinking(servers):
    fields = {"max_tokens": 60,
              "extra_body": {"guided_regex": "<think>[a-z]{5}</think>[A-Z]{4}"}}
    message = strict(ask(servers["tools"], **fields))
    equal([c.type for c in message.content], ["thinking", "text"])
    equal((len(message.content[0].thinking), len(message.content[1].text)), (5, 4))
    with connect(servers["tools"]).messages.stream(model="tool-model", messages=QUESTION,
                                                   **fields) as stream:
        final = stream.get_final_message()
    equal([c.type for c in final.content], ["thinking", "text"])
    history = [*QUESTION, {"role": "assistant", "content": [c.to_dict() for c in final.content]},
               {"role": "user", "content": "And?"}]
    strict(ask(servers["tools"], messages=history))


def test_structured_output(servers):
    form = {"format": {"type": "json_schema", "schema": WEATHER}}
    message = strict(ask(servers["chat"], output_config=form, max_tokens=100))
    valid(message.content[0].text, WEATHER)


def test_models(servers):
    client = connect(servers["chat"])
    equal([m.id for m in client.models.list()], ["chat-model"])
    equal(client.models.retrieve("chat-model").id, "chat-model")


def test_errors(servers):
    with raises(anthropic.NotFoundError, "not_found_error"):
        ask(servers["chat"], model="another")
    for options in ({"messages": []}, {"max_tokens": 0}, {"extra_body": {"temperature": -1}},
                    {"messages": [{"role": "nobody", "content": "x"}]},
                    {"tools": [{"description": "x"}]}):
        with raises(anthropic.BadRequestError, "invalid_request_error"):
            ask(servers["chat"], **options)
    with raises(anthropic.BadRequestError, "prompt is too long"):
        ask(servers["chat"], messages=[{"role": "user", "content": "cat " * 20000}])
    client = anthropic.Anthropic(base_url=servers["tools"].url, api_key="wrong", max_retries=0)
    with raises(anthropic.AuthenticationError, "authentication_error"):
        client.messages.create(model="tool-model", messages=QUESTION, max_tokens=2)


def test_cancel(servers):
    server = servers["chat"]
    with connect(server).messages.stream(model=server.name, messages=QUESTION, max_tokens=4000,
                                         extra_body={"ignore_eos": True}) as stream:
        for _, unused in zip(range(6), stream):
            pass
        equal(server.metric("num_requests_running"), 1)
    server.wait_idle(1)
