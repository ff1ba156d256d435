# SPDX-License-Identifier: Apache-2.0
"""openai-python: /v1/responses."""
import openai

from client_tests.checks import PERSON, WEATHER, check, equal, raises, strict, valid
from client_tests.openai_chat import connect

TOOLS = [{"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}]


def respond(server, **options):
    fields = {"model": server.name, "input": "Write a short story about a cat.",
              "max_output_tokens": 24, **options}
    return connect(server).responses.create(**fields)


def check_order(events):
    """Numbers are in order, and what is open is closed before the next begins."""
    equal([e.sequence_number for e in events], list(range(len(events))))
    types = [e.type for e in events]
    equal(types[:2], ["response.created", "response.in_progress"])
    check(types[-1] in ("response.completed", "response.incomplete"), types[-1])
    open_item = None
    for event in events[2:-1]:
        if event.type == "response.output_item.added":
            check(open_item is None, "an item begins inside another")
            open_item = event.output_index
        else:
            equal(event.output_index, open_item)
        if event.type == "response.output_item.done":
            open_item = None
    check(open_item is None, "an item has no end")


def test_whole(servers):
    response = strict(respond(servers["chat"], instructions="Be short."))
    equal((response.object, response.status), ("response", "incomplete"))
    equal(response.incomplete_details.reason, "max_output_tokens")
    check(response.output_text and response.output[0].role == "assistant")
    equal(response.usage.output_tokens, 24)
    equal(response.usage.total_tokens, response.usage.input_tokens + 24)


def test_stream(servers):
    whole = respond(servers["tools"], extra_body={"seed": 4})
    events = [strict(e) for e in respond(servers["tools"], stream=True, extra_body={"seed": 4})]
    check_order(events)
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    equal(text, whole.output_text)
    equal(events[-1].response.output_text, text)
    equal(events[-1].response.usage.output_tokens, whole.usage.output_tokens)


def test_stream_helper(servers):
    client = connect(servers["chat"])
    with client.responses.stream(model="chat-model", input="Hello", max_output_tokens=12) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
    check(text)


def test_stream_helper_final(servers):
    form = {"guided_regex": "[A-Z]{4}"}
    client = connect(servers["tools"])
    with client.responses.stream(model="tool-model", input="Hello", max_output_tokens=40,
                                 extra_body=form) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        equal(stream.get_final_response().output_text, text)
    equal(len(text), 4)


def test_tools(servers):
    fields = {"tools": TOOLS, "tool_choice": "required", "max_output_tokens": 100}
    response = strict(respond(servers["tools"], **fields))
    equal((response.status, [o.type for o in response.output]), ("completed", ["function_call"]))
    call = response.output[0]
    valid(call.arguments, WEATHER)
    events = [strict(e) for e in respond(servers["tools"], stream=True, **fields)]
    check_order(events)
    done = [e for e in events if e.type == "response.function_call_arguments.done"]
    valid(done[0].arguments, WEATHER)
    equal("".join(e.delta for e in events if e.type == "response.function_call_arguments.delta"),
          done[0].arguments)
    # The conversation goes on with the call and its result.
    history = [{"role": "user", "content": "Weather?"}, call.to_dict(),
               {"type": "function_call_output", "call_id": call.call_id, "output": "21"}]
    check(strict(respond(servers["tools"], input=history, tools=TOOLS)).output_text is not None)


def test_tools_with_helper(servers):
    with connect(servers["tools"]).responses.stream(
            model="tool-model", input="Weather?", tools=TOOLS, tool_choice="required",
            max_output_tokens=100) as stream:
        for event in stream:
            strict(event)
        valid(stream.get_final_response().output[0].arguments, WEATHER)


def test_reasoning(servers):
    form = {"guided_regex": "<think>[a-z]{5}</think>[A-Z]{4}"}
    fields = {"max_output_tokens": 60, "extra_body": form}
    response = strict(respond(servers["tools"], **fields))
    equal([o.type for o in response.output], ["reasoning", "message"])
    equal(len(response.output_text), 4)
    events = [strict(e) for e in respond(servers["tools"], stream=True, **fields)]
    check_order(events)
    equal([o.type for o in events[-1].response.output], ["reasoning", "message"])
    with connect(servers["tools"]).responses.stream(model="tool-model", input="Hello",
                                                    **fields) as stream:
        equal(len(stream.get_final_response().output_text), 4)
    history = [{"role": "user", "content": "Hi"}, *[o.to_dict() for o in response.output],
               {"role": "user", "content": "And?"}]
    strict(respond(servers["tools"], input=history))


def test_json_schema(servers):
    form = {"format": {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}}
    response = strict(respond(servers["chat"], text=form, max_output_tokens=200))
    valid(response.output_text, PERSON)


def test_errors(servers):
    with raises(openai.NotFoundError, "model_not_found"):
        respond(servers["chat"], model="another")
    for field, value in [("input", []), ("max_output_tokens", 0), ("previous_response_id", "x"),
                         ("temperature", -1), ("tools", [{"type": "function"}])]:
        try:
            respond(servers["chat"], **{field: value})
        except openai.BadRequestError as error:
            equal((field, error.param), (field, field))
        else:
            raise AssertionError(f"{field} = {value} is taken")


def test_cancel(servers):
    stream = respond(servers["chat"], stream=True, max_output_tokens=4000,
                     extra_body={"ignore_eos": True})
    for _, unused in zip(range(8), stream):
        pass
    equal(servers["chat"].metric("num_requests_running"), 1)
    stream.close()
    servers["chat"].wait_idle(1)
