# SPDX-License-Identifier: Apache-2.0
"""Codex: /v1/responses, always streamed, and /v1/chat/completions of its older versions."""
from agent_requests.pieces import LISTING, PNG_URL, SOURCE, Call, Request, Says, schema

PATH = "/v1/responses"
HEADERS = {"accept": "text/event-stream", "originator": "codex_cli_rs", "version": "0.147.0",
           "user-agent": "codex_cli_rs/0.147.0 (Debian 12; x86_64) xterm", "session_id": "0199-aa",
           "conversation_id": "0199-aa", "x-codex-turn-metadata": "{\"turn_id\":\"1\"}"}


def function(name, description, parameters, **more):
    return {"type": "function", "name": name, "description": description, "strict": False,
            "parameters": parameters, **more}


PATCH = {"type": "custom", "name": "apply_patch", "description": "Changes files by a patch.",
         "format": {"type": "grammar", "syntax": "lark",
                    "definition": "start: \"*** Begin\" LF line+ \"*** End\" LF?\nline: /.+/ LF\n"}}
EXEC = function("exec_command", "Runs a command.", schema(
    "cmd", cmd="string", workdir="string", yield_time_ms="number", max_output_tokens="number",
    sandbox_permissions={"type": "string", "enum": ["use_default", "require_escalated"]},
    prefix_rule={"type": "array", "items": {"type": "string"}}))
TOOLS = [
    EXEC,
    function("write_stdin", "Types into a command.", schema("session_id", session_id="number",
                                                            chars="string")),
    function("update_plan", "Keeps the plan.", schema("plan", explanation="string", plan={
        "type": "array", "items": schema("step status", step="string", status="string")})),
    PATCH,
    {"type": "web_search", "external_web_access": False},
    {"type": "image_generation", "output_format": "png"},
    function("view_image", "Shows a picture.", schema("path", path="string")),
]
TRACKER = {"type": "namespace", "name": "mcp__tracker", "description": "Tools of a tracker.",
           "tools": [function("list_issues", "Lists what is open.", schema("", label="string"))]}
SEARCH = {"type": "tool_search", "execution": "client", "description": "Finds more tools.",
          "parameters": schema("query", query="string", limit="number")}
# How versions of late send the tools: as an item, by namespaces.
MORE_TOOLS = {"type": "additional_tools", "role": "developer", "id": "at_1", "tools": [
    {"type": "namespace", "name": "functions", "description": "Own tools.", "tools": [
        {"type": "custom", "name": "exec", "description": "Runs a script.",
         "format": {"type": "text"}},
        function("wait", "Waits for a script.", schema("cell_id", cell_id="string"))]},
    TRACKER, {"type": "namespace", "name": "collaboration", "description": "Others.", "tools": []}]}


def message(role, *texts):
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role,
            "content": [{"type": kind, "text": text} for text in texts]}


def called(number, name, arguments, **more):
    return {"type": "function_call", "name": name, "arguments": arguments,
            "call_id": f"call_{number}", **more}


def output(number, value, kind="function_call_output", **more):
    return {"type": kind, "call_id": f"call_{number}", "output": value, **more}


def picture(detail="high"):
    return {"type": "input_image", "image_url": PNG_URL, "detail": detail}


THOUGHT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Look first."}],
           "content": [{"type": "reasoning_text", "text": "The sources first."}],
           "encrypted_content": None}
FIRST = [message("developer", "<permissions>The folder may be written.</permissions>"),
         message("user", "# Rules of this folder\nBe brief.", "<cwd>/src</cwd><shell>bash</shell>"),
         message("user", "What does main do?")]
LISTED = [*FIRST, THOUGHT, {**message("assistant", "I look around."), "phase": "commentary"},
          called(1, "exec_command", '{"cmd":"ls"}'), called(2, "exec_command", '{"cmd":"pwd"}'),
          output(1, "Exit code: 0\nOutput:\n" + LISTING),
          output(2, [{"type": "input_text", "text": "Exit code: 0"}])]
PATCHED = [*LISTED, {"type": "custom_tool_call", "status": "completed", "call_id": "call_3",
                     "name": "apply_patch", "input": "*** Begin\n+x\n*** End"}]
READS = Says("I read it.", "Main calls parse.", (Call("exec_command", {"cmd": "cat main.c"}),))


def told(kind, name, **fields):
    return {"type": kind, "name": name, **fields}


PATCHES = Says("I change it.", calls=(Call(
    "apply_patch", {"input": "*** Begin\n+int x;\n*** End"},
    told("custom_tool_call", "apply_patch", input="*** Begin\n+int x;\n*** End")),))
RUNS = Says(calls=(
    Call("exec", {"input": "text(\"a\\n\")"}, told("custom_tool_call", "exec",
                                                   input="text(\"a\\n\")")),
    Call("wait", {"cell_id": "1"}),
    Call("mcp__tracker__list_issues", {"label": "bug"},
         told("function_call", "list_issues", namespace="mcp__tracker"))))
LISTS = Says(calls=(Call("mcp__tracker__list_issues", {},
                         told("function_call", "list_issues", namespace="mcp__tracker")),))
SEARCHES = Says("I search.", calls=(Call(
    "tool_search", {"query": "issues"},
    {"type": "tool_search_call", "execution": "client", "arguments": {"query": "issues"}}),))


def body(model, items, tools=tuple(TOOLS), **more):
    return {"model": model, "instructions": "You work in a folder of C sources. Be brief.",
            "input": items, "tools": list(tools), "tool_choice": "auto",
            "parallel_tool_calls": True, "reasoning": {"effort": "medium", "summary": "auto"},
            "store": False, "include": ["reasoning.encrypted_content"], "service_tier": "auto",
            "prompt_cache_key": "0199-aa", "text": {"verbosity": "low"},
            "client_metadata": {"x-codex-installation-id": "a"}, **more}


def found_tools():
    return [*FIRST, {"type": "tool_search_call", "call_id": "call_5", "status": "completed",
                     "execution": "client", "arguments": {"query": "issues", "limit": 1}},
            {"type": "tool_search_output", "call_id": "call_5", "status": "completed",
             "execution": "client", "tools": [TRACKER]}]


def sessions_from_elsewhere():
    """Items of other models and versions, which stay in a history."""
    return [*FIRST,
            {"type": "reasoning", "summary": [], "encrypted_content": "gAAAAA"},
            {"type": "local_shell_call", "call_id": "call_6", "status": "completed", "action": {
                "type": "exec", "command": ["ls"], "timeout_ms": None, "working_directory": "/"}},
            output(6, LISTING),
            {"type": "web_search_call", "status": "completed", "action": {
                "type": "search", "query": "c", "queries": ["c"]}},
            {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "iVB"},
            {"type": "ghost_snapshot", "ghost_commit": {"id": "4f2a", "parent": None}},
            {"type": "compaction", "encrypted_content": "gAAAAB"},
            {"type": "context_compaction", "encrypted_content": None},
            {"type": "agent_message", "author": "/main/a", "recipient": "/main", "content": [
                {"type": "input_text", "text": "Done."}]},
            message("user", "Go on.")]


def turns():
    """The conversation: (name, items, what the model says, the request it goes on from)."""
    mcp = [*FIRST, called(4, "list_issues", "{}", namespace="mcp__tracker"),
           output(4, [{"type": "input_text", "text": "none"}, picture("auto")])]
    failed = [*PATCHED, output(3, "It does not apply.", "custom_tool_call_output",
                               name="apply_patch")]
    seen = [*LISTED, called(7, "view_image", '{"path":"a.png"}'), output(7, [picture()])]
    shown = [{**message("user", "<image name=[Image #1]>"), "content": [
        {"type": "input_text", "text": "What is it?"}, picture("original")]},
        message("user", "Well?")]
    ask = message("user", "Sum up all of this for later.")
    return [("first_turn", FIRST, READS, ""), ("calls_in_parallel", LISTED, PATCHES, "first_turn"),
            ("failed_patch", failed, READS, "calls_in_parallel"),
            ("picture_in_an_output", seen, Says("I cannot see it."), "calls_in_parallel"),
            ("pictures_of_a_tool", [*PATCHED, output(3, [picture()], "custom_tool_call_output")],
             Says("I cannot see it."), "calls_in_parallel"),
            ("pasted_picture", shown, Says("I cannot see it."), ""),
            ("history_from_elsewhere", sessions_from_elsewhere(), READS, ""),
            ("call_of_a_server", mcp, READS, ""),
            ("compaction", [*LISTED, ask], Says("Main was read."), "calls_in_parallel"),
            ("behind_compaction", [*FIRST, message("user", "So far: main was read.")], READS, "")]


def requests(model):
    talk = [Request(name, PATH, body(model, items), says, continues=before)
            for name, items, says, before in turns()]
    lite = body(model, [MORE_TOOLS, *FIRST, called(8, "wait", '{"cell_id":"1"}'),
                        output(8, SOURCE)], tools=())
    review = body(model, FIRST, tools=())
    review["text"] = {"verbosity": "low", "format": {
        "type": "json_schema", "name": "codex_output_schema", "strict": True,
        "schema": schema("ok", ok="boolean")}}
    stored = body(model, FIRST, previous_response_id="resp_1")
    long = body(model, [message("user", "cat " * 20000)])
    all_of_them = [
        Request("models", "/v1/models?client_version=0.147.0", method="GET"), *talk,
        Request("tools_as_an_item", PATH, lite, RUNS),
        Request("tools_of_a_server", PATH, body(model, FIRST, [*TOOLS, TRACKER]), LISTS),
        Request("search_for_tools", PATH, body(model, FIRST, [*TOOLS, SEARCH]), SEARCHES),
        Request("tools_that_were_found", PATH, body(model, found_tools(), [*TOOLS, SEARCH]), LISTS),
        Request("review", PATH, review),
        Request("stored_nowhere", PATH, stored, status=400, problem="not stored"),
        Request("too_long", PATH, long, status=400, problem="maximum context length",
                failure="context_length_exceeded"),
        Request("remote_compaction", PATH + "/compact", {"model": model, "input": FIRST},
                status=404, problem="/v1/responses/compact"),
        *older(model)]
    for request in all_of_them:
        request.headers = HEADERS
    return all_of_them


def older(model):
    """Versions that spoke the chat API."""
    shell = {"type": "function", "function": {
        "name": "shell", "description": "Runs a command.", "strict": False, "parameters": schema(
            "command", command={"type": "array", "items": {"type": "string"}},
            workdir="string", timeout_ms="number")}}
    ask = [{"role": "system", "content": "You work in a folder. Be brief."},
           {"role": "user", "content": "<cwd>/src</cwd>"},
           {"role": "user", "content": "What does main do?"}]
    history = [*ask, {"role": "assistant", "content": None, "reasoning": "Look first.",
                      "tool_calls": [{"id": "call_1", "type": "function", "function": {
                          "name": "shell", "arguments": '{"command":["ls"]}'}}]},
               {"role": "tool", "tool_call_id": "call_1", "content": LISTING}]
    seen = [*history[:-1], {"role": "tool", "tool_call_id": "call_1", "content": [
        {"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": PNG_URL}}]}]
    calls = Says("I look.", calls=(Call("shell", {"command": ["cat", "main.c"]}),))
    return [Request(name, "/v1/chat/completions",
                    {"model": model, "messages": messages, "tools": [shell]}, says)
            for name, messages, says in [("chat_first_turn", ask, calls),
                                         ("chat_behind_a_call", history, calls),
                                         ("chat_picture", seen, Says("I cannot see it."))]]
