#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Digests of what Nibble makes and says, for changes that must change no byte.

Run it with the build before and the build after a change, and compare the two lists:

    tests/digests/digests.py --build build/release > before.txt
    tests/digests/digests.py --build build/release > after.txt; diff before.txt after.txt

A line is a name and 16 digits of a SHA-256: the files of checkpoints of every family under every
recipe, log-likelihoods and greedy tokens of these and of the golden models, texts and JSON of
commands, answers of the server. What is refused is digested with its message. Times and random
names are left out. It needs the target nibble_family_models and, for golden models, the folder
of test data (NIBBLE_SHARED)."""

import argparse
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TINY = SOURCE / "samples" / "tiny"
# Recipes whose defaults want wider layers than the models have.
FIELDS = {"quik": ["--tail", "16"], "atom": ["--tail", "16", "--group", "32"]}
PARTS = ["families", "goldens", "commands", "server"]
# Keys of JSON whose values are times, speeds or random.
UNSTEADY = re.compile(r"seconds|_us$|per_second|_ms$|^id$|created|timings|elapsed|date|_bytes$")


def steady(value):
    """The value without what differs from run to run."""
    if isinstance(value, dict):
        return {key: steady(item) for key, item in value.items() if not UNSTEADY.search(key)}
    return [steady(item) for item in value] if isinstance(value, list) else value


def steady_text(text):
    """JSON or JSON Lines without what differs from run to run; other texts as they are."""
    try:
        lines = [json.dumps(steady(json.loads(line)), sort_keys=True)
                 for line in text.splitlines() if line]
        return "\n".join(lines)
    except ValueError:
        return text


class Digests:
    def __init__(self, arguments):
        self.nibble = arguments.build / "bin" / "nibble"
        self.models = arguments.build / "tests" / "nibble_family_models"
        self.devices = arguments.device
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="nibble-digests-"))
        self.requests = self.work / "requests.jsonl"
        self.requests.write_text(json.dumps(
            {"context": [5, 300, 17, 33], "continuation": [500 - 11 * i for i in range(40)]}))

    def add(self, name, *contents):
        digest = hashlib.sha256()
        for content in contents:
            digest.update(content if isinstance(content, bytes) else content.encode())
        print(f"{name}\t{digest.hexdigest()[:16]}", flush=True)

    def run(self, name, *arguments, prints=True):
        """Digests what a command prints, if that matters, or how it refuses; returns whether it
        did not."""
        done = subprocess.run([self.nibble, *map(str, arguments)], capture_output=True, text=True,
                              check=False)
        made = done.returncode == 0
        text = done.stdout if made else done.stderr.splitlines()[-1]
        if prints or not made:
            self.add(name if made else f"{name} refused",
                     steady_text(text).replace(str(self.work), ""))
        return made

    def model(self, name, path):
        for device in self.devices:
            place = ["--device", device, "--json"]
            self.run(f"{name} likelihood {device}", "eval", "loglikelihood", path, "--requests",
                     self.requests, *place)
            self.run(f"{name} tokens {device}", "generate", path, "--prompt-ids", 5, 300, 17,
                     "--max-tokens", 24, *place)

    def families(self):
        source = self.work / "families"
        subprocess.run([self.models, source, TINY / "tokenizer.json"], check=True)
        out = self.work / "out"
        help_text = subprocess.run([self.nibble, "quantize", "--help"], capture_output=True,
                                   text=True, check=True).stdout
        methods = help_text.partition("Method:\n")[2].partition("\n  --")[0]
        recipes = re.findall(r"^\s+(\w+): ", methods, re.MULTILINE)
        for model in sorted(source.iterdir()):
            for recipe in recipes:
                name = f"{model.name} {recipe}"
                if not self.run(f"{name} quantize", "quantize", model, "-o", out, "--recipe", recipe,
                                *FIELDS.get(recipe, []), "--calib-windows", 2, "--context", 64,
                                "--force", prints=False):
                    continue
                for file in sorted(path for path in out.rglob("*") if path.is_file()):
                    self.add(f"{name} {file.relative_to(out)}", file.read_bytes())
                self.model(name, out)
            shutil.rmtree(f"{out}.partial", ignore_errors=True)
            shutil.rmtree(model)

    def goldens(self):
        shared = pathlib.Path(os.environ.get("NIBBLE_SHARED", SOURCE.parent / "shared"))
        folders = [*(SOURCE / "tests/data/architectures").iterdir(),
                   *(shared / "data/architectures").glob("*")]
        for folder in sorted(folder for folder in folders if (folder / "config.json").exists()):
            self.model(f"golden {folder.name}", folder)

    def commands(self):
        prompts = self.work / "prompts.jsonl"
        prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in
                                   ["Once upon a time", "The river", "Four words in all"]))
        sample = ["--sample", "--seed", "7", "--max-tokens", "40"]
        for name, command in {
                "generate": ["generate", TINY, "--prompt", "The river", "--max-tokens", 40],
                "generate json": ["generate", TINY, "--prompt", "The", *sample, "--json"],
                "generate penalties": ["generate", TINY, "--prompt", "The", *sample,
                                       "--repetition-penalty", 1.2, "--stop", "."],
                "generate batch": ["generate", TINY, "--batch", prompts, *sample],
                "ppl": ["eval", "ppl", TINY, "--text", SOURCE / "samples/prose.txt", "--json"],
                "tokenize": ["tokenize", TINY, "--text", "Four words in all", "--json"],
                "inspect": ["inspect", TINY, "--json"],
                "kernels": ["inspect", "--kernels"],
                "dry run": ["quantize", TINY, "-o", self.work / "o", "--dry-run", "--json"],
                "recipe": ["quantize", TINY, "-o", self.work / "o", "--recipe", "none"],
                "unknown": ["generate", self.work / "absent", "--prompt", "x"]}.items():
            self.run(f"command {name}", *command)

    def server(self):
        server = subprocess.Popen([self.nibble, "serve", TINY, "--port", "0"],
                                  stderr=subprocess.PIPE, text=True)
        try:
            address = ""
            while not address:
                found = re.search(r"http://[\w.:]+", server.stderr.readline())
                address = found.group(0) if found else ""
            for path, body in {
                    "/v1/completions": {"prompt": "The river", "max_tokens": 24, "logprobs": 2},
                    "/v1/completions?stream": {"prompt": "The", "max_tokens": 24, "stream": True,
                                               "temperature": 0},
                    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello"}],
                                             "max_tokens": 16, "seed": 3},
                    "/v1/embeddings": {"input": ["one", "two words"]},
                    "/tokenize": {"content": "Four words in all"},
                    "/v1/models": None, "/props": None}.items():
                self.add(f"server {path}", self.answer(address + path, body))
        finally:
            server.terminate()
            server.wait()

    @staticmethod
    def answer(url, body):
        request = urllib.request.Request(
            url, None if body is None else json.dumps({"temperature": 0, **body}).encode(),
            {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                text = response.read().decode()
        except urllib.error.HTTPError as error:
            text = f"{error.code} {error.read().decode()}"
        lines = [line.removeprefix("data: ") for line in text.splitlines()]
        return "\n".join(steady_text(line) for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=SOURCE / "build/release",
                        help="folder of a build with nibble_cli and nibble_family_models")
    parser.add_argument("--device", action="append", help="cpu (default), cuda:0; again for more")
    parser.add_argument("--only", default=",".join(PARTS), help="of " + ", ".join(PARTS))
    arguments = parser.parse_args()
    arguments.device = arguments.device or ["cpu"]
    unknown = set(arguments.only.split(",")) - set(PARTS)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    digests = Digests(arguments)
    start = time.monotonic()
    try:
        for part in PARTS:
            if part in arguments.only.split(","):
                getattr(digests, part)()
                print(f"{part}: {time.monotonic() - start:.0f} s", file=sys.stderr)
    finally:
        shutil.rmtree(digests.work)


if __name__ == "__main__":
    main()
