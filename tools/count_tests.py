#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sums up GoogleTest's JSON results: count_tests.py FOLDER... prints `skipped: N (reasons)` and then
`N passed, N failed`. A program that died has no result file and counts as failed."""
import collections
import json
import pathlib
import re
import sys


def programs(folder):
    """Names of the test programs that should have left a result in `folder`."""
    names = []
    for listing in folder.parent.rglob("CTestTestfile.cmake"):
        names += re.findall(r"--gtest_output=json:\S*/([\w-]+)\.json", listing.read_text())
    return names


def main():
    passed, failed, reasons = 0, 0, collections.Counter()
    for folder in map(pathlib.Path, sys.argv[1:]):
        for name in programs(folder):
            file = folder / f"{name}.json"
            if not file.exists():
                print(f"failed: {folder.parent.name} {name} left no result (crash or timeout)")
                failed += 1
                continue
            for suite in json.loads(file.read_text())["testsuites"]:
                for test in suite["testsuite"]:
                    if test.get("failures"):
                        print(f"failed: {folder.parent.name} {suite['name']}.{test['name']}")
                        failed += 1
                    elif test["result"] == "SKIPPED":
                        message = test["skipped"][0]["message"].strip().splitlines()[-1]
                        reasons[message] += 1
                    elif test["status"] == "RUN":
                        passed += 1
    why = "; ".join(f"{count}x {reason}" for reason, count in sorted(reasons.items()))
    print(f"skipped: {sum(reasons.values())}" + (f" ({why})" if why else ""))
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


main()
