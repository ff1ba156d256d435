#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when a file includes a layer that docs/architecture.md ("Layers") does not allow it.

The document's table has rows `| folder | may include |`; a folder may also include what its allowed
folders may include. Tests may include tests/, x_testing.h headers and all of their library besides.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def allowed_layers():
    text = (ROOT / "docs/architecture.md").read_text()
    section = text.split("## Layers", 1)[1].split("\n## ", 1)[0]
    direct = {}
    for row in re.findall(r"^\| `([^`]+)` \| ([^|]*) \|", section, re.M):
        direct[row[0]] = re.findall(r"`([^`]+)`", row[1])
    if not direct:
        sys.exit("docs/architecture.md: no rows under '## Layers'")

    def closure(folder, seen):
        for lower in direct.get(folder, []):
            if lower not in seen:
                seen.add(lower)
                closure(lower, seen)
        return seen

    return {folder: closure(folder, {folder}) for folder in direct}


def layer_of(path, layers):
    """The longest folder of `path` (relative to src/) that the table names."""
    parts = path.split("/")
    for length in range(len(parts) - 1, 0, -1):
        folder = "/".join(parts[:length])
        if folder in layers:
            return folder
    return None


def main():
    layers = allowed_layers()
    errors = 0
    for top in ("src", "apps"):
        base = ROOT / top if top == "src" else ROOT
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix not in (".h", ".cc", ".cu", ".cuh"):
                continue
            name = str(path.relative_to(base))
            layer = layer_of(name, layers)
            is_test = re.search(r"_test(ing)?\.\w+$", name)
            if layer is None:
                print(f"{path.relative_to(ROOT)}: its folder is not in docs/architecture.md")
                errors += 1
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                match = re.match(r'#include "([^"]+)"', line)
                if not match or match[1].startswith("nibble/"):
                    continue
                if is_test and re.search(r"^tests/|_testing\.h$", match[1]):
                    continue
                target = layer_of(match[1], layers)
                if is_test and match[1].split("/")[0] == name.split("/")[0]:
                    continue
                if target not in layers[layer]:
                    print(f"{path.relative_to(ROOT)}:{number}: {layer} may not include {match[1]}")
                    errors += 1
    sys.exit(1 if errors else 0)


main()
