# SPDX-License-Identifier: Apache-2.0
"""What the three APIs promise about answers: streams are read event by event, as an agent does that
trusts nothing, and become the message that they tell."""
import json


def check(condition, *what):
    if not condition:
        raise AssertionError(" ".join(str(w) for w in what) or "it does not hold")


def equal(got, expected, *what):
    check(got == expected, *what, "got", repr(got), "and not", repr(expected))


def events_of(text):
    """(name, data) of server-sent events; data is JSON or "[DONE]"."""
    events = []
    check(text.endswith("\n\n"), "the stream ends inside an event")
    for block in text[:-2].split("\n\n"):
        name, data = None, []
        for line in block.split("\n"):
            field, _, value = line.partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                data.append(value)
            else:
                check(line.startswith(":"), "no field of an event:", line)
        if data:
            told = "\n".join(data)
            events.append((name, told if told == "[DONE]" else json.loads(told)))
    return events


def filled(value, *names):
    for name in names:
        check(value.get(name), name, "is not in", value)


def arguments(text):
    """Those of a call, which must be a JSON object."""
    value = json.loads(text)
    check(isinstance(value, dict), "no object:", text)
    return value


class Answer:
    """What an API told, without its form: comparable between streams and whole answers."""

    def __init__(self):
        self.reasoning, self.text, self.calls, self.end = "", "", [], None
        self.prompt = self.cached = self.written = 0  # tokens

    def said(self):
        return {"reasoning": self.reasoning, "text": self.text, "calls": self.calls,
                "end": self.end}


def add_block(answer, block):
    """One block of /v1/messages; thinking comes before text, and calls come last."""
    kind = block["type"]
    if kind == "thinking":
        check(not answer.text and not answer.calls and "signature" in block, block)
        answer.reasoning += block["thinking"]
    elif kind == "text":
        check(block["text"] and not answer.calls, block)
        answer.text += block["text"]
    else:
        equal(kind, "tool_use")
        filled(block, "id", "name")
        check(isinstance(block["input"], dict), block)
        answer.calls.append({"name": block["name"], "arguments": block["input"]})


def end_message(answer, message):
    answer.end = message["stop_reason"]
    usage = message["usage"]
    answer.cached, answer.written = usage["cache_read_input_tokens"], usage["output_tokens"]
    answer.prompt = usage["input_tokens"] + answer.cached
    equal(usage["cache_creation_input_tokens"], 0)
    equal(answer.end == "tool_use", bool(answer.calls), "stop_reason")
    check(message["stop_sequence"] is None)
    return answer


def check_message(message):
    equal((message["type"], message["role"]), ("message", "assistant"))
    filled(message, "id", "model")
    answer = Answer()
    for block in message.get("content"):
        add_block(answer, block)
    return answer


def whole_message(message):
    return end_message(check_message(message), message)


DELTAS = {"text": {"text_delta": "text"}, "tool_use": {"input_json_delta": "partial_json"},
          "thinking": {"thinking_delta": "thinking", "signature_delta": "signature"}}


def streamed_message(events):
    check(all(name == data["type"] for name, data in events), "names of events")
    (first, start), *between = events
    equal(first, "message_start")
    answer, block, told, index = check_message(start["message"]), None, "", 0
    check(start["message"]["usage"]["input_tokens"] > 0 and start["message"]["content"] == [])
    equal([name for name, _ in between[-2:]], ["message_delta", "message_stop"])
    for name, data in between[:-2]:
        if name == "ping":
            continue
        equal(data["index"], index, name)
        if name == "content_block_start":
            check(block is None, "a block begins inside another")
            block, told = data["content_block"], ""
            for field in DELTAS[block["type"]].values():
                check(block.get(field, "") == "", "a block begins with text", block)
        elif name == "content_block_delta":
            delta = data["delta"]
            field = DELTAS[block["type"]][delta["type"]]
            if field == "partial_json":
                told += delta[field]
            else:
                block[field] += delta[field]
        else:
            equal(name, "content_block_stop")
            if block["type"] == "tool_use":
                equal(block["input"], {})
                block["input"] = arguments(told or "{}")
            add_block(answer, block)
            block, index = None, index + 1
    check(block is None, "a block has no end")
    last = between[-2][1]
    return end_message(answer, {**last["delta"], "usage": last["usage"]})


CALLS = {"function_call": ("arguments", "function_call_arguments"),
         "custom_tool_call": ("input", "custom_tool_call_input"),
         "tool_search_call": ("arguments", None)}


def add_item(answer, item):
    kind = item["type"]
    filled(item, "id", "status")
    equal(item["status"], "completed")
    if kind == "reasoning":
        equal(item["summary"], [])
        equal([part["type"] for part in item["content"]], ["reasoning_text"])
        answer.reasoning += item["content"][0]["text"]
    elif kind == "message":
        equal(item["role"], "assistant")
        equal([part["type"] for part in item["content"]], ["output_text"])
        answer.text += item["content"][0]["text"]
    else:
        filled(item, "call_id")
        call = {key: value for key, value in item.items() if key not in ("id", "call_id", "status")}
        if kind == "function_call":
            call["arguments"] = arguments(call["arguments"])
        elif kind == "custom_tool_call":
            check(isinstance(call["input"], str))
        else:
            check(isinstance(call["arguments"], dict))
        check(kind in CALLS, "no item of an answer:", kind)
        answer.calls.append(call)


def whole_response(response, status="completed"):
    equal((response["object"], response["status"]), ("response", status))
    filled(response, "id", "created_at", "model", "usage")
    check(response["error"] is None and response["incomplete_details"] is None)
    answer = Answer()
    for item in response["output"]:
        add_item(answer, item)
    usage = response["usage"]
    answer.prompt, answer.written = usage["input_tokens"], usage["output_tokens"]
    answer.cached = usage["input_tokens_details"]["cached_tokens"]
    check(usage["output_tokens_details"]["reasoning_tokens"] <= answer.written)
    equal(usage["total_tokens"], answer.prompt + answer.written)
    answer.end = status
    return answer


class Item:
    """One item of a stream, from added to done."""

    def __init__(self, data, index):
        equal(data["output_index"], index)
        self.item, self.part, self.text, self.told = data["item"], None, "", False
        equal(self.item["status"], "in_progress")
        filled(self.item, "id")

    def take(self, kind, data, index):
        equal((data["item_id"], data["output_index"]), (self.item["id"], index), kind)
        name = self.item["type"]
        stem = CALLS[name][1] if name in CALLS else {"message": "output_text",
                                                     "reasoning": "reasoning_text"}[name]
        if name not in CALLS:
            equal(data["content_index"], 0)
        if kind == "content_part.added":
            check(self.part is None and name not in CALLS)
            self.part = data["part"]
            equal(self.part["text"], "")
        elif kind == f"{stem}.delta":
            check(not self.told and (self.part or name in CALLS), kind, "outside of its part")
            self.text += data["delta"]
        elif kind == f"{stem}.done":
            equal(data[CALLS[name][0] if name in CALLS else "text"], self.text, "deltas")
            self.told = True
        else:
            equal(kind, "content_part.done")
            check(self.told, "the part ends before its text")
            equal(data["part"], {**self.part, "text": self.text})
            self.part = data["part"]

    def done(self, item):
        """The item as it is told at its end is what its events made of it."""
        equal((item["id"], item["type"]), (self.item["id"], self.item["type"]))
        if item["type"] == "tool_search_call":
            return item
        check(self.told, "an item ends before its text")
        made = ({CALLS[item["type"]][0]: self.text} if item["type"] in CALLS
                else {"content": [self.part]})
        equal(item, {**self.item, **made, "status": item["status"]})
        return item


def streamed_response(events):
    check(all(name == data["type"] for name, data in events), "names of events")
    equal([data["sequence_number"] for _, data in events], list(range(len(events))))
    kinds = [name.removeprefix("response.") for name, _ in events]
    equal((kinds[:2], kinds[-1]), (["created", "in_progress"], "completed"))
    for _, data in events[:2]:
        equal((data["response"]["status"], data["response"]["output"]), ("in_progress", []))
        equal(data["response"]["id"], events[-1][1]["response"]["id"])
    output, item = [], None
    for kind, (_, data) in list(zip(kinds, events))[2:-1]:
        if kind == "in_progress":  # a sign of life
            check(item is None and not output)
        elif kind == "output_item.added":
            check(item is None, "an item begins inside another")
            item = Item(data, len(output))
        elif kind == "output_item.done":
            equal(data["output_index"], len(output))
            output.append(item.done(data["item"]))
            item = None
        else:
            item.take(kind, data, len(output))
    check(item is None, "an item has no end")
    equal(events[-1][1]["response"]["output"], output, "the whole output")
    return whole_response(events[-1][1]["response"])


def end_completion(answer, finish, usage):
    answer.end, answer.prompt = finish, usage["prompt_tokens"]
    answer.cached, answer.written = (usage["prompt_tokens_details"]["cached_tokens"],
                                     usage["completion_tokens"])
    equal(usage["total_tokens"], answer.prompt + answer.written)
    equal(finish == "tool_calls", bool(answer.calls), "finish_reason")
    return answer


def whole_completion(completion):
    equal(completion["object"], "chat.completion")
    filled(completion, "id", "created", "model")
    [choice] = completion["choices"]
    message = choice["message"]
    equal((choice["index"], message["role"]), (0, "assistant"))
    answer = Answer()
    answer.reasoning, answer.text = message.get("reasoning_content", ""), message["content"] or ""
    for call in message.get("tool_calls", []):
        filled(call, "id")
        equal(call["type"], "function")
        answer.calls.append({"name": call["function"]["name"],
                             "arguments": arguments(call["function"]["arguments"])})
    return end_completion(answer, choice["finish_reason"], completion["usage"])


def add_delta(answer, delta):
    check(set(delta) <= {"role", "content", "reasoning_content", "tool_calls"}, delta)
    answer.reasoning += delta.get("reasoning_content") or ""
    answer.text += delta.get("content") or ""
    for call in delta.get("tool_calls") or []:
        if call["index"] == len(answer.calls):
            filled(call, "id")
            filled(call["function"], "name")
            equal(call["type"], "function")
            answer.calls.append({"name": call["function"]["name"], "arguments": ""})
        equal(call["index"], len(answer.calls) - 1, "only the last call goes on")
        answer.calls[-1]["arguments"] += call["function"].get("arguments") or ""


def streamed_completion(events, usage_wanted):
    check(all(name is None for name, _ in events), "chunks have no names")
    equal(events.pop()[1], "[DONE]")
    chunks = [data for _, data in events]
    for chunk in chunks:
        equal((chunk["object"], chunk["id"]), ("chat.completion.chunk", chunks[0]["id"]))
    usage = None
    if usage_wanted:
        last = chunks.pop()
        equal(last["choices"], [])
        usage = last["usage"]
    check(all(chunk.get("usage") is None for chunk in chunks), "usage before the end")
    answer, finish = Answer(), None
    for chunk in chunks:
        [choice] = chunk["choices"]
        check(finish is None, "a chunk behind the end")
        add_delta(answer, choice["delta"])
        finish = choice["finish_reason"]
    equal(chunks[0]["choices"][0]["delta"]["role"], "assistant")
    for call in answer.calls:
        call["arguments"] = arguments(call["arguments"])
    if usage:
        return end_completion(answer, finish, usage)
    answer.end = finish
    equal(finish == "tool_calls", bool(answer.calls), "finish_reason")
    return answer
