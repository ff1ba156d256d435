# SPDX-License-Identifier: Apache-2.0
"""openai-python: tools and reasoning."""
import json

import openai

from client_tests.checks import QUESTION, WEATHER, check, equal, raises, strict, valid
from client_tests.openai_chat import ask, connect

TIME = {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"],
        "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Weather of a city",
                                           "parameters": WEATHER}},
         {"type": "function", "function": {"name": "time", "parameters": TIME}}]
SCHEMAS = {"weather": WEATHER, "time": TIME}


def test_template_of_server(servers):
    template = json.loads(servers["tools"].get("/props"))["chat_template"]
    check("<tool_call>" in template)


def test_required(servers):
    for seed in range(4):
        answer = strict(ask(servers["tools"], tools=TOOLS, tool_choice="required", seed=seed,
                            max_tokens=100)).choices[0]
        equal((answer.finish_reason, answer.message.content), ("tool_calls", None))
        call = answer.message.tool_calls[0]
        check(call.id and call.type == "function")
        valid(call.function.arguments, SCHEMAS[call.function.name])


def test_named(servers):
    choice = {"type": "function", "function": {"name": "time"}}
    for stream in (False, True):
        answer = ask(servers["tools"], tools=TOOLS, tool_choice=choice, max_tokens=100,
                     stream=stream)
        if stream:
            name, arguments, finish = streamed_call(answer)
        else:
            function = answer.choices[0].message.tool_calls[0].function
            name, arguments = function.name, function.arguments
            finish = answer.choices[0].finish_reason
        equal((name, finish), ("time", "tool_calls"))
        valid(arguments, TIME)


def streamed_call(stream):
    names, arguments, finish = [], "", None
    for chunk in stream:
        strict(chunk)
        delta, finish = chunk.choices[0].delta, chunk.choices[0].finish_reason
        for call in delta.tool_calls or []:
            equal(call.index, 0)
            if call.function.name:
                check(call.id)
                names.append(call.function.name)
            arguments += call.function.arguments or ""
    equal(len(names), 1)
    return names[0], arguments, finish


def test_stream_helper(servers):
    with connect(servers["tools"]).chat.completions.stream(
            model="tool-model", messages=QUESTION, tools=TOOLS, tool_choice="required",
            max_tokens=100) as stream:
        done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion().choices[0].message.tool_calls[0].function
    equal([(e.name, e.arguments) for e in done], [(final.name, final.arguments)])


def test_conversation_with_results(servers):
    first = ask(servers["tools"], tools=TOOLS, tool_choice="required", max_tokens=100)
    message = first.choices[0].message
    messages = [*QUESTION, message.to_dict(),
                {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "21 degrees"}]
    second = strict(ask(servers["tools"], messages=messages, tools=TOOLS))
    check(second.usage.prompt_tokens > first.usage.prompt_tokens)


def test_auto_and_none(servers):
    # What auto lets the model write is a call where it has a call's form.
    text = '<tool_call>\\n\\{"name": "time", "arguments": \\{"zone": "UTC"\\}\\}\\n</tool_call>'
    form = {"guided_regex": text}
    auto = ask(servers["tools"], tools=TOOLS, extra_body=form, max_tokens=100).choices[0]
    equal((auto.finish_reason, auto.message.tool_calls[0].function.name), ("tool_calls", "time"))
    none = ask(servers["tools"], tools=TOOLS, tool_choice="none", extra_body=form, max_tokens=100)
    equal((none.choices[0].message.tool_calls, none.choices[0].finish_reason), (None, "stop"))


def test_several_calls(servers):
    call = '<tool_call>\\n\\{"name": "time", "arguments": \\{"zone": "UTC"\\}\\}\\n</tool_call>'
    fields = {"tools": TOOLS, "extra_body": {"guided_regex": call + "\\n" + call},
              "max_tokens": 200}
    answer = strict(ask(servers["tools"], **fields)).choices[0]
    equal([c.function.arguments for c in answer.message.tool_calls], ['{"zone": "UTC"}'] * 2)
    check(len({c.id for c in answer.message.tool_calls}) == 2)
    one = ask(servers["tools"], parallel_tool_calls=False, **fields).choices[0]
    equal((len(one.message.tool_calls), one.finish_reason), (1, "tool_calls"))


def test_reasoning(servers):
    form = {"guided_regex": "<think>[a-z]{5}</think>[A-Z]{4}"}
    message = ask(servers["tools"], extra_body=form, max_tokens=60).choices[0].message
    equal((len(message.reasoning_content), len(message.content)), (5, 4))
    reasoning = text = ""
    for chunk in ask(servers["tools"], extra_body=form, max_tokens=60, stream=True):
        delta = chunk.choices[0].delta
        reasoning += getattr(delta, "reasoning_content", None) or ""
        text += delta.content or ""
    equal((len(reasoning), len(text)), (5, 4))


def test_template_without_tools(servers):
    """A model without a way to call: auto answers in text, required is refused with the reason."""
    if "tool" in json.loads(servers["chat"].get("/props"))["chat_template"]:
        return
    check(ask(servers["chat"], tools=TOOLS).choices[0].message.content)
    with raises(openai.BadRequestError, "tool_choice"):
        ask(servers["chat"], tools=TOOLS, tool_choice="required")


def test_tool_errors(servers):
    with raises(openai.BadRequestError, "there is no tool another"):
        ask(servers["tools"], tools=TOOLS, tool_choice={"type": "function",
                                                        "function": {"name": "another"}})
    with raises(openai.BadRequestError, "tools"):
        ask(servers["tools"], tools=[{"type": "function"}])
    with raises(openai.BadRequestError, "tool_choice"):
        ask(servers["tools"], tool_choice="required")
