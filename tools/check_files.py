#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on source files over 500 lines (800 for tests), on links in documents that lead nowhere, on
paragraphs of documents over 120 words and of comments over 60, and on names that were replaced by
those of the field (docs/glossary.md)."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAX_LINES, MAX_TEST_LINES, MAX_WORDS, MAX_COMMENT_WORDS = 500, 800, 120, 60
CODE = ("*.cc", "*.h", "*.cu", "*.cuh")
REPLACED = re.compile(r"\b(\w*[Ss]lopes?\w*|Likeliest|sure_tokens|turns_residual|turn_back|zetas?"
                      r"|scales_stay|x_bits)\b")


def tracked(*patterns):
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in names.split("\n") if name and (ROOT / name).exists()]


def check_sizes():
    errors = []
    for path in tracked(*CODE, "*.py"):
        lines = len(path.read_text().splitlines())
        limit = MAX_TEST_LINES if "test" in path.name else MAX_LINES
        if lines > limit:
            errors.append(f"{path.relative_to(ROOT)}: {lines} lines, at most {limit}")
    return errors


def anchors(text):
    """GitHub's anchors of the headings of a document."""
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def check_links():
    errors = []
    for path in tracked("*.md"):
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            destination = (path.parent / file) if file else path
            if not destination.exists():
                errors.append(f"{path.relative_to(ROOT)}: link to {target}, which does not exist")
            elif anchor and anchor not in anchors(destination.read_text()):
                errors.append(f"{path.relative_to(ROOT)}: no heading for {target}")
    return errors


def paragraphs(text):
    """Line numbers and texts of paragraphs and list items, without code, tables and headings."""
    start, block, fenced = 0, [], False
    for number, line in enumerate([*text.split("\n"), ""], 1):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        apart = fence or fenced or not line.strip() or re.match(r"    |\||#", line)
        if block and (apart or re.match(r" *([-*]|\d+\.) ", line)):
            yield start, " ".join(block)
            block = []
        if not apart:
            start = start if block else number
            block.append(line)


def check_paragraphs():
    errors = []
    for path in tracked("*.md"):
        for line, text in paragraphs(path.read_text()):
            if (words := len(text.split())) > MAX_WORDS:
                errors.append(f"{path.relative_to(ROOT)}:{line}: a paragraph of {words} words, "
                              f"at most {MAX_WORDS}")
    return errors


def check_comments():
    errors = []
    for path in tracked(*CODE):
        start, words = 0, 0
        for number, line in enumerate([*path.read_text().split("\n"), ""], 1):
            comment = re.match(r"\s*///?\s?(.*)$", line)
            if comment and comment[1].strip():
                start = start if words else number
                words += len(comment[1].split())
                continue
            if words > MAX_COMMENT_WORDS:
                errors.append(f"{path.relative_to(ROOT)}:{start}: a comment of {words} words, "
                              f"at most {MAX_COMMENT_WORDS} a paragraph")
            words = 0
    return errors


def check_names():
    errors = []
    for path in tracked(*CODE):
        for number, line in enumerate(path.read_text().split("\n"), 1):
            if found := REPLACED.search(line):
                errors.append(f"{path.relative_to(ROOT)}:{number}: {found[0]} has another name "
                              "now, see docs/glossary.md")
    return errors


def main():
    errors = (check_sizes() + check_links() + check_paragraphs() + check_comments() +
              check_names())
    print("\n".join(errors), end="\n" if errors else "")
    sys.exit(1 if errors else 0)


main()
