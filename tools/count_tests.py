#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sums up GoogleTest's XML results: count_tests.py FOLDER... prints `skipped: N (reasons)` and then
`N passed, N failed`. A program that died has no result file and counts as failed."""
import collections
import pathlib
import re
import sys
import xml.etree.ElementTree


def programs(folder):
    """Names of the test programs that should have left a result in `folder`."""
    names = []
    for listing in folder.parent.rglob("CTestTestfile.cmake"):
        names += re.findall(r"--gtest_output=xml:\S*/([\w-]+)\.xml", listing.read_text())
    return names


def main():
    passed, failed, reasons = 0, 0, collections.Counter()
    for folder in map(pathlib.Path, sys.argv[1:]):
        for name in programs(folder):
            file = folder / f"{name}.xml"
            if not file.exists():
                print(f"failed: {folder.parent.name} {name} left no result (crash or timeout)")
                failed += 1
                continue
            for test in xml.etree.ElementTree.parse(file).iter("testcase"):
                skipped = test.find("skipped")
                if test.find("failure") is not None:
                    print(f"failed: {folder.parent.name} {test.get('classname')}.{test.get('name')}")
                    failed += 1
                elif skipped is not None:  # "FILE:LINE\nREASON"
                    reasons[skipped.get("message").strip().splitlines()[-1]] += 1
                elif test.get("status") == "run":
                    passed += 1
    why = "; ".join(f"{count}x {reason}" for reason, count in sorted(reasons.items()))
    print(f"skipped: {sum(reasons.values())}" + (f" ({why})" if why else ""))
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


main()
