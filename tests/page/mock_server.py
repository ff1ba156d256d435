# SPDX-License-Identifier: Apache-2.0
"""A stand-in for `nibble serve`: serves the chat page with its policy and answers by scenario.

The first word of the last message's last paragraph chooses the scenario (SCENARIOS; the page joins
messages whose answers failed); what is none is echoed.
"""
import base64
import hashlib
import http.server
import json
import pathlib
import random
import re
import threading
import time

PAGE = pathlib.Path(__file__).resolve().parents[2] / "src/serve/page/chat.html"
HOSTILE = ("<img src=x onerror=\"window.hacked=1\"> <script>window.hacked=2</script>\n\n"
           "[a](javascript:window.hacked=3) [b](data:text/html,x) [c](https://example.com/?a=(1)) "
           "`<b>` **<i>bold</i>**\n\n```html\n<script>window.hacked=4</script>\n```\n")
SHOWCASE = """Four bits per weight leave **sixteen values** for each number, so everything \
depends on *which* sixteen they are.

## How it works

1. Weights are cut into groups of 128, and each group gets a scale of its own.
2. Outliers are spread out with a rotation, so that no single channel sets the scale.
3. What rounding loses is corrected in the weights that are still to come.
   - This is what `GPTQ` does.

```python
def quantize(weights, group=128):
    w = weights.reshape(-1, group)
    scale = np.abs(w).max(axis=1, keepdims=True) / 7
    return np.clip(np.round(w / scale), -8, 7), scale
```

| Format | Bits | Perplexity |
| --- | --- | --- |
| fp16 | 16 | 13.39 |
| w4a8 | 4.25 | 13.58 |

> Memory shrinks to about a quarter, and with it the time for each token.

The details are in [QuaRot's paper](https://arxiv.org/abs/2404.00456)."""


def policy(page):
    """The header of the server: the hashes of the one script and the one style."""
    def source(tag):
        text, = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
    return (f"default-src 'none'; script-src {source('script')}; style-src {source('style')}; "
            "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'")


class MockServer:
    """Runs on a free port of 127.0.0.1; `requests` holds the bodies of chat requests."""

    def __init__(self):
        self.requests, self.metrics_times, self.key, self.refusals = [], [], None, 0
        self.template = "a template"
        self.disconnected = threading.Event()
        handler = type("Handler", (Handler,), {"mock": self})
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}/"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_GET(self):
        if self.path == "/":
            page = PAGE.read_text()
            headers = {"Content-Security-Policy": policy(page)}
            self.reply(200, page, "text/html; charset=utf-8", headers)
        elif not self.allowed():
            self.refuse(401, "A key is needed.")
        elif self.path == "/v1/models":
            self.reply(200, json.dumps({"object": "list", "data": [{"id": "smollm2-1.7b-w4a8"}]}))
        elif self.path == "/props":
            parameters = {"temperature": 0.7, "top_p": 0.95, "top_k": 0, "min_p": 0.05}
            self.reply(200, json.dumps({"default_generation_settings": {"params": parameters},
                                        "chat_template": self.mock.template}))
        elif self.path == "/metrics":
            self.mock.metrics_times.append(time.monotonic())
            self.reply(200, '# TYPE vllm:kv_cache_usage_perc gauge\n'
                            'vllm:kv_cache_usage_perc{model_name="m"} 0.125\n', "text/plain")
        else:
            self.refuse(404, "No such route.")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.allowed():
            return self.refuse(401, "A key is needed.")
        self.mock.requests.append(body)
        if self.path == "/v1/completions":
            return complete(self)
        text = body["messages"][-1]["content"].split("\n\n")[-1]
        scenario = SCENARIOS.get(text.split()[0], SCENARIOS["echo"])
        try:
            scenario(self, text, body)
        except (BrokenPipeError, ConnectionResetError):
            self.mock.disconnected.set()

    def allowed(self):
        return self.mock.key in (None, self.headers.get("Authorization", "")[len("Bearer "):])

    def reply(self, status, text, kind="application/json", headers=None):
        data = text.encode()
        self.send_response(status)
        headers = {"Content-Type": kind, "Content-Length": len(data), **(headers or {})}
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        try:
            self.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # The page was closed.

    def refuse(self, status, message, headers=None):
        error = {"error": {"message": message, "code": status}}
        self.reply(status, json.dumps(error), headers=headers)

    def start(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()

    def send(self, text, pause=0.0):
        self.wfile.write(text.encode() if isinstance(text, str) else text)
        self.wfile.flush()
        time.sleep(pause)

    def delta(self, pause=0.0, **delta):
        chunk = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]}
        self.send(f"data: {json.dumps(chunk)}\n\n", pause)

    def end_stream(self, tokens, reason="stop"):
        chunk = {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
        usage = {"prompt_tokens": 1100, "completion_tokens": tokens, "total_tokens": 1100 + tokens,
                 "prompt_tokens_details": {"cached_tokens": 1024}}
        self.send(f"data: {json.dumps(chunk)}\n\n"
                  f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n")


def pieces(text, size=4):
    return [text[i:i + size] for i in range(0, len(text), size)]


def answer_text(handler, text, pause=0.01):
    handler.start()
    for piece in pieces(text):
        handler.delta(pause, content=piece)
    handler.end_stream(len(pieces(text)))


def complete(handler):
    handler.start()
    for piece in pieces(" a river and a town."):
        handler.send(f"data: {json.dumps({'choices': [{'index': 0, 'text': piece}]})}\n\n")
    handler.end_stream(5, "length")


def echo(handler, text, body):
    answer_text(handler, f"Echo of {text}, turn {len(body['messages'])}.")


def odd_cuts(handler, text, body):
    """A stream in pieces of 1 to 7 bytes, with all line ends, comments and cut characters."""
    ends, out, rng = ["\n", "\r\n", "\r"], b": a comment\r\n\r\n", random.Random(7)
    words = "Gr\u00fc\u00dfe an \U0001f98a und \u65e5\u672c, 3 < 4.".split(" ")
    for index, word in enumerate(words):
        end = ends[index % 3]
        chunk = json.dumps({"choices": [{"delta": {"content": word + "|"}}]}, ensure_ascii=False)
        first, second = chunk.split(": ", 1)  # One event in two data lines.
        out += f":{end}id: {index}{end}data: {first}:{end}data:{second}{end}{end}".encode()
    out += b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\r\n\r\n'
    out += b"data: [DONE]\r\n\r\n"
    handler.start()
    while out:
        size = rng.randint(1, 7)
        handler.send(out[:size], 0.001)
        out = out[size:]


def slow(handler, text, body):
    handler.start()
    for index in range(600):
        handler.delta(0.05, content=f"word{index} ")
    handler.end_stream(600)


def long(handler, text, body):
    """5000 tokens: prose, a list and code, as fast as the page takes them."""
    handler.start()
    count = 0
    for part in ["A **bold** word. " * 250, "\n\n", "- an item\n" * 300, "\n```\n",
                 "let line = 1;\n" * 300, "```\n\n", "more *and* more " * 540, "\n\nTHE END"]:
        for piece in pieces(part):
            handler.delta(0, content=piece)
            count += 1
    handler.end_stream(count)


def tools(handler, text, body):
    handler.start()
    function = {"name": "weather", "arguments": ""}
    handler.delta(tool_calls=[{"index": 0, "id": "c", "function": function}])
    for piece in ('{"city":', '"Oslo"}'):
        handler.delta(tool_calls=[{"index": 0, "function": {"arguments": piece}}])
    handler.end_stream(9, "tool_calls")


def reason(handler, text, body):
    handler.start()
    for piece in pieces("First I think about <it>."):
        handler.delta(0.01, reasoning_content=piece)
    handler.delta(reasoning=" Then more.")
    handler.delta(content="The answer is 42.")
    handler.end_stream(20)


def busy(handler, text, body):
    """Refuses with the status in the message once, then answers."""
    handler.mock.refusals += 1
    if handler.mock.refusals % 2:
        return handler.refuse(int(text.split()[1]), "All places are taken.", {"Retry-After": "1"})
    return echo(handler, text, body)


CODE = '''```python
def f(x):  # "no string"
    """Two
    lines""" + 'a#b'
    g(1, keepdims=True)
    return 0x1F if x else g(x)
```

```sql
SELECT name FROM t -- all
```

```c++
/* one
   two */ int a = 3; // "x"
```

```html
<a href="x"><!-- <b> -->text</a>
```

```
return "plain"
```
'''


def cut(handler, text, body):
    handler.start()
    handler.delta(0.05, content="Half an ans")


def error_event(handler, text, body):
    handler.start()
    handler.delta(0.05, content="Begun")
    handler.send('data: {"error": {"message": "The cache is full.", "code": 500}}\n\n')


def refuse(handler, text, body):
    handler.refuse(400, "The prompt is longer than the context.")


SCENARIOS = {
    "echo": echo, "odd": odd_cuts, "slow": slow, "long": long, "tools": tools, "reason": reason,
    "busy": busy, "cut": cut, "event": error_event, "refuse": refuse,
    "hostile": lambda handler, text, body: answer_text(handler, HOSTILE),
    "code": lambda handler, text, body: answer_text(handler, CODE, 0.001),
    "How": lambda handler, text, body: answer_text(handler, SHOWCASE, 0.02),
}
