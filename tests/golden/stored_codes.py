#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes stored_codes.safetensors: random linears in the layouts of GPTQ, AWQ and
compressed-tensors, packed by the packages gptqmodel (7.7.0), autoawq (0.2.9) and
compressed-tensors (0.20.0), and under NAME.expected [N, K] what they make of them. GPTQ's expected
tensors of version 1 are what gptqmodel reads after its conversion to version 2.

    python3 -m venv env && env/bin/pip install torch compressed-tensors==0.20.0 safetensors pypcre \\
        accelerate threadpoolctl tokenicer device-smi logbar defuser pillow requests
    pip download --no-deps --no-binary :all: gptqmodel==7.7.0 autoawq==0.2.9   # unpacked: no CUDA
    PYTHONPATH=gptqmodel-7.7.0:autoawq-0.2.9/awq/utils env/bin/python tests/golden/stored_codes.py
"""

import pathlib

import torch
from compressed_tensors.compressors import IntQuantizationCompressor, PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from gptqmodel.nn_modules.qlinear.torch import TorchLinear
from gptqmodel.utils.model import (convert_gptq_v1_to_v2_format_module,
                                   convert_gptq_v2_to_v1_format_module)
from packing_utils import AWQ_ORDER, dequantize_gemm
from safetensors.torch import save_file

N, K = 32, 64
TENSORS = {}


def add(name, tensors, expected):
    for key, value in tensors.items():
        TENSORS[f"{name}.{key}"] = value.detach().contiguous().clone()
    TENSORS[f"{name}.expected"] = expected.detach().contiguous().clone()


def random_scales(*shape):
    return torch.rand(shape) * 0.02 + 0.001


def gptq(name, bits, group, zeros_from=0, symmetric=False, version=1, act_order=False):
    groups = K // group
    layer = TorchLinear(bits=bits, group_size=group, sym=symmetric, desc_act=act_order,
                        in_features=K, out_features=N, bias=False)
    scales = random_scales(N, groups).half()
    zeros = torch.randint(zeros_from, 2**bits, (N, groups)).float()
    if symmetric:
        zeros = torch.full((N, groups), float(2**(bits - 1)))
    index = torch.arange(K, dtype=torch.int32) // group
    if act_order:
        index = index[torch.randperm(K)]
    codes = torch.randint(0, 2**bits, (N, K)).float()
    linear = torch.nn.Linear(K, N, bias=False, dtype=torch.float32)
    linear.weight.data = (codes - zeros[:, index.long()]) * scales.float()[:, index.long()]
    layer.pack_original(linear, scales, zeros, g_idx=index)
    if version == 1:
        convert_gptq_v2_to_v1_format_module(layer, quantize_config=layer)
    stored = {key: getattr(layer, key) for key in ("qweight", "qzeros", "scales", "g_idx")}
    stored = {key: value.clone() for key, value in stored.items()}
    if version == 1:
        convert_gptq_v1_to_v2_format_module(layer, bits=bits, pack_dtype=torch.int32)
    expected = layer.dequantize_weight().t()
    assert torch.allclose(expected.float(), linear.weight.data, rtol=1e-3, atol=1e-4), name
    add(name, stored, expected.half())


def awq(name, group):
    groups = K // group
    order = torch.tensor(AWQ_ORDER)

    def pack(codes):
        words = codes.view(codes.shape[0], -1, 8)[:, :, order].to(torch.int64)
        words = (words << (4 * torch.arange(8))).sum(-1)
        return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)

    stored = {"qweight": pack(torch.randint(0, 16, (K, N))),
              "qzeros": pack(torch.randint(0, 16, (groups, N))),
              "scales": random_scales(groups, N).half()}
    expected = dequantize_gemm(stored["qweight"], stored["qzeros"], stored["scales"], 4, group)
    add(name, stored, expected.t())


def compressed(name, compressor, bits, symmetric, group=None, dtype=torch.bfloat16):
    strategy = "group" if group else "channel"
    args = QuantizationArgs(num_bits=bits, type="int", symmetric=symmetric, strategy=strategy,
                            group_size=group)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    groups = K // group if group else 1
    low, high = -2**(bits - 1), 2**(bits - 1) - 1
    stored = {"weight_scale": random_scales(N, groups).to(dtype)}
    if not symmetric:
        stored["weight_zero_point"] = torch.randint(low, high + 1, (N, groups), dtype=torch.int8)
    scale = stored["weight_scale"].float().repeat_interleave(K // groups, 1)
    zero = 0 if symmetric else stored["weight_zero_point"].float().repeat_interleave(K // groups, 1)
    stored["weight"] = ((torch.randint(low, high + 1, (N, K)) - zero) * scale).to(dtype)
    stored = compressor.compress(stored, scheme)
    add(name, stored, compressor.decompress(stored, scheme)["weight"])


def main():
    torch.manual_seed(22)
    gptq("gptq4", 4, 32, zeros_from=1)
    gptq("gptq4_zero", 4, 32)  # zero points of 0 borrow from their neighbours
    gptq("gptq4_symmetric", 4, K, symmetric=True)
    gptq("gptq2", 2, 32)
    gptq("gptq3", 3, 32, zeros_from=1)
    gptq("gptq8", 8, 32)
    gptq("gptq4_act_order", 4, 32, zeros_from=1, act_order=True)
    gptq("gptq4_v2", 4, 32, version=2)
    gptq("gptq3_v2", 3, 32, version=2)
    awq("awq4", 32)
    awq("awq4_row", K)
    compressed("packed4", PackedQuantizationCompressor, 4, True, 32)
    compressed("packed4_zeros", PackedQuantizationCompressor, 4, False, 32)
    compressed("packed4_row", PackedQuantizationCompressor, 4, False, dtype=torch.float32)
    compressed("packed3", PackedQuantizationCompressor, 3, False, 32, dtype=torch.float16)
    compressed("packed8", PackedQuantizationCompressor, 8, False, 32)
    compressed("int8", IntQuantizationCompressor, 8, True)
    compressed("int8_zeros", IntQuantizationCompressor, 8, False, dtype=torch.float32)
    save_file(TENSORS, str(pathlib.Path(__file__).with_suffix(".safetensors")))


if __name__ == "__main__":
    main()
