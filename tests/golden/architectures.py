#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes folders of tests/data/architectures: models of random weights and what Hugging Face
transformers (5.24) makes of them in fp64.

    pip install torch transformers; tests/golden/architectures.py OUT [NAME ...]
"""
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from transformers import (Exaone4Config, Gemma4TextConfig, Glm4Config, GptOssConfig,
                          Ministral3Config)
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

SLIDING, FULL = "sliding_attention", "full_attention"
SMALL = {"vocab_size": 512, "hidden_size": 48, "intermediate_size": 64, "num_attention_heads": 4,
         "head_dim": 16, "max_position_embeddings": 256, "bos_token_id": 0, "eos_token_id": 1,
         "pad_token_id": None}

MODELS = {
    # The last layers read keys and values of others; wider FFNs and inputs of layers.
    "gemma4_shared": Gemma4TextConfig(
        **SMALL, num_hidden_layers=5, num_key_value_heads=1, global_head_dim=32,
        vocab_size_per_layer_input=512, hidden_size_per_layer_input=8, num_kv_shared_layers=2,
        use_double_wide_mlp=True, sliding_window=8, final_logit_softcapping=30.0,
        layer_types=[SLIDING, FULL, SLIDING, SLIDING, FULL], tie_word_embeddings=True),
    # Experts beside the FFN of each layer.
    "gemma4_moe": Gemma4TextConfig(
        **SMALL, num_hidden_layers=3, num_key_value_heads=2, global_head_dim=32,
        num_global_key_value_heads=1, attention_k_eq_v=True, hidden_size_per_layer_input=0,
        num_kv_shared_layers=0, enable_moe_block=True, num_experts=6, top_k_experts=2,
        moe_intermediate_size=40, sliding_window=8, final_logit_softcapping=30.0,
        layer_types=[SLIDING, SLIDING, FULL], tie_word_embeddings=True),
    # Biases, norms on either side, neighbouring pairs turned in half of a head.
    "glm4_dense": Glm4Config(
        **SMALL, num_hidden_layers=3, num_key_value_heads=2, attention_bias=True,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}),
    # Norms behind alone, windows, a layer without positions.
    "exaone4_windows": Exaone4Config(
        **SMALL, num_hidden_layers=4, num_key_value_heads=2, sliding_window=8,
        layer_types=[SLIDING, SLIDING, SLIDING, FULL], tie_word_embeddings=False),
    # Experts in MXFP4, as OpenAI publishes them.
    "gpt_oss_mxfp4": GptOssConfig(
        **SMALL | {"hidden_size": 64}, num_hidden_layers=2, num_key_value_heads=2, sliding_window=8,
        num_local_experts=4, num_experts_per_tok=2, layer_types=[SLIDING, FULL],
        tie_word_embeddings=False),
    # Yarn whose context has been extended.
    "ministral3_yarn": Ministral3Config(
        **SMALL, num_hidden_layers=3, num_key_value_heads=2, tie_word_embeddings=False,
        rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "beta_fast": 32.0,
                         "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                         "original_max_position_embeddings": 64, "llama_4_scaling_beta": 0.1}),
}


def random_weights(model, generator):
    """Numbers of bf16; buffers, scales of embeddings among them, stay fp64."""
    for name, weight in model.state_dict().items():
        if name.endswith("layer_scalar"):
            weight.fill_(0.9)
        elif name.endswith(("bias", "sinks")):
            weight.copy_(0.3 * torch.randn(weight.shape, generator=generator))
        elif weight.ndim == 1:
            weight.copy_(1 + 0.3 * torch.randn(weight.shape, generator=generator))
        else:
            size = 1.0 if "embed" in name else 1.2 / weight.shape[-1] ** 0.5
            weight.copy_(size * torch.randn(weight.shape, generator=generator))
        weight.copy_(weight.bfloat16())


def round_experts(model, generator):
    """Gives experts' weights random values of MXFP4; returns codes and exponents by name."""
    packed = {}
    for name, weight in model.state_dict().items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            continue
        experts, inputs, outputs = weight.shape
        shape = (experts, outputs, inputs // 32)
        blocks = torch.randint(0, 256, shape + (16,), generator=generator, dtype=torch.uint8)
        scales = torch.randint(121, 125, shape, generator=generator, dtype=torch.uint8)
        weight.copy_(convert_moe_packed_tensors(blocks, scales))
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    return packed


def stored(model, config, generator):
    """As published files have it: with keys and values of layers that read those of others."""
    tensors = {name: w.bfloat16() for name, w in model.state_dict().items()}
    if config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    first = config.num_hidden_layers - getattr(config, "num_kv_shared_layers", 0)
    for layer in range(first, config.num_hidden_layers):
        source = next(i for i in range(first) if config.layer_types[i] == config.layer_types[layer])
        for name in ("k_proj.weight", "v_proj.weight", "k_norm.weight"):
            shape = tensors[f"model.layers.{source}.self_attn.{name}"].shape
            tensors[f"model.layers.{layer}.self_attn.{name}"] = torch.randn(
                shape, generator=generator).bfloat16()
    return tensors


def make(config, out):
    out.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(7)
    config._experts_implementation = "eager"  # others do not take fp64
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().double()
    with torch.no_grad():
        random_weights(model, generator)
        packed = round_experts(model, generator) if config.model_type == "gpt_oss" else {}
        tensors = stored(model, config, generator) | packed
        for name in packed:
            tensors.pop(name.rsplit("_", 1)[0], None)
        save_file(tensors, out / "model.safetensors", {"format": "pt"})
        ids = torch.randint(2, 512, (2, 40), generator=generator)
        logits = model(input_ids=ids).logits
        greedy = ids[:1, :12]
        for _ in range(16):
            following = model(input_ids=greedy).logits[:, -1:].argmax(-1)
            greedy = torch.cat([greedy, following], 1)
    golden = {"input_ids": ids.int(), "logits": logits.float(), "greedy": greedy[0].int()}
    save_file({name: t.contiguous() for name, t in golden.items()}, out / "golden.safetensors")
    stated = config.to_diff_dict()
    stated["model_type"] = config.model_type
    if packed:
        stated["quantization_config"] = {"quant_method": "mxfp4"}
    (out / "config.json").write_text(json.dumps(stated, indent=1, default=str) + "\n")


def main():
    for name in sys.argv[2:] or MODELS:
        make(MODELS[name], pathlib.Path(sys.argv[1]) / name)


if __name__ == "__main__":
    main()
