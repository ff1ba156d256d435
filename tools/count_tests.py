#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sums up GoogleTest's XML results: count_tests.py FOLDER... prints `skipped: N (reasons)` and then
`N passed, N failed`. A program that died has no result file and counts as failed, and so does a test
that was skipped for something that this machine has."""
import argparse
import collections
import ctypes
import importlib.util
import os
import pathlib
import re
import sys
import xml.etree.ElementTree

SHARED = pathlib.Path(os.environ.get("NIBBLE_SHARED", pathlib.Path(__file__).parents[2] / "shared"))
CPU_FLAGS = set(re.search(r"flags\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())[1].split())


def loads(library):
    try:
        return bool(ctypes.CDLL(library))
    except OSError:
        return False


# What a skipped test says it "needs": whether it is here. A path says so itself.
HERE = {
    "avx2": {"avx2", "fma"} <= CPU_FLAGS,
    "avx_vnni": {"avx2", "avx_vnni"} <= CPU_FLAGS,
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"} <= CPU_FLAGS,
    "avx512_bf16": {"avx512_vnni", "avx512_bf16"} <= CPU_FLAGS,
    "avx512_vbmi": {"avx512_vnni", "avx512_vbmi"} <= CPU_FLAGS,
    "amx": {"amx_tile", "amx_int8", "amx_bf16", "avx512_bf16"} <= CPU_FLAGS,
    "a GPU": pathlib.Path("/dev/nvidiactl").exists(),
    "cuDNN": loads("libcudnn.so.9"),
    "python3-jsonschema": importlib.util.find_spec("jsonschema") is not None,
    "NIBBLE_SCHEMA_SUITE": "NIBBLE_SCHEMA_SUITE" in os.environ,
}


def may_lack(need, names):
    """Whether a build with the test programs `names` may lack `need` on this machine."""
    if need.startswith("shared/"):
        return not (SHARED / need.removeprefix("shared/")).exists()
    if need.endswith(".gguf"):  # as src/models/real_model_testing.h looks for it
        home = pathlib.Path(os.environ.get("HOME", "/"))
        cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", home / ".cache"))
        folders = [pathlib.Path(os.environ.get("NIBBLE_MODELS", "/nowhere")), cache / "nibble"]
        return not any((folder / need).exists() for folder in folders)
    if need.startswith("/"):
        return not pathlib.Path(need).exists()
    if need == "a GPU" and "gpu" not in names:
        return True  # built without CUDA
    return not HERE.get(need, True)


def programs(folder):
    """Names of the test programs that should have left a result in `folder`."""
    names = []
    for listing in folder.parent.rglob("CTestTestfile.cmake"):
        names += re.findall(r"--gtest_output=xml:\S*/([\w-]+)\.xml", listing.read_text())
    return names


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    passed, failures, skips = 0, [], collections.Counter()
    for folder in arguments.folders:
        names = programs(folder)
        for name in names:
            file = folder / f"{name}.xml"
            if not file.exists():
                failures.append(f"{folder.parent.name} {name} left no result (crash or timeout)")
                continue
            for test in xml.etree.ElementTree.parse(file).iter("testcase"):
                where = f"{folder.parent.name} {test.get('classname')}.{test.get('name')}"
                skipped = test.find("skipped")
                if test.find("failure") is not None:
                    failures.append(where)
                elif skipped is not None:  # "FILE:LINE\nREASON"
                    reason = skipped.get("message").strip().splitlines()[-1]
                    if not may_lack(reason.removeprefix("needs "), names):
                        failures.append(f"{where} was skipped: {reason}, which is no reason here")
                    skips[re.sub("shared/.*", "shared data", reason)] += 1
                elif test.get("status") == "run":
                    passed += 1
    print("".join(f"failed: {failure}\n" for failure in failures), end="")
    why = "; ".join(f"{count}x {reason}" for reason, count in sorted(skips.items()))
    print(f"skipped: {sum(skips.values())}" + (f" ({why})" if why else ""))
    print(f"{passed} passed, {len(failures)} failed")
    sys.exit(1 if failures or not passed else 0)


main()
