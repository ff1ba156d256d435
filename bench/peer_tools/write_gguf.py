# SPDX-License-Identifier: Apache-2.0
"""Writes a GGUF file of a known shape with random weights: write_gguf.py SHAPE FILE LAYERS

Runs as a program of its own, with the environment's folder python on PYTHONPATH. It has no
vocabulary: good for timing, useless for text. All matrices are Q4_0, the embedding and the head
too: of the usual choices the head that costs the peer the least time. A router is F32.
"""
import dataclasses
import os
import sys

import gguf
import numpy

CONTEXT = 4096
SCALE = 0.004  # weights of about 0.02, so that no activation overflows


@dataclasses.dataclass(frozen=True)
class Shape:
    architecture: str
    hidden_size: int
    intermediate_size: int  # of an expert where there are some
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    rope_theta: float = 1e4
    experts: int = 0
    experts_per_token: int = 0
    head_norms: bool = False


SHAPES = {
    "llama2-7b": Shape("llama", 4096, 11008, 32, 32, 128, 32000),
    "qwen3-30b-a3b": Shape("qwen3moe", 2048, 768, 32, 4, 128, 151936, 1e6, 128, 8, True),
}


def tensors(s, layers):
    """(name, experts or 0, rows, columns) of every matrix, of 0 rows of every vector; a router's
    rows are negative."""
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    yield "token_embd.weight", 0, s.vocabulary, s.hidden_size
    for i in range(layers):
        layer = f"blk.{i}."
        for norm in ("attn_norm", "ffn_norm"):
            yield layer + norm + ".weight", 0, 0, s.hidden_size
        for name, rows, columns in (("q", q, s.hidden_size), ("k", kv, s.hidden_size),
                                    ("v", kv, s.hidden_size), ("output", s.hidden_size, q)):
            yield f"{layer}attn_{name}.weight", 0, rows, columns
        if s.head_norms:
            for norm in ("attn_q_norm", "attn_k_norm"):
                yield layer + norm + ".weight", 0, 0, s.head_dim
        suffix = "_exps" if s.experts else ""
        if s.experts:
            yield layer + "ffn_gate_inp.weight", 0, -s.experts, s.hidden_size
        for name, rows, columns in (("gate", s.intermediate_size, s.hidden_size),
                                    ("up", s.intermediate_size, s.hidden_size),
                                    ("down", s.hidden_size, s.intermediate_size)):
            yield f"{layer}ffn_{name}{suffix}.weight", s.experts, rows, columns
    yield "output_norm.weight", 0, 0, s.hidden_size
    yield "output.weight", 0, s.vocabulary, s.hidden_size


def values(rows, columns, random):
    if rows == 0:
        return numpy.ones(columns, numpy.float32)
    if rows < 0:
        return random.standard_normal((-rows, columns), numpy.float32) * columns ** -0.5
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType.Q4_0]
    blocks = random.integers(0, 256, (rows, columns // block_size, block_bytes), numpy.uint8)
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
    for name, experts, rows, columns in tensors(s, layers):
        data = values(max(-1, min(rows, 1)), columns, numpy.random.default_rng(1))  # a row
        count = abs(rows) * max(experts, 1)
        shape = data.shape if rows == 0 else (abs(rows), data.shape[1])
        if experts:
            shape = (experts, *shape)
        writer.add_tensor_info(name, shape, data.dtype, max(count, 1) * data.nbytes,
                               kinds.F32 if rows <= 0 else kinds.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    random = numpy.random.default_rng(1)
    for _, experts, rows, columns in tensors(s, layers):
        writer.write_tensor_data(values(rows * max(experts, 1), columns, random))
    writer.close()


def main():
    shape, path, layers = SHAPES[sys.argv[1]], sys.argv[2], int(sys.argv[3])
    write(shape, path + ".new", layers)
    os.replace(path + ".new", path)


if __name__ == "__main__":
    main()
