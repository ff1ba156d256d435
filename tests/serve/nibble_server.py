# SPDX-License-Identifier: Apache-2.0
"""Runs `nibble serve` for tests, and models for it."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import time
import urllib.request

TINY = pathlib.Path(__file__).resolve().parents[2] / "samples/tiny"

# Tools in the way of Hermes, and reasoning between tags: what no model of this size has learned,
# and what grammars make it write all the same.
TOOL_TEMPLATE = (
    "{{ bos_token }}{% if tools %}<|tools|>\n{{ tools | tojson }}\n"
    "Call as <tool_call>\n{\"name\": .., \"arguments\": ..}\n</tool_call>\n{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>\n{% if m.content %}"
    "{{ m.content.split('</think>')[-1] }}{% endif %}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>"
    "{% endfor %}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}")

# The same for models whose system message stands in front of all others.
STRICT_TEMPLATE = TOOL_TEMPLATE.replace(
    "{% for m in messages %}",
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('the system message must be the first') }}{% endif %}")


def change_json(path, **fields):
    path.chmod(0o644)
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def make_tool_model(directory, context=None, template=TOOL_TEMPLATE):
    """A copy of samples/tiny whose template knows tools and reasoning, with another context."""
    shutil.copytree(TINY, directory)
    change_json(pathlib.Path(directory) / "tokenizer_config.json", chat_template=template)
    if context:
        change_json(pathlib.Path(directory) / "config.json", max_position_embeddings=context)
    return str(directory)


class Server:
    """A process on a free port, from entering to leaving a `with`."""

    def __init__(self, nibble, model, *options, name="model", key=None):
        self.command = [nibble, "serve", model, "--port", "0", "--name", name, *options]
        self.name, self.key = name, key

    def __enter__(self):
        environment = {k: v for k, v in os.environ.items() if k != "NIBBLE_API_KEY"}
        if self.key:
            environment["NIBBLE_API_KEY"] = self.key
        self.process = subprocess.Popen(self.command, env=environment, text=True,
                                        stderr=subprocess.PIPE)
        self.lines = []
        for line in self.process.stderr:
            self.lines.append(line)
            if match := re.match(r"nibble: serving on (http://\S+)", line):
                self.url = match[1]
                break
        else:
            raise RuntimeError("the server did not start: " + "".join(self.lines))
        # Lines of the log would fill the pipe.
        self.log = subprocess.Popen(["cat"], stdin=self.process.stderr, stdout=subprocess.DEVNULL)
        return self

    def __exit__(self, *unused):
        self.process.terminate()
        self.status = self.process.wait(60)
        self.log.wait(60)

    def get(self, path, body=None):
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        with urllib.request.urlopen(request) as answer:
            return answer.read().decode()

    def metric(self, name):
        return float(re.search(rf"^vllm:{name}{{.*}} (\S+)$", self.get("/metrics"), re.M)[1])

    def wait_idle(self, seconds):
        """Seconds until no request runs or waits; raises where that takes longer."""
        start = time.monotonic()
        while self.metric("num_requests_running") + self.metric("num_requests_waiting") > 0:
            if time.monotonic() - start > seconds:
                raise AssertionError(f"a request still runs after {seconds} s")
            time.sleep(0.01)
        return time.monotonic() - start
