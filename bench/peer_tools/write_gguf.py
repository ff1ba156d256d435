# SPDX-License-Identifier: Apache-2.0
"""Writes a GGUF file of a known shape with random weights: write_gguf.py SHAPE FILE LAYERS

Runs as a program of its own, with the environment's folder python on PYTHONPATH. It has no
vocabulary: good for timing, useless for text. All matrices are Q4_0, the embedding and the head
too: of the usual choices the head that costs the peer the least time. A router is F32.
"""
import dataclasses
import math
import os
import sys

import gguf
import numpy

from shapes import SHAPES

CONTEXT = 4096
SCALE = 0.004  # weights of about 0.02, so that no activation overflows
BLOCK_SIZE, BLOCK_BYTES = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType.Q4_0]


@dataclasses.dataclass(frozen=True)
class Tensor:
    name: str
    shape: tuple  # elements; rows last
    quantized: bool = True  # Q4_0, else F32

    def row(self):
        """Bytes of a row, and what numpy calls their type."""
        columns = self.shape[-1]
        if not self.quantized:
            return 4 * columns, numpy.dtype(numpy.float32)
        return columns // BLOCK_SIZE * BLOCK_BYTES, numpy.dtype(numpy.uint8)


def tensors(s, layers):
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    suffix, experts = ("_exps", (s.experts,)) if s.experts else ("", ())
    yield Tensor("token_embd.weight", (s.vocabulary, s.hidden_size))
    for i in range(layers):
        layer = f"blk.{i}."
        norms = {"attn_norm": s.hidden_size, "ffn_norm": s.hidden_size}
        if s.head_norms:
            norms |= {"attn_q_norm": s.head_dim, "attn_k_norm": s.head_dim}
        for name, width in norms.items():
            yield Tensor(f"{layer}{name}.weight", (width,), False)
        for name, rows, columns in (("q", q, s.hidden_size), ("k", kv, s.hidden_size),
                                    ("v", kv, s.hidden_size), ("output", s.hidden_size, q)):
            yield Tensor(f"{layer}attn_{name}.weight", (rows, columns))
        if s.experts:
            yield Tensor(layer + "ffn_gate_inp.weight", (s.experts, s.hidden_size), False)
        for name, rows, columns in (("gate", s.intermediate_size, s.hidden_size),
                                    ("up", s.intermediate_size, s.hidden_size),
                                    ("down", s.hidden_size, s.intermediate_size)):
            yield Tensor(f"{layer}ffn_{name}{suffix}.weight", (*experts, rows, columns))
    yield Tensor("output_norm.weight", (s.hidden_size,), False)
    yield Tensor("output.weight", (s.vocabulary, s.hidden_size))


def values(tensor, random):
    """Ones in norms, small numbers elsewhere."""
    if len(tensor.shape) == 1:
        return numpy.ones(tensor.shape, numpy.float32)
    if not tensor.quantized:
        return random.standard_normal(tensor.shape, numpy.float32) * tensor.shape[-1] ** -0.5
    rows = math.prod(tensor.shape[:-1])
    blocks = random.integers(0, 256, (rows, tensor.shape[-1] // BLOCK_SIZE, BLOCK_BYTES),
                             numpy.uint8)
    blocks[:, :, :2] = numpy.array([SCALE], numpy.float16).view(numpy.uint8)
    return blocks.reshape(rows, -1)


def describe(writer, s, layers):
    writer.add_name("random")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(s.hidden_size)
    writer.add_feed_forward_length(s.intermediate_size)
    writer.add_block_count(layers)
    writer.add_head_count(s.heads)
    writer.add_head_count_kv(s.kv_heads)
    writer.add_key_length(s.head_dim)
    writer.add_value_length(s.head_dim)
    writer.add_rope_dimension_count(s.head_dim)
    writer.add_rope_freq_base(s.rope_theta)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(s.vocabulary)
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    if s.experts:
        writer.add_expert_count(s.experts)
        writer.add_expert_used_count(s.experts_per_token)
        writer.add_expert_feed_forward_length(s.intermediate_size)


def write(s, path, layers):
    writer = gguf.GGUFWriter(path, s.architecture)
    describe(writer, s, layers)
    kinds = gguf.GGMLQuantizationType
    for tensor in tensors(s, layers):
        row_bytes, dtype = tensor.row()
        writer.add_tensor_info(
            tensor.name, (*tensor.shape[:-1], row_bytes // dtype.itemsize), dtype,
            math.prod(tensor.shape[:-1]) * row_bytes,
            kinds.Q4_0 if tensor.quantized else kinds.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    random = numpy.random.default_rng(1)
    for tensor in tensors(s, layers):
        writer.write_tensor_data(values(tensor, random))
    writer.close()


def main():
    shape, path, layers = SHAPES[sys.argv[1]], sys.argv[2], int(sys.argv[3])
    write(shape, path + ".new", layers)
    os.replace(path + ".new", path)


if __name__ == "__main__":
    main()
