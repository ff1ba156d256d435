# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven over pipes with its DevTools protocol; needs nothing else."""
import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find_chromium():
    """The path of a Chromium, or None. CHROMIUM in the environment goes first."""
    names = [os.environ["CHROMIUM"]] if os.environ.get("CHROMIUM") else NAMES
    return next((path for path in map(shutil.which, names) if path), None)


class Browser:
    """One Chromium with one page, which keeps what went wrong on it in `problems`."""

    def __init__(self, executable):
        self.profile = tempfile.TemporaryDirectory(prefix="chat_page_", ignore_cleanup_errors=True)
        # Chromium reads commands from descriptor 3 and answers on 4. High numbers on this side, so
        # that moving them onto 3 and 4 in the child cannot overwrite one of them.
        pipes = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (*os.pipe(), *os.pipe())]
        command_read, self.commands, self.answers, answer_write = pipes

        def move():
            os.dup2(command_read, 3)
            os.dup2(answer_write, 4)

        # Chromium's sandbox refuses to run as root, which tests in containers are.
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                 "--no-first-run", "--disable-extensions",
                 # A mouse, which machines without a screen do not report.
                 "--blink-settings=primaryHoverType=2,availableHoverTypes=2,"
                 "primaryPointerType=4,availablePointerTypes=4",
                 "--remote-debugging-pipe", f"--user-data-dir={self.profile.name}", "about:blank"]
        self.process = subprocess.Popen([executable, *flags], preexec_fn=move, pass_fds=(3, 4),
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(command_read)
        os.close(answer_write)
        self.buffer, self.last_id, self.session = b"", 0, None
        self.problems, self.loads = [], 0
        self.attach()

    def attach(self):
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.commands)
        os.close(self.answers)
        self.profile.cleanup()

    # The protocol: JSON messages that end with a zero byte.

    def call(self, method, **params):
        self.last_id += 1
        message = {"id": self.last_id, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 60
        while True:
            answer = self.receive(deadline)
            if answer.get("id") != self.last_id:
                self.note(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']['message']}")
            else:
                return answer["result"]

    def receive(self, deadline):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.answers], [], [], max(0, deadline - time.monotonic()))
            piece = os.read(self.answers, 1 << 20) if ready else b""
            if not piece:
                raise RuntimeError("Chromium does not answer")
            self.buffer += piece
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def note(self, event):
        """Console errors, exceptions and CSP violations become problems."""
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif event.get("method") == "Runtime.consoleAPICalled":
            if params["type"] in ("error", "warning", "assert"):
                self.problems.append(f"console.{params['type']}: {params['args']}")
        elif event.get("method") == "Log.entryAdded":
            if params["entry"]["level"] in ("error", "warning"):
                self.problems.append(f"{params['entry']['source']}: {params['entry']['text']}")
        elif event.get("method") == "Page.loadEventFired":
            self.loads += 1

    # The page.

    def open(self, url):
        loads = self.loads
        self.call("Page.navigate", url=url)
        self.until_loaded(loads)

    def reload(self):
        loads = self.loads
        self.call("Page.reload")
        self.until_loaded(loads)

    def until_loaded(self, loads):
        deadline = time.monotonic() + 30
        while self.loads == loads:
            self.note(self.receive(deadline))

    def run(self, script):
        """The value of an expression on the page (a promise's value once it is there)."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True,
                           awaitPromise=True)
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return result["result"].get("value")

    def wait(self, condition, seconds=20):
        deadline = time.monotonic() + seconds
        while not self.run(condition):
            if time.monotonic() > deadline:
                text = self.run("document.body.innerText")
                raise AssertionError(f"never true: {condition}\n{text}")
            time.sleep(0.03)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def key(self, key, shift=False):
        code = {"Enter": 13, "Escape": 27, "Tab": 9}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 * shift}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def click(self, selector, index=0):
        """A mouse click in the middle of an element: what covers the element gets it."""
        found = f"document.querySelectorAll({json.dumps(selector)})[{index}]"
        place = self.run(f"(() => {{ const e = {found}; if (!e) return null;"
                         "e.scrollIntoView({block: 'nearest'});"
                         "const r = e.getBoundingClientRect();"
                         "return {x: r.x + r.width / 2, y: r.y + r.height / 2}; })()")
        if place is None:
            raise AssertionError(f"no {selector} [{index}]")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **place)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def resize(self, width, height, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=2 if phone else 1, mobile=phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)

    def prefer(self, scheme):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))
