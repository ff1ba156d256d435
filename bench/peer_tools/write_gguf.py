# SPDX-License-Identifier: Apache-2.0
"""Writes a GGUF file of Llama-2-7B's shape with random weights: write_gguf.py FILE LAYERS

Runs as a program of its own, with the environment's folder python on PYTHONPATH. It has no
vocabulary: good for timing, useless for text. All matrices are Q4_0, the embedding and the head
too: of the usual choices the head that costs the peer the least time.
"""
import os
import sys

import gguf
import numpy

HIDDEN, INTERMEDIATE, HEADS, VOCABULARY, CONTEXT = 4096, 11008, 32, 32000, 4096
SCALE = 0.004  # weights of about 0.02, so that no activation overflows


def tensors(layers):
    """(name, rows, columns) of every matrix and (name, 0, columns) of every norm."""
    yield "token_embd.weight", VOCABULARY, HIDDEN
    for i in range(layers):
        yield f"blk.{i}.attn_norm.weight", 0, HIDDEN
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield f"blk.{i}.{name}.weight", HIDDEN, HIDDEN
        yield f"blk.{i}.ffn_norm.weight", 0, HIDDEN
        yield f"blk.{i}.ffn_gate.weight", INTERMEDIATE, HIDDEN
        yield f"blk.{i}.ffn_up.weight", INTERMEDIATE, HIDDEN
        yield f"blk.{i}.ffn_down.weight", HIDDEN, INTERMEDIATE
    yield "output_norm.weight", 0, HIDDEN
    yield "output.weight", VOCABULARY, HIDDEN


def values(rows, columns, random):
    if rows == 0:
        return numpy.ones(columns, numpy.float32)
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType.Q4_0]
    blocks = random.integers(0, 256, (rows, columns // block_size, block_bytes), numpy.uint8)
    blocks[:, :, :2] = numpy.array([SCALE], numpy.float16).view(numpy.uint8)
    return blocks.reshape(rows, -1)


def write(path, layers):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("llama2-7b-random")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_block_count(layers)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    kinds = gguf.GGMLQuantizationType
    for name, rows, columns in tensors(layers):
        data = values(min(rows, 1), columns, numpy.random.default_rng(1))
        shape = data.shape if rows == 0 else (rows, data.shape[1])
        writer.add_tensor_info(name, shape, data.dtype, max(rows, 1) * data.nbytes,
                               kinds.F32 if rows == 0 else kinds.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    random = numpy.random.default_rng(1)
    for _, rows, columns in tensors(layers):
        writer.write_tensor_data(values(rows, columns, random))
    writer.close()


def main():
    path, layers = sys.argv[1], int(sys.argv[2])
    write(path + ".new", layers)
    os.replace(path + ".new", path)


main()
