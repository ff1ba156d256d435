# SPDX-License-Identifier: Apache-2.0
"""litellm: as an OpenAI-compatible and as an Anthropic-compatible provider."""
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # Else it asks for a list of prices.
import litellm

from client_tests.checks import QUESTION, WEATHER, check, equal, raises, valid

litellm.suppress_debug_info = True
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]


def ask(server, provider="openai", **options):
    url = server.url + ("/v1" if provider in ("openai", "hosted_vllm") else "")
    return litellm.completion(f"{provider}/{server.name}", messages=QUESTION, api_base=url,
                              api_key=server.key or "none", num_retries=0, max_retries=0,
                              **{"max_tokens": 24, **options})


def test_providers(servers):
    for provider in ("openai", "hosted_vllm", "anthropic"):
        answer = ask(servers["chat"], provider)
        choice = answer.choices[0]
        check(choice.message.content, provider)
        equal((choice.finish_reason, answer.usage.completion_tokens), ("length", 24))


def test_streams(servers):
    for provider in ("openai", "hosted_vllm", "anthropic"):
        # One way to pass a field that a provider does not have.
        fields = {"extra_body": {"seed": 3}} if provider != "anthropic" else {"temperature": 0}
        whole = ask(servers["chat"], provider, **fields).choices[0].message.content
        chunks = list(ask(servers["chat"], provider, stream=True,
                          stream_options={"include_usage": True}, **fields))
        equal("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), whole)
        rebuilt = litellm.stream_chunk_builder(chunks, messages=QUESTION)
        equal(rebuilt.choices[0].message.content, whole)
        equal(rebuilt.usage.completion_tokens, 24)


def test_tools(servers):
    for provider in ("openai", "anthropic"):
        answer = ask(servers["tools"], provider, tools=TOOLS, tool_choice="required",
                     max_tokens=100).choices[0]
        equal(answer.finish_reason, "tool_calls")
        valid(answer.message.tool_calls[0].function.arguments, WEATHER)
        chunks = list(ask(servers["tools"], provider, tools=TOOLS, tool_choice="required",
                          max_tokens=100, stream=True))
        message = litellm.stream_chunk_builder(chunks, messages=QUESTION).choices[0].message
        valid(message.tool_calls[0].function.arguments, WEATHER)


def test_reasoning(servers):
    form = {"guided_regex": "<think>[a-z]{5}</think>[A-Z]{4}"}
    message = ask(servers["tools"], extra_body=form, max_tokens=60).choices[0].message
    equal((len(message.reasoning_content), len(message.content)), (5, 4))


def test_text_and_embeddings(servers):
    server = servers["chat"]
    fields = {"api_base": server.url + "/v1", "api_key": "none"}
    answer = litellm.text_completion("A cat", model=f"text-completion-openai/{server.name}",
                                     max_tokens=8, **fields)
    check(answer.choices[0].text)
    vectors = litellm.embedding(f"openai/{server.name}", input=["A cat", "A dog"], **fields)
    equal([len(d["embedding"]) for d in vectors.data], [len(vectors.data[0]["embedding"])] * 2)


def test_errors(servers):
    server = servers["chat"]
    with raises(litellm.NotFoundError, "there is no model another"):
        litellm.completion("openai/another", messages=QUESTION, api_base=server.url + "/v1",
                           api_key="none", max_retries=0)
    with raises(litellm.ContextWindowExceededError):
        litellm.completion(f"openai/{server.name}", api_base=server.url + "/v1", api_key="none",
                           messages=[{"role": "user", "content": "cat " * 20000}], max_retries=0)
