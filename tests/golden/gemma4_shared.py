#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/data/architectures/gemma4_shared: a Gemma 4 of random weights whose last layers read
keys and values of others, with wider FFNs and inputs of layers of their own, and what Hugging Face
transformers makes of it in fp64.

    pip install torch transformers; tests/golden/gemma4_shared.py OUT
"""
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

SLIDING, FULL = "sliding_attention", "full_attention"


def random_weights(model, generator):
    """Numbers of bf16; buffers, scales of embeddings among them, stay fp64."""
    for name, weight in model.state_dict().items():
        if name.endswith("layer_scalar"):
            weight.fill_(0.9)
        elif weight.ndim == 1:
            weight.copy_(1 + 0.3 * torch.randn(weight.shape, generator=generator))
        else:
            size = 1.0 if "embed" in name else 1.2 / weight.shape[1] ** 0.5
            weight.copy_(size * torch.randn(weight.shape, generator=generator))
        weight.copy_(weight.bfloat16())


def stored(model, config, generator):
    """As published files have it: with keys and values of layers that read those of others."""
    tensors = {name: w.bfloat16() for name, w in model.state_dict().items()}
    del tensors["lm_head.weight"]
    first = config.num_hidden_layers - config.num_kv_shared_layers
    for layer in range(first, config.num_hidden_layers):
        attention = f"model.layers.{layer}.self_attn."
        source = next(i for i in range(first) if config.layer_types[i] == config.layer_types[layer])
        for name in ("k_proj.weight", "v_proj.weight", "k_norm.weight"):
            shape = tensors[f"model.layers.{source}.self_attn.{name}"].shape
            tensors[attention + name] = torch.randn(shape, generator=generator).bfloat16()
    return tensors


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    config = Gemma4TextConfig(
        vocab_size=512, vocab_size_per_layer_input=512, hidden_size=48, intermediate_size=64,
        num_hidden_layers=5, num_attention_heads=4, num_key_value_heads=1, head_dim=16,
        global_head_dim=32, hidden_size_per_layer_input=8, num_kv_shared_layers=2,
        use_double_wide_mlp=True, sliding_window=8, max_position_embeddings=256,
        layer_types=[SLIDING, FULL, SLIDING, SLIDING, FULL], final_logit_softcapping=30.0,
        tie_word_embeddings=True, bos_token_id=0, eos_token_id=1, pad_token_id=None)
    generator = torch.Generator().manual_seed(7)
    model = Gemma4ForCausalLM(config).eval().double()
    with torch.no_grad():
        random_weights(model, generator)
        save_file(stored(model, config, generator), out / "model.safetensors", {"format": "pt"})
        ids = torch.randint(2, 512, (2, 40), generator=generator)
        logits = model(input_ids=ids).logits
        greedy = ids[:1, :12]
        for _ in range(16):
            following = model(input_ids=greedy).logits[:, -1:].argmax(-1)
            greedy = torch.cat([greedy, following], 1)
    golden = {"input_ids": ids.int(), "logits": logits.float(), "greedy": greedy[0].int()}
    save_file({name: t.contiguous() for name, t in golden.items()}, out / "golden.safetensors")
    stated = config.to_diff_dict()
    stated["architectures"] = ["Gemma4ForCausalLM"]
    (out / "config.json").write_text(json.dumps(stated, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
