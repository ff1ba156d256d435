#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares nibble with the packages that define tokenizers, on real and generated lines.

    tokenizer_parity.py [--lines N] [--text FILE]... NAME=MODEL[=REFERENCE]...

MODEL is what `nibble tokenize` takes. REFERENCE, by default MODEL/tokenizer.json, is a file of the
package tokenizers, or a tokenizer.model of sentencepiece. Needs the package (PyPI) and nibble in
PATH or NIBBLE. Prints a line for each tokenizer and the first differences; fails if there are any.
Characters whose class or normal form is younger than Unicode 3.2 are not generated: the tables of the
package tokenizers are those of Unicode 8 to 12, by component. One difference is known and counted apart: of special tokens that are looked
for in normalized text behind a normalizer that changes them ("<s>" of Llama 2), the package
tokenizers does not find the normalized form among the special ones and keeps it where it should be
skipped. nibble skips it, as a decoder does that never sees these ids.
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

NIBBLE = os.environ.get("NIBBLE", "nibble")
RANGES = [(0x20, 0x7F), (0xA0, 0x250), (0x250, 0x300), (0x300, 0x370), (0x370, 0x530), (0x530, 0x700),
          (0x900, 0xE00), (0xE00, 0x1100), (0x1100, 0x1200), (0x1E00, 0x2000), (0x2000, 0x2070),
          (0x2070, 0x2800), (0x2E80, 0x3100), (0x3100, 0x4E00), (0x4E00, 0x9FFF), (0xA000, 0xABFF),
          (0xAC00, 0xD7A4), (0xF900, 0xFE00), (0xFE00, 0x10000), (0x10000, 0x10800),
          (0x1D400, 0x1D800), (0x1F000, 0x1FB00), (0x20000, 0x20100), (0xE0020, 0xE0080)]
SPACES = [" ", " ", "  ", "\t", "\n", "\r\n", "\n\n", "\u00a0", "\u3000", "\u2003", "\u2028", "\u0085",
          "\u200b", "\u180e", "\x0b", "\x1c", "\ufeff", "\u2581", "\x00", "\x7f", "\u00ad"]
PIECES = ["don't", "DON'T", "we'll", "I'Ve", "'s", "l'été", "x=1;", "if(a[i]!=0){", "return", "</s>", "//",
          "#include <x>", "0x1F", "3.14159", "1234567", "12 345", "١٢٣", "½", "Ⅷ", "<0xE2>", "<0x41>",
          "<0xZZ>", "Ġ", "Ċ", "▁", "▁▁", "ﬁ", "Å", "A\u030a", "e\u0301\u0323", "e\u0323\u0301", "각",
          "\u1100\u1161\u11a8", "ẛ̣", "İ", "ß", "👩‍👩‍👧", "🇩🇪", "✌🏽", "❤️", "กำ", "नमस्ते", "مرحبا", "שלום", "日本語",
          "中文字", "…", "—", "“q”", "$5", "a+b", "^", "`x`", "~", "|", "e.g.", "U.S.A.", "http://a.b/c?d=e&f"]


def usable(c):
    if unicodedata.ucd_3_2_0.category(c) not in ("Cn", "Cs", "Co"):
        return True
    return (unicodedata.category(c) in ("Lo", "Ll", "Lu", "So", "Sm", "Nd", "No")
            and not unicodedata.decomposition(c) and unicodedata.combining(c) == 0)


def generated(rng, specials):
    """One line; every kind of trouble alone and mixed."""
    def char(block=None):
        low, high = block or rng.choice(RANGES)
        while True:
            c = chr(rng.randrange(low, high))
            if usable(c):
                return c
    kind = rng.randrange(8)
    if kind == 0:
        return "".join(char() for _ in range(rng.randrange(1, 24)))
    if kind == 1:
        block = rng.choice(RANGES)
        return "".join(rng.choice((char(block), char(block), char(block), rng.choice(SPACES)))
                       for _ in range(rng.randrange(1, 40)))
    if kind == 2:
        return "".join(rng.choice(SPACES) * rng.randrange(1, 4) + rng.choice(("", "a", "B1", "."))
                       for _ in range(rng.randrange(1, 12)))
    if kind == 3:
        base = "".join(char() + "".join(char((0x300, 0x370)) for _ in range(rng.randrange(4)))
                       for _ in range(rng.randrange(1, 8)))
        return base
    if kind == 4:
        return "".join(rng.choice("abcxyzABC019_ .,;:!?'\"(){}[]<>/\\|@#$%^&*-+=~`\n\t")
                       for _ in range(rng.randrange(1, 60)))
    parts = [rng.choice(PIECES) if rng.random() < 0.8 else char() for _ in range(rng.randrange(1, 10))]
    if kind == 5 and specials:
        parts.insert(rng.randrange(len(parts) + 1), rng.choice(specials))
        parts.insert(rng.randrange(len(parts) + 1), rng.choice(specials))
    glue = rng.choice(("", " ", " ", "  ", "\n", rng.choice(SPACES)))
    return glue.join(parts)


class Tokenizers:
    def __init__(self, path):
        import tokenizers
        self.t = tokenizers.Tokenizer.from_file(path)
        self.t.no_padding()
        self.t.no_truncation()
        added = self.t.get_added_tokens_decoder()
        self.specials = [a.content for a in added.values()]
        self.skipped = {i for i, a in added.items() if a.special}
        self.size = self.t.get_vocab_size()

    def encode(self, lines):
        return [e.ids for e in self.t.encode_batch(lines)]

    def decode(self, ids, skip):
        return self.t.decode_batch(ids, skip_special_tokens=skip)

    def decode_without(self, ids):
        return self.t.decode([i for i in ids if i not in self.skipped], skip_special_tokens=False)


class SentencePiece:
    """Without what surrounds a text, and without text of special tokens: it has no such thing."""

    def __init__(self, path):
        import sentencepiece
        self.t = sentencepiece.SentencePieceProcessor(model_file=path)
        self.specials = [self.t.id_to_piece(i) for i in range(self.t.get_piece_size())
                         if self.t.is_control(i) is False and self.t.get_score(i) == 0][:50]
        self.size = self.t.get_piece_size()
        self.unknown = self.t.unk_id()

    def encode(self, lines):
        return self.t.encode(lines)

    def decode(self, ids, skip):
        return self.t.decode(ids)


def nibble(verb, model, rows, *flags):
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".jsonl") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        file.flush()
        done = subprocess.run([NIBBLE, verb, model, "--batch", file.name, *flags], check=True,
                              capture_output=True)
    return [json.loads(line) for line in done.stdout.split(b"\n") if line]


def compare(what, rows, expected, found):
    bad = [i for i, pair in enumerate(zip(expected, found, strict=True)) if pair[0] != pair[1]]
    for i in bad[:5]:
        print(f"  {what} {rows[i]!r}:\n    expected {expected[i]!r}\n    found    {found[i]!r}")
    return len(bad)


def check(name, model, reference_path, lines, count):
    is_pieces = reference_path.endswith(".model")
    reference = (SentencePiece if is_pieces else Tokenizers)(reference_path)
    rng = random.Random(name)
    lines = lines + [generated(rng, reference.specials) for _ in range(count - len(lines))]
    if is_pieces:  # it reads the control tokens of a text as text
        lines = [line for line in lines if not any(s in line for s in ("<s>", "</s>", "<unk>"))]
    flags = ["--no-special"] if is_pieces else []
    expected = reference.encode(lines)
    found = [row["ids"] for row in nibble("tokenize", model, [{"text": l} for l in lines], *flags)]
    encoded = compare("encode", lines, expected, found)
    # Where sentencepiece decodes what is unknown as U+2047, nibble leaves a special token out.
    if is_pieces:
        expected = [row for row in expected if reference.unknown not in row]
    ids = expected + [] if is_pieces else expected + [[rng.randrange(reference.size) for _ in range(rng.randrange(1, 12))]
                      for _ in range(len(lines) // 10)]
    decoded = kept = 0
    for skip in (True,) if is_pieces else (False, True):
        texts = nibble("detokenize", model, [{"ids": i} for i in ids],
                       *(["--no-special"] if skip else []))
        found, expected = [t["text"] for t in texts], reference.decode(ids, skip)
        if skip and not is_pieces:
            for i, row in enumerate(ids):
                if found[i] != expected[i] and found[i] == reference.decode_without(row):
                    expected[i] = found[i]
                    kept += 1
        decoded += compare("decode", ids, expected, found)
    print(f"{name}: {len(lines)} lines, {encoded} encoded and {decoded} of {len(ids)} id lists "
          f"decoded differently; the package keeps special tokens in {kept}", flush=True)
    return encoded + decoded


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--text", action="append", default=[])
    parser.add_argument("models", nargs="+")
    a = parser.parse_args()
    lines = [line for file in a.text
             for line in pathlib.Path(file).read_text(encoding="utf-8").splitlines(keepends=True)]
    lines = lines[: a.lines] + [""]
    differences = 0
    for spec in a.models:
        name, model, *reference = spec.split("=")
        path = reference[0] if reference else os.path.join(model, "tokenizer.json")
        differences += check(name, model, path, lines, a.lines)
    sys.exit(differences > 0)


if __name__ == "__main__":
    main()
