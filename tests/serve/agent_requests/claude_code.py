# SPDX-License-Identifier: Apache-2.0
"""Claude Code: /v1/messages?beta=true and its tokens counted, all streamed but for retries."""
import json

from agent_requests.pieces import (LISTING, PDF, PNG, SOURCE, TODOS, Call, Request, Says, schema)

PATH = "/v1/messages?beta=true"
COUNT = "/v1/messages/count_tokens?beta=true"
HEADERS = {
    "accept": "application/json",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,"
                      "context-management-2025-06-27,prompt-caching-scope-2026-01-05,"
                      "mid-conversation-system-2026-04-07,effort-2025-11-24",
    "anthropic-dangerous-direct-browser-access": "true", "anthropic-version": "2023-06-01",
    "user-agent": "claude-cli/2.1.233 (external, cli)", "x-app": "cli",
    "x-claude-code-session-id": "aae217c3-15b1-40fb-9d8e-a0422eebb8c8",
    "x-stainless-arch": "x64", "x-stainless-lang": "js", "x-stainless-os": "Linux",
    "x-stainless-package-version": "0.112.1", "x-stainless-retry-count": "0",
    "x-stainless-runtime": "node", "x-stainless-runtime-version": "v26.3.0",
    "x-stainless-timeout": "600", "accept-encoding": "gzip, deflate, br, zstd"}
USER = json.dumps({"device_id": "b42919dc", "account_uuid": "", "session_id": "fe79bd85"})


def tool(name, description, parameters, **more):
    return {"name": name, "description": description, "input_schema": parameters, **more}


TOOLS = [
    tool("Agent", "Hands a task to a helper.", schema("description prompt", description="string",
                                                      prompt="string", subagent_type="string")),
    tool("Bash", "Runs a command.", schema("command", command="string", description="string",
                                           timeout="number", run_in_background="boolean"),
         eager_input_streaming=True),
    tool("Edit", "Replaces a text in a file.", schema(
        "file_path old_string new_string", file_path="string", old_string="string",
        new_string="string", replace_all={"type": "boolean", "default": False})),
    tool("Glob", "Finds files by name.", schema("pattern", pattern="string", path="string")),
    tool("Read", "Shows a file.", schema("file_path", file_path="string", pages="string", offset={
        "type": "integer", "minimum": 0, "maximum": 9007199254740991}, limit={
            "type": "integer", "exclusiveMinimum": 0})),
    tool("TodoWrite", "Keeps the list of what is to do.", schema("todos", todos=TODOS)),
    tool("WebFetch", "Reads a page.", schema("url prompt", url={"type": "string", "format": "uri"},
                                             prompt="string")),
    tool("Write", "Writes a file.", schema("file_path content", file_path="string",
                                           content="string")),
    tool("mcp__tracker__list_issues", "Lists what is open.",
         {"type": "object", "properties": {"label": {"anyOf": [{"type": "string"},
                                                               {"type": "null"}]}}}, strict=True),
]


def system(number, text="You work in a folder of C sources. Be brief."):
    """Blocks; the first one is other in each request."""
    head = f"x-anthropic-billing-header: cc_version=2.1.233.0d9; cc_entrypoint=cli; cch={number};"
    return [{"type": "text", "text": head},
            {"type": "text", "text": "You are a coding agent in a terminal.",
             "cache_control": {"type": "ephemeral", "ttl": "1h", "scope": "global"}},
            {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]


def reminder(text):
    return {"type": "text", "text": f"<system-reminder>\n{text}\n</system-reminder>"}


def use(number, name, **arguments):
    return {"type": "tool_use", "id": f"toolu_{number:02}", "name": name, "input": arguments,
            "caller": {"type": "direct"}}


def result(number, content, **more):
    return {"type": "tool_result", "tool_use_id": f"toolu_{number:02}", "content": content, **more}


THOUGHT = {"type": "thinking", "thinking": "The sources first.", "signature": "EqQBCgIYAhIM"}
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
FIRST = [{"role": "user", "content": [
    reminder("The skills of this folder: none."), reminder("Today is a Monday."),
    {"type": "text", "text": "What does main do?", "cache_control": {"type": "ephemeral"}}]}]
LISTED = [*FIRST,
          {"role": "assistant", "content": [THOUGHT, {"type": "text", "text": "I look around."},
                                            use(1, "Glob", pattern="**/*.c"),
                                            use(2, "Bash", command="git log -1")]},
          {"role": "user", "content": [
              result(1, LISTING), result(2, [{"type": "text", "text": "4f2a Begin"}]),
              reminder("The list of what is to do is empty.")]},
          {"role": "system", "content": [{"type": "text", "text": "5000 tokens left.",
                                          "cache_control": {"type": "ephemeral"}}]}]
READ = [*LISTED, {"role": "assistant", "content": [use(3, "Read", file_path="/src/main.c")]}]
READ_CALL = Call("Read", {"file_path": "/src/parse.c", "offset": 0})
SUMMARY = {"type": "json_schema", "schema": schema("title", title={
    "type": "string", "maxLength": 12, "pattern": "^[a-z ]*$"})}


def body(model, number, messages, **more):
    return {"model": model, "max_tokens": 3200, "messages": messages, "system": system(number),
            "tools": TOOLS, "metadata": {"user_id": USER}, "thinking": {"type": "adaptive"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "output_config": {"effort": "high"}, **more}


def turns(model):
    """The main conversation: (name, messages, what the model says, the request it goes on from)."""
    reads = Says("I look.", "Main calls parse.", (READ_CALL,))
    both = Says(calls=(Call("Glob", {"pattern": "*.h"}), READ_CALL))
    failed = [*READ, {"role": "user", "content": [result(
        3, "<tool_use_error>There is no such file.</tool_use_error>", is_error=True)]}]
    picture = [*READ, {"role": "user", "content": [result(3, [PICTURE])]}]
    document = [*READ, {"role": "user", "content": [
        result(3, "PDF read: /doc/manual.pdf (1 KB)"),
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf",
                                        "data": PDF}}]}]
    pasted = [{"role": "user", "content": [PICTURE, {"type": "text", "text": "[Image #1] What?"}]},
              {"role": "user", "content": "Well?"}]
    stopped = [*READ, {"role": "user", "content": [
        result(3, "The user does not want this.", is_error=True),
        {"type": "text", "text": "[Request interrupted by user for tool use]"},
        {"type": "text", "text": "Read the other one."}]}]
    found = [*LISTED, {"role": "assistant", "content": [use(4, "ToolSearch", query="page")]},
             {"role": "user", "content": [result(4, [
                 {"type": "tool_reference", "tool_name": "WebFetch"}])]}]
    resumed = [*FIRST, {"role": "assistant", "content": [
        {"type": "redacted_thinking", "data": "EmwKAhgB"},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"q": "c"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
        {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "f", "server_name": "s", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "is_error": False, "content": []},
        {"type": "compaction", "content": "Main was read."},
        {"type": "text", "text": "(no content)"}]}, {"role": "user", "content": "Go on."}]
    ask = {"role": "user", "content": [{"type": "text", "text": "Sum up all of this for later."}]}
    return [
        ("first_turn", FIRST, reads, ""),
        ("calls_in_parallel", LISTED, both, "first_turn"),
        ("after_a_file", [*READ, {"role": "user", "content": [result(3, SOURCE)]}], reads,
         "calls_in_parallel"),
        ("failed_tool", failed, Says("It is not there."), "calls_in_parallel"),
        ("picture_in_a_result", picture, Says("I cannot see it."), "calls_in_parallel"),
        ("document_that_was_read", document, Says("I cannot read it."), "calls_in_parallel"),
        ("pasted_picture", pasted, Says("I cannot see it."), ""),
        ("interrupted", stopped, reads, "calls_in_parallel"),
        ("tools_that_were_found", found, Says("Found."), "calls_in_parallel"),
        ("resumed_elsewhere", resumed, reads, ""),
        ("compaction", [*READ, {"role": "user", "content": [result(3, SOURCE)]}, ask],
         Says("Main was read."), "after_a_file"),
        ("behind_compaction", [{"role": "user", "content": [
            {"type": "text", "text": "This goes on from: Main was read."}]}], reads, ""),
    ]


def others(model):
    """Requests beside the conversation."""
    small = {"thinking": {"type": "disabled"}, "temperature": 1}
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    title = body(model, 90, [{"role": "user", "content": "A title for: main"}], tools=[], **small)
    title["output_config"] = {"format": SUMMARY}
    quota = {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": "count"}],
             "metadata": {"user_id": USER}}
    agent = body(model, 91, [{"role": "user", "content": "Find where parse is."}],
                 system=system(91, "You are a helper that finds."), tools=TOOLS[3:5], **small)
    agent["max_tokens"] = 64
    web = body(model, 92, [{"role": "user", "content": "Search for: c"}], tools=[search],
               tool_choice={"type": "tool", "name": "web_search"}, **small)
    stops = body(model, 93, [{"role": "user", "content": [{"type": "text", "text": "A command?"}]},
                             {"role": "assistant", "content": "git"}],
                 stop_sequences=["\n\n"], **small)
    return [Request("title", PATH, title),
            Request("quota", PATH, quota, Says("a", end="max_tokens")),
            Request("helper", PATH, agent, Says(calls=(Call("Glob", {"pattern": "*"}),))),
            Request("search_by_the_service", PATH, web, status=400, problem="web_search"),
            Request("begun_answer", PATH, stops, Says(" log"))]


def counts(model):
    whole = {key: value for key, value in body(model, 94, LISTED).items()
             if key in ("model", "messages", "system", "tools", "thinking", "context_management")}
    alone = {"model": model, "messages": [{"role": "user", "content": "foo"}], "tools": TOOLS[:1]}
    return [Request("count_of_all", COUNT, whole), Request("count_of_a_tool", COUNT, alone),
            Request("count_of_a_picture", COUNT, {"model": model, "messages": [
                {"role": "user", "content": [PICTURE]}]})]


def requests(model):
    probes = [Request("warm_up", "/api/hello", method="HEAD"), Request("root", "/", method="HEAD"),
              Request("models", "/v1/models?limit=1000", method="GET")]
    talk = [Request(name, PATH, body(model, number, messages), says, continues=before)
            for number, (name, messages, says, before) in enumerate(turns(model))]
    all_of_them = [*probes, *talk, *others(model), *counts(model)]
    for request in all_of_them:
        request.headers = HEADERS
    return all_of_them
