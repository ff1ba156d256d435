// SPDX-License-Identifier: Apache-2.0
// The operations (ops) that every backend implements: ref/ (the meaning of every op, scalar), cpu/
// (vector and matrix instructions), cuda/ (NVIDIA GPUs). The forward pass (engine/layer.cc) uses
// only these ops. All float tensors are fp32, row-major, contiguous, and lie in the backend's
// memory; spans, and arguments of Upload and Share, lie in the program's own.
//
// Results do not depend on the number of threads, on how tokens are batched, or on how a prompt is
// cut into chunks: every op treats each row (token) by itself, in a fixed order. On a GPU few
// tokens, many, and long contexts run on different kernels, which round attention, gated values,
// experts' outputs and sums of groups differently.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "base/memory.h"
#include "base/thread_pool.h"
#include "compute/kernels.h"
#include "compute/likely.h"
#include "formats/gate_spec.h"
#include "formats/kv_format.h"
#include "formats/packed_linear.h"
#include "formats/router_spec.h"
#include "transforms/rope.h"

namespace nibble {

class MathServices;  // math_services.h

// A linear layer a backend has taken over, in its own order.
using LinearId = int;

// A value that one op writes and the next one reads (q, k, v, the result of attention; gate, up):
// fp32 on a CPU, bf16 on a GPU.
using Intermediate = std::byte;

// The experts of a layer.
struct ExpertsSpec {
  RouterSpec router;
  GateSpec gating;
  const float* router_bias = nullptr;    // [experts] added for the choice alone, or null
  const float* expert_scales = nullptr;  // [experts] factors of the weights, or null
  LinearId router_linear = 0;
  std::vector<LinearId> gate, up, down;  // [experts], of one shape each
  InputSpec router_input;
  InputSpec input, down_input;  // what all gates and ups, and all downs, read
};
// The name of experts that a backend has joined (Backend::JoinExperts).
using ExpertsId = int;

// The source of a product's input: x, its RMSNorm, intermediate values, or gate and up.
struct ActsSource {
  enum class Op { kCopy, kRmsNorm, kIntermediate, kGated };

  const float* x = nullptr;  // kCopy, kRmsNorm: [tokens, width]
  Op op = Op::kCopy;
  const float* norm_weight = nullptr;    // kRmsNorm: [width], or null when folded
  float norm_eps = 0;                    // kRmsNorm: x / sqrt(mean(x^2) + eps) * weight
  const Intermediate* values = nullptr;  // kIntermediate: [tokens, width]
  const Intermediate *gate = nullptr, *up = nullptr;  // kGated: [tokens, width] each
  GateSpec gating;                                    // kGated

  // On a CPU: the rows, if the op takes them unchanged; else null.
  const float* rows() const {
    if (op == Op::kIntermediate) return reinterpret_cast<const float*>(values);
    return op == Op::kCopy ? x : nullptr;
  }
};

// The prepared input of products: x after the online transform, as codes (quantized) or as fp32.
struct Activations {
  int64_t tokens = 0, width = 0;
  FormatSpec format;
  const float* values = nullptr;  // [tokens, width], not quantized (may point to the caller's x)
  int64_t stride = 0;  // bytes between rows of codes: width rounded up to 64, zero filled
  const int8_t* codes = nullptr;        // [tokens, stride]
  const int8_t* tiles = nullptr;        // the same for a matrix unit, or null (cpu/gemm/gemm_int.h)
  const float* scales = nullptr;        // [tokens, groups]; on a GPU as in acts/prepare_acts.h
  const float* zero_offsets = nullptr;  // the same, or null when symmetric
  const int32_t* sums = nullptr;        // the same
  const Activations* tail = nullptr;    // the columns behind `width`, in another format; or null
};

// The tokens of one sequence inside a batch, for one layer.
struct SequenceSlice {
  int64_t first_row = 0;  // its first row in the batch's [tokens, ...] tensors
  int64_t tokens = 0;     // new tokens
  int64_t position = 0;   // position of the first new token = tokens cached before
  // Tables of pages, one behind the other, which cover position + tokens; a page that no layer of
  // its table reads may be null. All slices of a batch have the same values from here on, except
  // `pages` and `table_pages`.
  std::byte* const* pages = nullptr;
  int64_t tables = 1, table_pages = 0;  // table_pages: from one of its tables to the next
  int64_t table = 0;                    // this layer's
  int64_t offset = 0;                   // bytes from the beginning of a page to this layer's
  // `table` and `offset` of the recent form (KvSpec::recent_bits), whose pages exist where a new
  // token reads them.
  int64_t recent_table = 0, recent_offset = 0;

  // The page that holds position `at`; only on a backend whose memory is the program's own.
  std::byte* page(int64_t at) const {
    return pages[table * table_pages + at / kPageTokens] + offset;
  }
  std::byte* recent_page(int64_t at) const {
    return pages[recent_table * table_pages + at / kPageTokens] + recent_offset;
  }
};

struct AttentionSpec {
  int64_t heads = 0;           // query heads; kv heads and head_dim are the cache's
  float scale = 0;             // of scores; 1 / sqrt(head_dim) in most models
  int64_t sliding_window = 0;  // a query sees this many keys, itself included; 0 = all
  // Scores s become softcap * tanh(s / softcap) (Bello et al. 2016); 0: they stay.
  float softcap = 0;
  // Scores [heads] of one more key each, whose value is 0 (Xiao et al. 2023, "attention sinks"), or
  // null.
  const float* sinks = nullptr;
  // RMS norms of each head of q and k: weights [head_dim], or null where there is no norm.
  const float *q_norm = nullptr, *k_norm = nullptr;
  float norm_eps = 0;
  // RopeAndAppend subtracts this from each rotated key, [kv_heads, head_dim]; may be null.
  const float* key_center = nullptr;
};

// Identifies the ops that a caller of Backend::Run lets run; unique within a program.
struct OpsId {
  OpsId() = default;
  OpsId(const OpsId&) = delete;
  OpsId& operator=(const OpsId&) = delete;

  const uint64_t number = ++made;

 private:
  static inline std::atomic<uint64_t> made = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // A name for people, such as "cpu, amx".
  virtual std::string Name() const = 0;

  // The most tokens of a long prompt that go through the network at once, which bounds the memory
  // of activations.
  virtual int64_t ChunkTokens() const { return 1024; }

  // Bytes that can still be allocated, or nullopt.
  virtual std::optional<uint64_t> FreeMemory() const { return AvailableMemory(); }

  // Returns memory for tensors, pages and their tables, all zero, at a 64-byte boundary. It must
  // not outlive the backend. A CPU backend's memory is the program's own: Write and Copy are plain
  // copies there, and Read copies nothing.
  virtual AlignedBytes Allocate(size_t bytes) { return MakeAlignedBytes(bytes); }
  Allocator allocator() {
    return [this](size_t bytes) { return Allocate(bytes); };
  }
  virtual void Write(const void* source, size_t bytes, void* target) {
    std::memcpy(target, source, bytes);
  }
  virtual void Copy(const float* source, int64_t count, float* target) {
    std::memcpy(target, source, static_cast<size_t>(count) * sizeof(float));
  }
  // x[i] = 0
  virtual void Clear(float* x, int64_t count) { std::fill_n(x, count, 0.0f); }
  // Returns the values in host memory, valid until the next call or the next op.
  virtual const float* Read(const float* values, int64_t) { return values; }
  // FindLikely (likely.h) for each row of logits [queries, width]. With a cap, of cap tanh(logit /
  // cap).
  virtual std::vector<Likely> FindLikelyRows(const float* logits, int64_t width, float cap,
                                             std::span<const LikelyQuery> queries);
  // Returns the table in the backend's memory, for Embed; the second argument receives the memory
  // that this took, if any.
  virtual PackedWeights Share(const PackedWeights& table, AlignedBytes&) { return table; }

  // Takes a linear over: reorders its codes once, unless it uses the tile plane in place. That
  // plane must stay mapped until Release, all others only during the call.
  virtual LinearId Upload(const PackedLinear& linear) = 0;
  virtual void Release(LinearId id) = 0;
  // The kernel that runs a product for a batch of `tokens`. Throws where there is none.
  virtual KernelUse KernelFor(const ProductFormat& product, int64_t tokens) const = 0;

  // x[i] = scale * table[ids[i]], decoded; table [vocab, hidden], from Share; x [ids.size(),
  // hidden].
  virtual void Embed(const PackedWeights& table, std::span<const int32_t> ids, float scale,
                     float* x) {
    for (size_t i = 0; i < ids.size(); ++i) {
      NIBBLE_CHECK(ids[i] >= 0 && ids[i] < table.rows, "token {} of {}", ids[i], table.rows);
      const auto at = static_cast<int64_t>(i) * table.cols;
      DecodeRow(table, ids[i], {x + at, static_cast<size_t>(table.cols)});
      if (scale == 1) continue;
      for (int64_t k = at; k < at + table.cols; ++k) x[k] *= scale;
    }
  }

  // x[rows[i]] += weights[i] * y[i]; y [rows.size(), width], x [.., width]; the rows differ. This
  // default, like the next three, is for backends whose memory is the program's own.
  virtual void AddRows(const float* y, std::span<const int32_t> rows,
                       std::span<const float> weights, int64_t width, float* x) {
    for (size_t i = 0; i < rows.size(); ++i, y += width) {
      for (int64_t k = 0; k < width; ++k) x[rows[i] * width + k] += weights[i] * y[k];
    }
  }

  // 1 / sqrt(mean(x^2) + eps)
  static float RmsFactor(const float* x, int64_t width, float eps) {
    double squares = 0;
    for (int64_t k = 0; k < width; ++k) squares += double{x[k]} * x[k];
    return static_cast<float>(1 / std::sqrt(squares / static_cast<double>(width) + double{eps}));
  }

  // x = (x + RMS norm of y) * scale; y and x [tokens, width], weight [width], scale a pointer to
  // one number in the backend's memory, or null for 1.
  virtual void AddNormed(const float* y, int64_t tokens, int64_t width, const float* weight,
                         float eps, const float* scale, float* x) {
    for (int64_t t = 0; t < tokens; ++t, y += width, x += width) {
      const float factor = RmsFactor(y, width, eps);
      for (int64_t k = 0; k < width; ++k) {
        x[k] += y[k] * factor * weight[k];
        if (scale != nullptr) x[k] *= *scale;
      }
    }
  }

  // Computes y = (RMS norm of x) + z for each of the `parts` parts of a row; x and z [tokens, parts
  // * width], weight [width], y intermediate values [parts, tokens, width].
  virtual void AddNormedParts(const float* x, const float* z, int64_t tokens, int64_t parts,
                              int64_t width, const float* weight, float eps, Intermediate* y) {
    for (int64_t i = 0; i < tokens * parts; ++i, x += width, z += width) {
      float* const to = reinterpret_cast<float*>(y) + (i % parts * tokens + i / parts) * width;
      const float factor = RmsFactor(x, width, eps);
      for (int64_t k = 0; k < width; ++k) to[k] = x[k] * factor * weight[k] + z[k];
    }
  }

  // x = RMS norm of x; x intermediate values [tokens, width], weight [width] or null for ones.
  virtual void NormRows(Intermediate* x, int64_t tokens, int64_t width, const float* weight,
                        float eps) {
    auto* row = reinterpret_cast<float*>(x);
    for (int64_t t = 0; t < tokens; ++t, row += width) {
      const float factor = RmsFactor(row, width, eps);
      for (int64_t k = 0; k < width; ++k) row[k] *= weight == nullptr ? factor : factor * weight[k];
    }
  }

  // Source op, scales, online transform, gather and quantization of `tokens` rows in one pass. The
  // result stays valid until the next call, and tensors of `source` must live as long.
  virtual Activations PrepareActs(const ActsSource& source, int64_t tokens,
                                  const InputSpec& spec) = 0;

  // y = T y in place, for each row of all intermediate values y [tokens, T.width()].
  virtual void Transform(const TransformSpec& transform, int64_t tokens,
                         std::span<Intermediate* const> all) {
    const int64_t width = transform.width();
    const InputSpec spec = {.width = width, .transform = transform, .activations = {.bits = 32}};
    for (Intermediate* const y : all) {
      const ActsSource source = {.op = ActsSource::Op::kIntermediate, .values = y};
      Copy(PrepareActs(source, tokens, spec).values, tokens * width, reinterpret_cast<float*>(y));
    }
  }

  // The prepared input decoded to fp32 [tokens, width]; valid until the next call or PrepareActs.
  virtual const float* Decode(const Activations& acts) = 0;

  // y[t, n] (+)= W a + bias; y has row stride `y_stride` floats; accumulate adds to y (residual).
  // The product of a tail is added last.
  virtual void Gemm(const Activations& acts, LinearId id, float* y, int64_t y_stride,
                    bool accumulate) = 0;

  // The products of several linears with one input, written as intermediate values y [tokens, N].
  struct Projection {
    LinearId id;
    Intermediate* y;
  };
  virtual void Project(const Activations& acts, std::span<const Projection> outputs) = 0;
  virtual int64_t IntermediateBytes() const { return sizeof(float); }  // of a value
  // Multiplies by gate and up and returns their GLU output as the source of the next input. A
  // backend computes it while multiplying or leaves it to PrepareActs.
  virtual ActsSource ProjectGated(const Activations& acts, Projection gate, Projection up,
                                  const GateSpec& gating) {
    const Projection outputs[] = {gate, up};
    Project(acts, outputs);
    return {.op = ActsSource::Op::kGated, .gate = gate.y, .up = up.y, .gating = gating};
  }

  // Products of one linear each with some rows of the prepared inputs, y [rows.size(), N], so that
  // many small products are one op. Only backends whose intermediate values are fp32 offer this
  // (MultipliesRows).
  struct RowsProduct {
    LinearId id;
    std::span<const int32_t> rows;  // rising
    float* y;
  };
  virtual bool MultipliesRows() const { return false; }
  virtual void MultiplyRows(const Activations&, std::span<const RowsProduct>) {
    NIBBLE_CHECK(false, "no products of some rows");
  }

  // Joins a layer's experts, so that RunExperts runs those of any step in a fixed sequence of ops;
  // nullopt where the backend cannot. Their linears must stay uploaded.
  virtual std::optional<ExpertsId> JoinExperts(const ExpertsSpec&) { return std::nullopt; }
  virtual void ReleaseExperts(ExpertsId) {}
  // x += the outputs of each token's experts, added in the experts' order; x [tokens, hidden]. The
  // router reads `routed` and the experts read `source`; either may be made from x.
  virtual void RunExperts(ExpertsId, const ActsSource& /*routed*/, const ActsSource& /*source*/,
                          int64_t /*tokens*/, float* /*x*/) {
    NIBBLE_CHECK(false, "no experts are joined");
  }

  // The further operations that quantization needs.
  virtual MathServices& services();

  // Rotates q [tokens, heads*head_dim] in place (norm, RoPE, then the head rotation), and k
  // likewise (in place or not), less its center, then writes k and v [tokens, kv_heads*head_dim]
  // into the cache pages. k and v are null in a layer that reads another layer's keys and values.
  virtual void RopeAndAppend(Intermediate* q, Intermediate* k, const Intermediate* v,
                             const AttentionSpec& attention, const RopeView& rope, const KvSpec& kv,
                             std::span<const SequenceSlice> batch) = 0;

  // Calls `ops`, which calls ops of this backend: the same ones for every batch of a shape, on
  // memory that stays where it is until some is freed. A GPU records those of decode steps and
  // plays the recording from then on.
  virtual void Run(const OpsId&, std::span<const SequenceSlice>, const std::function<void()>& ops) {
    ops();
  }

  // out[t, h] = softmax(scale * q k^T, capped, beside the sink) v over the cached keys at positions
  // <= the token's own (and inside the window). Reads the cache as stored. q and out [tokens,
  // heads*head_dim].
  virtual void Attention(const Intermediate* q, const AttentionSpec& attention, const KvSpec& kv,
                         std::span<const SequenceSlice> batch, Intermediate* out) = 0;
};

// Copies values into the backend's memory.
inline Buffer<float> ToBackend(Backend& backend, std::span<const float> values) {
  Buffer<float> buffer(backend.allocator());
  if (!values.empty()) {
    backend.Write(values.data(), values.size_bytes(),
                  buffer.Grow(static_cast<int64_t>(values.size())));
  }
  return buffer;
}

// RoPE tables in the backend's memory, for positions 0 to positions - 1.
class BackendRopes {
 public:
  BackendRopes(Backend& backend, std::span<const RopeSpec> specs, int64_t positions)
      : positions_(positions) {
    for (const RopeSpec& spec : specs) {
      const RopeTable table = BuildRope(spec, positions);
      tables_.push_back(
          {table.cos.cols, ToBackend(backend, table.cos.data), ToBackend(backend, table.sin.data)});
    }
  }
  int64_t positions() const { return positions_; }
  // The table of specs[index]; with -1 no dimension turns.
  RopeView view(int index) const {
    if (index < 0) return {nullptr, nullptr, positions_, 0};
    const Table& table = tables_.at(static_cast<size_t>(index));
    return {table.cos.data(), table.sin.data(), positions_, table.angles};
  }

 private:
  struct Table {
    int64_t angles;
    Buffer<float> cos, sin;  // [positions, angles]
  };
  int64_t positions_;
  std::vector<Table> tables_;
};

// The backend for `device` ("cpu"); decoded = the reference arithmetic on codes decoded to fp32.
std::unique_ptr<Backend> MakeBackend(const std::string& device, bool decoded);

}  // namespace nibble
