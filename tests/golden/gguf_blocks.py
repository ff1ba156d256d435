#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes gguf_blocks.json: random blocks of every type that Nibble reads from GGUF files
and what the package gguf (0.19.0, numpy) makes of them.

    python3 -m venv env && env/bin/pip install gguf==0.19.0
    env/bin/python tests/golden/gguf_blocks.py

Bytes are random but for the scales: fp16 of moderate size, exponents (MXFP4) near 127. Values are
the bits of fp32 numbers in hexadecimal, little endian, as the bytes are."""

import json
import pathlib

import gguf
import numpy as np

BLOCKS = 3
# Type: where its fp16 scales lie.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "MXFP4": []}


def main():
    random = np.random.default_rng(11)
    golden = {}
    for name, halves in HALVES.items():
        kind = gguf.GGMLQuantizationType[name]
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = random.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
        for at in halves:
            scales = random.normal(size=(BLOCKS, 1)).astype(np.float16)
            blocks[:, at:at + 2] = scales.view(np.uint8)
        if name == "MXFP4":
            blocks[:, 0] = random.integers(115, 135, BLOCKS)
        values = gguf.quants.dequantize(blocks.reshape(-1), kind).astype(np.float32)
        assert values.size == BLOCKS * elements
        golden[name] = {"bytes": blocks.tobytes().hex(), "values": values.tobytes().hex()}
    path = pathlib.Path(__file__).with_suffix(".json")
    path.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
