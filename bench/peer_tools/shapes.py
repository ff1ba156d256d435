# SPDX-License-Identifier: Apache-2.0
"""The shapes that a peer runs beside `nibble bench --shape`, of the same names and numbers."""
import dataclasses


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
