// SPDX-License-Identifier: Apache-2.0
#include "measure/bf16_peer.h"

#include <cmath>
#include <vector>

#include "backends/cuda/attention/cudnn_attention.h"
#include "backends/cuda/runtime/cuda_error.h"
#include "backends/cuda/runtime/device.h"
#include "backends/cuda/runtime/graph.h"
#include "base/error.h"
#include "measure/bf16_ops.h"
#include "measure/cublas_linear.h"

namespace nibble::cuda {
namespace {

// bf16 values in device memory: `copies` tensors of `count` values.
struct Tensors {
  AlignedBytes memory;
  int64_t count = 0;

  // Normal numbers of this deviation.
  Tensors(int64_t values, float deviation, int copies = 1)
      : memory(RandomValues(CublasProduct::Type::kBf16, values * copies, deviation)),
        count(values) {}
  __nv_bfloat16* operator[](int copy) const {
    return reinterpret_cast<__nv_bfloat16*>(memory.get()) + copy * count;
  }
};

// A product, its weights, and its tensors in each copy.
struct Linear {
  Tensors w;
  CublasLinear product;
  std::vector<CublasLinear::Tensors> tensors;

  Linear(int64_t tokens, int64_t rows, int64_t cols, int copies, const Tensors& x, const Tensors& y,
         bool accumulate, cudaStream_t stream)
      : w(rows * cols, 1 / std::sqrt(static_cast<float>(cols)), copies),
        product(CublasProduct::Type::kBf16, tokens, rows, cols, accumulate) {
    for (int i = 0; i < copies; ++i) tensors.push_back({x[0], w[i], y[0]});
    product.Choose(tensors, stream);
  }
  void Run(int copy, cudaStream_t stream) const {
    product.Multiply(tensors[static_cast<size_t>(copy)], stream);
  }
};

// q and its result, and the caches of all copies.
struct AttentionTensors {
  CudnnShape shape;
  Tensors q, out, k, v;
  CudnnAttention attention;

  AttentionTensors(const Bf16Shape& s, const Bf16Steps& steps, int copies)
      : shape{.sequences = steps.sequences,
              .heads = s.heads,
              .kv_heads = s.kv_heads,
              .head_dim = s.head_dim,
              .queries = steps.tokens,
              .keys = steps.context + steps.tokens,
              .scale = 1 / std::sqrt(static_cast<float>(s.head_dim)),
              .causal = steps.tokens > 1},  // one token sees all keys
        q(int64_t{steps.sequences} * steps.tokens * s.heads * s.head_dim, 1),
        out(q.count, 1),
        k(int64_t{steps.sequences} * s.kv_heads * shape.keys * s.head_dim, 1, copies),
        v(k.count, 1, copies) {
    if (!attention.Build(shape)) Fail("cuDNN is not there or has no attention for this shape");
  }
  void Run(int copy, cudaStream_t stream) {
    attention.Run(shape, {.q = q[0], .k = k[copy], .v = v[copy], .out = out[0]}, stream);
  }
};

Buffer<float> Angles(int positions, int angles, float (*function)(float)) {
  std::vector<float> table;
  for (int p = 0; p < positions; ++p) {
    for (int i = 0; i < angles; ++i) {
      const float turn = std::pow(1e4f, -static_cast<float>(i) / static_cast<float>(angles));
      table.push_back(function(static_cast<float>(p) * turn));
    }
  }
  return ToDevice(std::span<const float>(table));
}

// Launches all copies once plainly, so that nothing is allocated or loaded while recording.
template <typename Launch>
Graph RecordAll(const Stream& stream, int copies, const Launch& launch) {
  const auto all = [&] {
    for (int i = 0; i < copies; ++i) launch(i);
  };
  all();
  CublasProduct::Wait();
  return RecordGraph(stream.get(), all);
}

}  // namespace

struct Bf16Layer::State {
  const Bf16Shape shape;
  const Bf16Steps steps;
  const int64_t tokens;
  const int all_heads;
  Stream stream = MakeStream();
  AttentionTensors attention;
  Buffer<float> cos, sin;
  Tensors x, normed, q_k_v, gate_up, product;
  Linear qkv, o, gate_and_up, down;
  Graph graph;

  State(const Bf16Shape& s, const Bf16Steps& t, int copies)
      : shape(s),
        steps(t),
        tokens(int64_t{t.sequences} * t.tokens),
        all_heads(s.heads + 2 * s.kv_heads),
        attention(s, t, copies),
        cos(Angles(t.context + t.tokens, s.head_dim / 2, std::cos)),
        sin(Angles(t.context + t.tokens, s.head_dim / 2, std::sin)),
        x(tokens * s.hidden, 1),
        normed(x.count, 1),
        q_k_v(tokens * all_heads * s.head_dim, 1),
        gate_up(tokens * 2 * s.intermediate, 1),
        product(tokens * s.intermediate, 1),
        qkv(tokens, int64_t{all_heads} * s.head_dim, s.hidden, copies, normed, q_k_v, false,
            stream.get()),
        o(tokens, s.hidden, int64_t{s.heads} * s.head_dim, copies, attention.out, x, true,
          stream.get()),
        gate_and_up(tokens, int64_t{2} * s.intermediate, s.hidden, copies, normed, gate_up, false,
                    stream.get()),
        down(tokens, s.hidden, s.intermediate, copies, product, x, true, stream.get()) {
    graph = RecordAll(stream, copies, [&](int copy) { Launch(copy); });
  }

  void Launch(int copy) {
    Bf16Norm(x[0], tokens, shape.hidden, normed[0], stream.get());
    qkv.Run(copy, stream.get());
    Bf16RopeAppend({.qkv = q_k_v[0],
                    .q = attention.q[0],
                    .k = attention.k[copy],
                    .v = attention.v[copy],
                    .cos = cos.data(),
                    .sin = sin.data(),
                    .sequences = steps.sequences,
                    .tokens = steps.tokens,
                    .context = steps.context,
                    .heads = shape.heads,
                    .kv_heads = shape.kv_heads,
                    .head_dim = shape.head_dim},
                   stream.get());
    attention.Run(copy, stream.get());
    o.Run(copy, stream.get());
    Bf16Norm(x[0], tokens, shape.hidden, normed[0], stream.get());
    gate_and_up.Run(copy, stream.get());
    Bf16SiluMul(gate_up[0], tokens, shape.intermediate, product[0], stream.get());
    down.Run(copy, stream.get());
  }
};

Bf16Layer::Bf16Layer(const Bf16Shape& shape, const Bf16Steps& steps, int copies)
    : state_(std::make_unique<State>(shape, steps, copies)) {}
Bf16Layer::~Bf16Layer() = default;

void Bf16Layer::Run() const {
  PlayGraph(state_->graph, state_->stream.get());
}

struct Bf16Attention::State {
  Stream stream = MakeStream();
  AttentionTensors attention;
  Graph graph;
};

Bf16Attention::Bf16Attention(const Bf16Shape& shape, const Bf16Steps& steps, int copies)
    : state_(new State{.attention = AttentionTensors(shape, steps, copies)}) {
  State& s = *state_;
  s.graph = RecordAll(s.stream, copies, [&](int copy) { s.attention.Run(copy, s.stream.get()); });
}
Bf16Attention::~Bf16Attention() = default;

void Bf16Attention::Run() const {
  PlayGraph(state_->graph, state_->stream.get());
}

struct MemoryRead::State {
  Stream stream = MakeStream();
  AlignedBytes memory = RandomValues(CublasProduct::Type::kInt8, kBytes, 1);
  AlignedBytes sink = AllocateDevice(sizeof(uint32_t));
};

MemoryRead::MemoryRead() : state_(std::make_unique<State>()) {}
MemoryRead::~MemoryRead() = default;

void MemoryRead::Run() const {
  ReadMemory(state_->memory.get(), kBytes, reinterpret_cast<uint32_t*>(state_->sink.get()),
             state_->stream.get());
}

}  // namespace nibble::cuda
