# SPDX-License-Identifier: Apache-2.0
"""Aider, which calls no tools: texts with edits in them, through litellm's chat API."""
from agent_requests.pieces import PDF, PNG_URL, SOURCE, Call, Request, Says, schema

PATH = "/v1/chat/completions"
HEADERS = {"user-agent": "OpenAI/Python 3.57.0", "x-stainless-lang": "python",
           "x-stainless-async": "false", "x-stainless-raw-response": "true"}
EDIT = "main.c\n```\n<<<<<<< SEARCH\nint main\n=======\nint begin\n>>>>>>> REPLACE\n```\n"


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


RULES = {"role": "system", "content": "Change code by SEARCH and REPLACE.\n\n# Example\n" + EDIT}
SHOWN = [RULES, user("Rename f to g."), assistant("As you like.\n" + EDIT),
         user("From now on other files are of interest."), assistant("Ok."),
         user("These files are there, read only:\n\nparse.c:\n⋮\n│int parse()\n"),
         assistant("Ok, I do not change them."),
         user("These files may be changed:\n\nmain.c\n```\n" + SOURCE + "```\n"), assistant("Ok.")]
REMINDER = {"role": "system", "content": "# The form of a block\nThe path stands alone."}
ASK = user("Rename main to begin.")
EDITS = Says("It is renamed.\n" + EDIT)


def cached(text):
    return [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]


def turns():
    picture = [{"type": "text", "text": "shot.png"},
               {"type": "image_url", "image_url": {"url": PNG_URL, "detail": "high"}}]
    document = [{"type": "text", "text": "doc.pdf"}, {"type": "image_url", "image_url": {
        "url": "data:application/pdf;base64," + PDF}}]
    blocks = [{"role": "system", "content": cached("Change code.")}, *SHOWN[1:-2],
              user(cached("main.c\n" + SOURCE)), assistant("Ok."), ASK]
    again = [*SHOWN, ASK, assistant(EDITS.text), user("The block was not found in main.c.")]
    return [("first_turn", [*SHOWN, ASK, REMINDER], EDITS, ""),
            ("edit_that_failed", again, EDITS, ""),
            ("errors_of_a_linter", [*again, assistant(EDITS.text), user("Fix main.c:2: error")],
             EDITS, "edit_that_failed"),
            ("cached_blocks", blocks, EDITS, ""),
            ("picture", [*SHOWN, user(picture), assistant("Ok."), ASK], EDITS, ""),
            ("document", [*SHOWN, user(document), assistant("Ok."), ASK], EDITS, ""),
            ("plan", [RULES, user("How would one rename main?")],
             Says("In one place.", "It is easy."), ""),
            ("answer_that_was_cut", [*SHOWN, ASK, assistant("It is", prefix=True)],
             Says(" renamed."), ""),
            ("rules_as_the_user", [user(RULES["content"]), assistant("Ok."), ASK], EDITS, "")]


def requests(model):
    more = {
        "plan": {"reasoning_effort": "high",
                 "thinking": {"type": "enabled", "budget_tokens": 1024}},
        "picture": {"max_tokens": 800, "num_ctx": 8192, "drop_params": True},
        "cached_blocks": {"extra_body": {"provider": {"order": ["a"]}}, "stop": ["<|fence|>"]}}
    talk = [Request(name, PATH, {"model": model, "messages": messages, "temperature": 0,
                                 **more.get(name, {})}, says, continues=before)
            for name, messages, says, before in turns()]
    commit = [{"role": "system", "content": "Write one line for a commit."}, user("diff --git a b")]
    history = [{"role": "system", "content": "Sum up a talk."}, user("# USER\nRename main.\n")]
    write = {"name": "write_file", "description": "Writes a file.",
             "parameters": schema("path content", path="string", content="string")}
    functions = {"model": model, "messages": [RULES, ASK], "temperature": 0, "tools": [
        {"type": "function", "function": write}],
        "tool_choice": {"type": "function", "function": {"name": "write_file"}}}
    functions["tools"][0]["function"]["parameters"]["properties"] = {
        "path": {"enum": ["main.c"]}, "content": {"enum": ["int begin;"]}}
    all_of_them = [
        Request("models", "/v1/models", method="GET"), *talk,
        Request("commit_message", PATH, {"model": model, "messages": commit, "temperature": 0},
                Says("feat: Begin")),
        Request("summary", PATH, {"model": model, "messages": history, "temperature": 0},
                Says("I asked you to rename main.")),
        Request("function", PATH, functions, Says(calls=(
            Call("write_file", {"path": "main.c", "content": "int begin;"}),)))]
    for request in all_of_them:
        request.headers = HEADERS
    return all_of_them
