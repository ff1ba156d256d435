#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Coding agents against `nibble serve`: sessions of Claude Code, Codex, opencode and Aider, request
by request as they send them, streamed and whole; and what a stream tells, down to the last event.

agents_test.py --nibble PROGRAM [--only TEXT] [--gtest_output=xml:FILE]
The models are copies of samples/tiny with tools, one of which wants its system message in front,
and grammars write their answers. Needs nothing but Python.
"""
import argparse
import http.client
import importlib
import json
import pathlib
import sys
import tempfile
import time
import traceback
import urllib.parse
import xml.etree.ElementTree as ElementTree

import agent_protocols as protocols
from agent_protocols import check, equal
from nibble_server import STRICT_TEMPLATE, TOOL_TEMPLATE, Server, make_tool_model

AGENTS = ["claude_code", "codex", "opencode", "aider"]
TEMPLATES = {"": TOOL_TEMPLATE, "strict_": STRICT_TEMPLATE}
CONTEXT = 16384  # the tools of an agent take some thousands
KEY = "sk-test"
AGAIN = 8  # tokens of a beginning that may be read again: those that begin the answer


def send(server, request, body):
    """(status, type, text) of an answer."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(server.url).netloc, timeout=300)
    headers = {**request.headers, "authorization": f"Bearer {KEY}"}
    if body is not None:
        headers["content-type"] = "application/json"
    connection.request(request.method, request.path, body and json.dumps(body), headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer.getheader("content-type"), text


def api_of(request):
    path = request.path.partition("?")[0]
    return path.removeprefix("/v1/")


def check_error(request, text):
    """One line that says what is wrong, in the API's form."""
    error = json.loads(text)
    if api_of(request).startswith("messages"):
        equal(error["type"], "error")
    told = error["error"]
    check(told["type"] and "\n" not in told["message"], told)
    check(request.problem in told["message"], request.problem, "is not in", told["message"])


def check_failure(request, events):
    """A stream that ends at once, and says why in its last event."""
    equal([name for name, _ in events],
          ["response.created", "response.in_progress", "error", "response.failed"])
    error, response = events[-2][1]["error"], events[-1][1]["response"]
    equal((response["status"], response["error"]["code"]), ("failed", request.failure))
    equal((error["code"], error["message"]), (request.failure, response["error"]["message"]))
    check(request.problem in response["error"]["message"], response["error"])


def check_models(server, request, text):
    """The list as OpenAI's and Anthropic's clients read it; Codex wants one of its own."""
    listed = json.loads(text)
    [model] = listed["data"]
    equal((model["id"], model["object"], model["type"]), (server.name, "model", "model"))
    equal((listed["has_more"], listed["first_id"]), (False, server.name))
    for model in listed["models"]:
        protocols.filled(model, "slug", "display_name", "shell_type", "truncation_policy")


def expected(request):
    says, api = request.says, api_of(request)
    calls = []
    for call in says.calls:
        told = {"name": call.name, "arguments": call.arguments}
        if api == "responses":
            told = call.told or {"type": "function_call", **told}
            if told["type"] == "function_call":
                told = {"arguments": call.arguments, **told}
        calls.append(told)
    end = {"messages": "tool_use" if calls else "end_turn", "responses": "completed",
           "chat/completions": "tool_calls" if calls else "stop"}[api]
    return {"reasoning": says.reasoning, "text": says.text, "calls": calls,
            "end": says.end or end}


def read_answer(request, body, kind, text):
    """An Answer of a whole answer or of a stream."""
    api, stream = api_of(request), body["stream"]
    check(kind.startswith("text/event-stream" if stream else "application/json"), kind)
    whole = {"messages": protocols.whole_message, "responses": protocols.whole_response,
             "chat/completions": protocols.whole_completion}
    if not stream:
        return whole[api](json.loads(text))
    events = protocols.events_of(text)
    if api == "messages":
        return protocols.streamed_message(events)
    if api == "responses":
        return protocols.streamed_response(events)
    return protocols.streamed_completion(events, "stream_options" in body)


def check_schema(request, answer):
    """What has a schema is JSON of it, here an object with one required property."""
    form = request.body.get("output_config", request.body.get("text"))["format"]
    equal(list(json.loads(answer.text)), form["schema"]["required"])


def generate(server, request, stream):
    body = {**request.body, "stream": stream}
    if not stream:
        body.pop("stream_options", None)
    if request.says:
        body.update({"guided_regex": request.says.pattern(), "temperature": 0})
    status, kind, text = send(server, request, body)
    if stream and request.failure:
        equal(status, 200, text)
        return check_failure(request, protocols.events_of(text))
    equal(status, request.status, text)
    if status != 200:
        return check_error(request, text)
    answer = read_answer(request, body, kind, text)
    if request.says:
        equal(answer.said(), expected(request))
    else:
        check_schema(request, answer)
    return answer


def run(server, request, before):
    """One request, streamed first, as agents do; `before` has the answers to those before it."""
    if request.method != "POST" or request.path.endswith("compact"):
        status, _, text = send(server, request, request.body)
        equal(status, request.status, text)
        if request.method == "GET":
            check_models(server, request, text)
        elif request.method == "POST":
            check_error(request, text)
        return None
    if "count_tokens" in request.path:
        status, _, text = send(server, request, request.body)
        equal(status, 200, text)
        check(json.loads(text)["input_tokens"] > 0, text)
        return None
    streamed = generate(server, request, True)
    whole = generate(server, request, False)
    if streamed is None:
        return None
    if request.says:
        equal(whole.said(), streamed.said())
    answer = streamed if streamed.prompt else whole  # not all ask for the usage of a stream
    equal(whole.prompt, answer.prompt)
    if request.continues:
        shared = before[request.continues].prompt - AGAIN
        check(answer.cached >= shared, answer.cached, "tokens are known, and not", shared)
    return answer


def run_agent(agent, server, only, prefix):
    """(test's name, what went wrong or None, seconds) of each request."""
    answers, results = {}, []
    for request in importlib.import_module("agent_requests." + agent).requests(server.name):
        name = f"{prefix}{agent}.{request.name}"
        if only not in name:
            continue
        problem, start = None, time.monotonic()
        try:
            answers[request.name] = run(server, request, answers)
        except Exception:  # A request's failure, whatever its kind, must not end the others.
            problem = traceback.format_exc()
        results.append((request.name, problem, time.monotonic() - start))
        print(f"{'FAIL' if problem else 'ok  '} {name} ({results[-1][2]:.2f} s)")
        print(problem or "", end="", flush=True)
    return results


def write_xml(path, results):
    """As GoogleTest writes it, for tools/count_tests.py."""
    root = ElementTree.Element("testsuites")
    for agent, tests in results.items():
        suite = ElementTree.SubElement(root, "testsuite", name=agent)
        for name, problem, seconds in tests:
            test = ElementTree.SubElement(suite, "testcase", name=name, classname=agent,
                                          status="run", result="completed", time=f"{seconds:.3f}")
            if problem:
                ElementTree.SubElement(test, "failure", message=problem)
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(root).write(path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nibble", required=True)
    parser.add_argument("--only", default="", help="requests whose names contain this")
    parser.add_argument("--gtest_output", default="", help="xml:FILE, for the results")
    options = parser.parse_args()
    results = {}
    for prefix, template in TEMPLATES.items():
        with (tempfile.TemporaryDirectory() as directory,
              Server(options.nibble, make_tool_model(directory + "/model", CONTEXT, template),
                     name="local-model", key=KEY) as server):
            for agent in AGENTS:
                results[prefix + agent] = run_agent(agent, server, options.only, prefix)
    if options.gtest_output:
        write_xml(options.gtest_output.removeprefix("xml:"), results)
    problems = [problem for tests in results.values() for _, problem, _ in tests]
    failed = sum(problem is not None for problem in problems)
    print(f"{len(problems) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
