// SPDX-License-Identifier: Apache-2.0
// A 16-bit engine to stand beside in benchmarks, of the libraries that fast ones are built from:
// cuBLASLt (the fastest of its eight proposals) and cuDNN's fused attention, in decoding with the
// keys split over blocks, over a contiguous bf16 cache. Random values; each object is recorded as
// one CUDA graph.
#pragma once

#include <cstdint>
#include <memory>

namespace nibble::cuda {

struct Bf16Shape {
  int hidden = 0, intermediate = 0;
  int heads = 0, kv_heads = 0, head_dim = 0;
};

// `tokens` new tokens in each of `sequences`, behind `context` cached ones.
struct Bf16Steps {
  int sequences = 1, tokens = 1, context = 0;
};

// `copies` of a decoder layer, one behind the other, in nine kernels each: norm, product of q, k
// and v, RoPE with append, attention, product that adds to the residual, norm, product of gate and
// up, silu(gate) * up, product that adds to the residual. Throws nibble::Error without the
// libraries.
class Bf16Layer {
 public:
  Bf16Layer(const Bf16Shape& shape, const Bf16Steps& steps, int copies);
  ~Bf16Layer();
  void Run() const;  // enqueues

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Attention of one token in each sequence over `steps.context + 1` keys, over `copies` caches.
class Bf16Attention {
 public:
  Bf16Attention(const Bf16Shape& shape, const Bf16Steps& steps, int copies);
  ~Bf16Attention();
  void Run() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Reading memory that no cache holds: a ceiling of what must read as much.
class MemoryRead {
 public:
  static constexpr int64_t kBytes = int64_t{2} << 30;
  MemoryRead();
  ~MemoryRead();
  void Run() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nibble::cuda
