# SPDX-License-Identifier: Apache-2.0
"""llm: its command line with a model of extra-openai-models.yaml."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from client_tests.checks import WEATHER, check, equal, valid

ENTRY = """- model_id: {id}
  model_name: {name}
  api_base: "{url}/v1"
  supports_schema: true
  supports_tools: true
  api_key_name: nibble
"""


def llm(server, *arguments):
    with tempfile.TemporaryDirectory() as directory:
        entry = ENTRY.format(id="served", name=server.name, url=server.url)
        (pathlib.Path(directory) / "extra-openai-models.yaml").write_text(entry)
        (pathlib.Path(directory) / "keys.json").write_text(
            '{"nibble": "%s"}' % (server.key or "none"))
        environment = {**os.environ, "LLM_USER_PATH": directory}
        command = [sys.executable, "-m", "llm", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL)
    check(done.returncode == 0, done.stderr)
    return done.stdout


def prompt(server, *more):
    return llm(server, "prompt", "-m", "served", "Tell me about cats.", *more)


def test_stream_is_whole(servers):
    options = ("-o", "seed", "3", "-o", "max_tokens", "16")
    text = prompt(servers["chat"], *options)
    check(text.strip())
    equal(prompt(servers["chat"], "--no-stream", *options), text)


def test_system_and_key(servers):
    check(prompt(servers["tools"], "--system", "Be short.", "-o", "max_tokens", "8").strip())


def test_schema(servers):
    text = prompt(servers["chat"], "--schema", json.dumps(WEATHER), "-o", "max_tokens", "200")
    valid(text, WEATHER)
