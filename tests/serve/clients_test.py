#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Unmodified clients against `nibble serve`: scripted conversations with each of its APIs.

clients_test.py --nibble PROGRAM --model MODEL [--only TEXT]
MODEL must have a chat template. Clients that are not installed are skipped:
pip install openai anthropic llm litellm langchain-openai jsonschema
"""
import argparse
import importlib
import importlib.metadata
import importlib.util
import sys
import tempfile
import traceback

from nibble_server import Server, make_tool_model

# A module of tests here, and the package that it needs.
MODULES = [("openai_chat", "openai"), ("openai_tools", "openai"), ("openai_others", "openai"),
           ("openai_responses", "openai"), ("anthropic_messages", "anthropic"), ("llm_tool", "llm"),
           ("litellm_calls", "litellm"), ("langchain_chat", "langchain_openai")]


def run(function, servers):
    try:
        function(servers)
    except Exception:  # A test's failure, whatever its kind, must not end the others.
        traceback.print_exc()
        return False
    return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nibble", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--only", default="", help="tests whose names contain this")
    options = parser.parse_args()
    passed = failed = skipped = 0
    with (tempfile.TemporaryDirectory() as directory,
          Server(options.nibble, options.model, name="chat-model") as chat,
          Server(options.nibble, make_tool_model(directory + "/tools"), name="tool-model",
                 key="sk-test") as tools):
        for module_name, package in MODULES:
            if importlib.util.find_spec(package) is None:
                print(f"SKIP {module_name}: {package} is not installed")
                skipped += 1
                continue
            version = importlib.metadata.version(package.replace("_", "-"))
            print(f"{module_name}, {package} {version}")
            module = importlib.import_module("client_tests." + module_name)
            for name, function in vars(module).items():
                if not name.startswith("test_") or options.only not in name:
                    continue
                ok = run(function, {"chat": chat, "tools": tools})
                print(f"  {'ok  ' if ok else 'FAIL'} {name}", flush=True)
                passed, failed = passed + ok, failed + (not ok)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
