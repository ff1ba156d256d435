# SPDX-License-Identifier: Apache-2.0
"""Runs the two sides: a peer's timer program, which stays loaded between runs, and `nibble bench`.

Everything that bench/peers assumes about the command line and the JSON of `nibble bench` is in the
class Nibble.
"""
import json
import os
import re
import signal
import subprocess

from peer_tools.install import Failed


def last_line(text):
    """Programs end with the reason; only argument parsers add a hint behind it."""
    lines = [line for line in text.splitlines() if line.strip() and "--help" not in line]
    return lines[-1].strip() if lines else ""


class Peer:
    """A timer program. It waits on its standard input between runs and uses no time there."""

    def __init__(self, command, threads):
        environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
        self.process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env=environment)
        self.info = {}

    def __enter__(self):
        while (line := self.read()) != "ready":
            key, _, value = line.partition("\t")
            self.info[key] = value
        return self

    def __exit__(self, *error):
        if error[0]:
            self.process.kill()
        self.process.communicate()

    def read(self):
        line = self.process.stdout.readline()
        if line:
            return line.rstrip("\n")
        reason, code = last_line(self.process.communicate()[1]), self.process.returncode
        name = signal.Signals(-code).name if code < 0 else code  # SIGILL: built for another machine
        raise Failed(reason or f"{self.process.args[0]} ended with {name}")

    def microseconds(self):
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # read() says why
        return float(self.read())


class Nibble:
    """On a checkpoint, or on a shape with random weights."""

    def __init__(self, program, threads, a):
        self.program = str(program)
        self.common = ["--threads", threads, "--repeats", 1, "--json"]
        self.bits = ["--shape", a.shape, "--recipe", "quarot", "--a-bits", a.a_bits, "--kv-bits", a.kv_bits]
        self.model = [a.checkpoint] if a.checkpoint else [*self.bits, "--layers", a.layers]

    def bench(self, verb, options, isa):
        environment = dict(os.environ)
        if isa:
            environment["NIBBLE_ISA"] = isa
        command = [self.program, "bench", verb, *self.common, *options]
        try:
            done = subprocess.run([str(word) for word in command], env=environment, check=True,
                                  capture_output=True, text=True)
            return json.loads(done.stdout)
        except subprocess.CalledProcessError as error:
            raise Failed(f"nibble: {last_line(error.stderr) or error}") from error
        except (OSError, ValueError) as error:
            raise Failed(f"nibble: {error}") from error

    def tokens_per_second(self, row):
        options = [*self.model, "--tokens", row.tokens]
        if row.verb == "decode":
            options += ["--context", row.context, "--batch", row.sequences]
        return float(self.bench(row.verb, options, row.isa)[0]["tokens_per_second"])

    def tops(self, row):
        """The best of the matrix kernels that ran on the shape tokens x outputs x inputs."""
        rows = self.bench("kernels", ["--tokens", row.tokens, *self.bits[:4]], row.isa)
        wanted = sorted([row.tokens, row.outputs, row.inputs])
        found = [r["tops"] for r in rows if "tops" in r
                 and sorted(int(n) for n in re.findall(r"\d+", r["shape"])) == wanted]
        if not found:
            raise Failed(f"nibble: bench kernels has no row of {wanted}")
        return float(max(found))
