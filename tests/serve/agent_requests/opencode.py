# SPDX-License-Identifier: Apache-2.0
"""opencode, which speaks all three APIs through Vercel's AI SDK, always streamed."""
import json

from agent_requests.pieces import LISTING, PDF, PNG, PNG_URL, SOURCE, TODOS, Call, Request, Says
from agent_requests.pieces import schema

HEADERS = {"user-agent": "opencode/1.4.2 ai-sdk/provider-utils/4.0.1 runtime/bun/1.3.5"}
SCHEMAS = {
    "bash": ("Runs a command.", schema("command description", command="string", timeout={
        "type": "integer", "exclusiveMinimum": 0}, workdir="string", description="string")),
    "read": ("Shows a file.", schema("filePath", filePath="string", offset="number")),
    "edit": ("Changes a file.", schema("filePath oldString newString", filePath="string",
                                       oldString="string", newString="string",
                                       replaceAll="boolean")),
    "task": ("Hands a task to a helper.", schema("description prompt subagent_type",
                                                 description="string", prompt="string",
                                                 subagent_type="string")),
    "todowrite": ("Keeps the list of what is to do.", schema("todos", todos=TODOS)),
    "tracker_list_issues": ("Lists what is open.", {
        "type": "object", "properties": {"label": {"type": ["string", "null"]}},
        "additionalProperties": False}),
}
RULES = "You work in a folder of C sources.\n<env>\n  Platform: linux\n</env>"
READS = Says("I read it.", "Main calls parse.", (Call("read", {"filePath": "/src/main.c"}),))
BOTH = Says(calls=(Call("bash", {"command": "ls", "description": "Lists files"}),
                   Call("read", {"filePath": "/src/main.c", "offset": 0})))
BLIND = Says("I cannot see it.")


def call(number, name, **arguments):
    return {"id": f"call_{number}", "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)}}


def tool_result(number, content):
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": content}


FIRST = [{"role": "system", "content": RULES}, {"role": "user", "content": "What does main do?"}]
LISTED = [*FIRST, {"role": "assistant", "content": "I look.", "reasoning_content": "Files first.",
                   "tool_calls": [call(1, "bash", command="ls", description="Lists files"),
                                  call(2, "read", filePath="/src/main.c")]},
          tool_result(1, LISTING), tool_result(2, f"<file>\n{SOURCE}</file>")]
FAILED = [*FIRST,
          {"role": "assistant", "content": "", "tool_calls": [call(1, "invalid", tool="x")]},
          tool_result(1, "The arguments are not as the tool wants them.")]


def file_part(name, url):
    return {"type": "file", "file": {"filename": name, "file_data": url}}


def chat_turns():
    picture = {"type": "image_url", "image_url": {"url": PNG_URL}}
    text = {"type": "text", "text": "What is it?", "cache_control": {"type": "ephemeral"}}
    found = json.dumps([{"type": "text", "text": "a"}, {"type": "media", "data": PNG}])
    shown = [*FIRST[:1], {"role": "user", "content": [text, picture]},
             {"role": "user", "content": "Well?"}]
    read = [*FIRST[:1], {"role": "user", "content": [
        text, file_part("a.pdf", "data:application/pdf;base64," + PDF)]}]
    heard = [*FIRST[:1], {"role": "user", "content": [text, {"type": "input_audio", "input_audio": {
        "data": "UklGRg==", "format": "wav"}}]}]
    seen = [*LISTED[:3], tool_result(1, found), tool_result(2, [text, picture])]
    return [("first_turn", FIRST, READS, ""), ("calls_in_parallel", LISTED, BOTH, "first_turn"),
            ("failed_call", FAILED, READS, ""), ("pasted_picture", shown, BLIND, ""),
            ("document", read, BLIND, ""), ("sound", heard, BLIND, ""),
            ("picture_in_a_result", seen, BLIND, ""),
            ("compaction", [*LISTED, {"role": "user", "content": "Sum up all of this."}],
             Says("Main was read."), "calls_in_parallel"),
            ("steps_are_over", [*LISTED, {"role": "assistant", "content": "No more steps."}],
             Says("So I stop."), "")]


def chat(model):
    tools = [{"type": "function", "function": {"name": name, "description": told, "parameters": of}}
             for name, (told, of) in SCHEMAS.items()]
    path = "/v1/chat/completions"

    def body(messages, **more):
        return {"model": model, "max_tokens": 3200, "temperature": 0.55, "top_p": 1,
                "messages": messages, **more}
    talk = [Request("chat_" + name, path, body(messages, tools=tools, tool_choice="auto"), says,
                    continues=before and "chat_" + before)
            for name, messages, says, before in chat_turns()]
    title = body([{"role": "system", "content": "Make a title."},
                  {"role": "user", "content": "A title for this:\n"},
                  {"role": "user", "content": "What does main do?"}], reasoning_effort="low")
    helper = body(FIRST, tools=tools[:2], tool_choice="auto", reasoningSummary="auto",
                  enable_thinking=True, chat_template_args={"enable_thinking": True},
                  prompt_cache_key="ses_1", usage={"include": True})
    empty = {"type": "function", "function": {"name": "_noop", "description": "Nothing.",
                                              "parameters": {"type": "object", "properties": {}}}}
    return [*talk, Request("chat_title", path, title, Says("What main does")),
            Request("chat_helper", path, helper, BOTH),
            Request("chat_no_tools_left", path, body(LISTED, tools=[empty], tool_choice="auto"),
                    Says("Main was read."))]


def messages_api(model):
    tools = [{"name": name, "description": told, "input_schema": of,
              "eager_input_streaming": True} for name, (told, of) in SCHEMAS.items()]
    ask = {"role": "user", "content": [{"type": "text", "text": "What does main do?",
                                        "cache_control": {"type": "ephemeral"}}]}
    history = [ask, {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "Files first.", "signature": ""},
        {"type": "tool_use", "id": "call_1", "name": "bash", "input": {"command": "ls"}},
        {"type": "tool_use", "id": "call_2", "name": "read", "input": {"filePath": "a.png"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "call_1", "content": "no", "is_error": True},
            {"type": "tool_result", "tool_use_id": "call_2", "content": [
                {"type": "text", "text": "a.png"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png",
                                             "data": PNG}}],
             "cache_control": {"type": "ephemeral"}}]}]
    return [Request("messages_" + name, "/v1/messages", {
        "model": model, "max_tokens": 3200, "temperature": 1, "tools": tools,
        "thinking": {"type": "enabled", "budget_tokens": 1600}, "tool_choice": {"type": "auto"},
        "system": [{"type": "text", "text": RULES, "cache_control": {"type": "ephemeral"}}],
        "messages": messages}, says)
        for name, messages, says in [("first_turn", [ask], READS), ("picture", history, BLIND)]]


def responses(model):
    tools = [{"type": "function", "name": name, "description": told, "parameters": of}
             for name, (told, of) in SCHEMAS.items()]
    ask = [{"role": "developer", "content": RULES},
           {"role": "user", "content": [{"type": "input_text", "text": "What does main do?"}]}]
    history = [*ask, {"type": "reasoning", "id": "rs_1", "encrypted_content": None, "summary": [
        {"type": "summary_text", "text": "Files first."}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "call_1", "name": "read",
         "arguments": '{"filePath":"a.png"}'},
        {"type": "function_call_output", "call_id": "call_1", "output": [
            {"type": "input_text", "text": "a.png"},
            {"type": "input_image", "image_url": PNG_URL},
            {"type": "input_file", "filename": "a.pdf", "file_data": "data:;base64," + PDF}]}]
    return [Request("responses_" + name, "/v1/responses", {
        "model": model, "input": items, "max_output_tokens": 3200, "store": False,
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "ses_1",
        "text": {"verbosity": "medium"}, "reasoning": {"effort": "low", "summary": "auto"},
        "tools": tools, "tool_choice": "auto"}, says)
        for name, items, says in [("first_turn", ask, BOTH), ("picture", history, BLIND)]]


def requests(model):
    all_of_them = [Request("models", "/v1/models", method="GET"), *chat(model),
                   *messages_api(model), *responses(model)]
    for request in all_of_them:
        request.headers = HEADERS
        if request.path.endswith("completions"):
            request.body["stream_options"] = {"include_usage": True}
    return all_of_them
