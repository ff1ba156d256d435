// SPDX-License-Identifier: Apache-2.0
// The QuaRot paper's speed measurements (appendix, tables 14 to 17) on a GPU, beside NVIDIA's
// libraries in the same process, turn by turn. The paper's "down" rows have the shape of the up
// projection; here down is down, with its own Hadamard.
#include "apps/bench/paper.h"

#include "measure/bf16_peer.h"
#include "measure/cublas_peer.h"
#include "measure/random_network.h"

namespace nibble::cli {
namespace {

using cuda::CublasProduct;
using Type = CublasProduct::Type;

constexpr int64_t kPromptTokens = 2048;

// Times gate and up as a layer multiplies them, beside one bf16 product of both; their results lie
// in `gate` and `up`, [tokens, intermediate_size].
ActsSource GateAndUp(const PaperBench& bench, const std::string& name, const LayerWeights& layer,
                     int64_t tokens, Intermediate* gate, Intermediate* up) {
  Backend& backend = bench.backend;
  const PackedLinear& linear = layer[Role::kGate];
  const int64_t rows = 2 * linear.weights.rows, cols = linear.weights.cols;
  const LinearId gate_id = backend.Upload(linear), up_id = backend.Upload(layer[Role::kUp]);
  const Buffer<float> x = RandomFloats(backend, tokens * cols);
  const Activations acts = backend.PrepareActs({.x = x.data()}, tokens, linear.input);
  ActsSource gated;
  Contender nibble{"Nibble", [&] {
                     gated = backend.ProjectGated(acts, {gate_id, gate}, {up_id, up}, kSilu);
                   }};
  const CublasProduct product(Type::kBf16, tokens, rows, cols, 1);
  Contender bf16{"bf16", [&] { product.Run(); }};
  TakeTurns({&nibble, &bf16}, bench.arguments.repeats);
  bench.table.Add(
      fmt::format("{} gate, up{}", name, gated.op == ActsSource::Op::kIntermediate ? ", silu" : ""),
      fmt::format("{} x {} x {}", tokens, rows, cols),
      {.operations = 2.0 * static_cast<double>(tokens * rows * cols)}, nibble, {&bf16});
  backend.Release(gate_id);
  backend.Release(up_id);
  return gated;
}

// Times q, gate and down of a prompt: the product alone, the product with preparing its input, as
// in table 14, and preparing down's input alone.
void Linears(const PaperBench& bench, const std::string& name, const Network& network,
             int64_t tokens) {
  Backend& backend = bench.backend;
  const LayerWeights& layer = network.layers[0];
  const int64_t wide = tokens * layer[Role::kGate].weights.rows;
  const auto gate = RandomIntermediates(backend, wide), up = RandomIntermediates(backend, wide);
  for (Role role : {Role::kQ, Role::kGate, Role::kDown}) {
    const PackedLinear& linear = layer[role];
    const int64_t rows = linear.weights.rows, cols = linear.weights.cols;
    const LinearId id = backend.Upload(linear);
    const bool down = role == Role::kDown;
    const Buffer<float> x = RandomFloats(backend, tokens * cols);
    const Buffer<float> y = RandomFloats(backend, tokens * rows);
    const auto values = RandomIntermediates(backend, tokens * rows);
    const ActsSource source =
        down ? GateAndUp(bench, name, layer, tokens, gate.data(), up.data())
             : ActsSource{.x = x.data(), .op = ActsSource::Op::kRmsNorm, .norm_eps = 1e-5f};
    const Activations acts = backend.PrepareActs(source, tokens, linear.input);
    const Backend::Projection projection = {id, values.data()};
    const auto multiply = [&](const Activations& input) {
      down ? backend.Gemm(input, id, y.data(), rows, true)
           : backend.Project(input, {&projection, 1});
    };
    Contender nibble{"Nibble", [&] { multiply(acts); }};
    // The paper quantizes rows as they are: no norm.
    const ActsSource rows_of_x = down ? source : ActsSource{.x = x.data()};
    Contender whole{"Nibble",
                    [&] { multiply(backend.PrepareActs(rows_of_x, tokens, linear.input)); }};
    Contender prepare{"prepare", [&] { backend.PrepareActs(source, tokens, linear.input); }};
    const CublasProduct bf16(Type::kBf16, tokens, rows, cols, 1);
    const CublasProduct int8(Type::kInt8, tokens, rows, cols, 1);
    const CublasProduct fp8(Type::kFp8, tokens, rows, cols, 1);
    Contender a{"bf16", [&] { bf16.Run(); }}, b{"s8", [&] { int8.Run(); }};
    Contender c{"fp8", [&] { fp8.Run(); }};
    TakeTurns({&nibble, &whole, &a, &b, &c, &prepare}, bench.arguments.repeats);
    const std::string shape = fmt::format("{} x {} x {}", tokens, rows, cols);
    const PaperTable::Work work = {.operations = 2.0 * static_cast<double>(tokens * rows * cols)};
    bench.table.Add(fmt::format("{} {}", name, RoleName(role)), shape, work, nibble, {&a, &b, &c});
    const bool gated = source.op == ActsSource::Op::kIntermediate;
    const std::string steps = fmt::format("{} {}{}quantize", name, down && !gated ? "silu, " : "",
                                          down ? "transform, " : "");
    bench.table.Add(steps + ", " + RoleName(role), shape, work, whole, {&a, &b, &c});
    if (down) {
      const int64_t bytes = (gated ? 1 : 2) * backend.IntermediateBytes() + 1;
      bench.table.Add(steps, fmt::format("{} x {}", tokens, cols),
                      {.bytes = static_cast<double>(bytes * tokens * cols)}, prepare, {&nibble});
    }
    backend.Release(id);
  }
}

// Copies of a linear, one after the other: the tokens of a single sequence up to those that a
// server has in one step.
void DecodeLinears(const PaperBench& bench, const std::string& name, const Network& network) {
  Backend& backend = bench.backend;
  for (Role role : {Role::kQ, Role::kGate, Role::kDown}) {
    const PackedLinear& linear = network.layers[0][role];
    const int64_t rows = linear.weights.rows, cols = linear.weights.cols;
    const auto copies = static_cast<int>(1 + kCachedBytes / (rows * cols / 2));
    std::vector<LinearId> ids;
    for (int i = 0; i < copies; ++i) ids.push_back(backend.Upload(linear));
    for (const int64_t tokens : {1, 8, 16, 17, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512}) {
      const Buffer<float> x = RandomFloats(backend, tokens * cols);
      const Buffer<float> y = RandomFloats(backend, tokens * rows);
      const Activations acts = backend.PrepareActs({.x = x.data()}, tokens, linear.input);
      const SequenceSlice step = {.tokens = 1};
      const OpsId ops;
      const auto all = [&] {
        for (LinearId id : ids) backend.Gemm(acts, id, y.data(), rows, false);
      };
      Contender nibble{"Nibble",
                       [&] {
                         backend.Run(ops, {&step, 1}, all);
                       },
                       static_cast<double>(copies)};
      const CublasProduct product(Type::kBf16, tokens, rows, cols, copies);
      Contender bf16{"bf16", [&] { product.Run(); }, static_cast<double>(copies)};
      TakeTurns({&nibble, &bf16}, bench.arguments.repeats);
      bench.table.Add(fmt::format("{} {}, decode", name, RoleName(role)),
                      fmt::format("{} x {} x {}", tokens, rows, cols),
                      {.operations = 2.0 * static_cast<double>(tokens * rows * cols),
                       .bytes = static_cast<double>(linear.weights.bytes())},
                      nibble, {&bf16});
    }
    for (LinearId id : ids) backend.Release(id);
  }
}

}  // namespace

std::vector<cpu::Peak> MeasureGpuPeaks(int64_t repeats) {
  constexpr int64_t kSide = 8192;
  const CublasProduct product(Type::kInt8, kSide, kSide, kSide, 1);
  const cuda::MemoryRead read;
  Contender operations{"s8", [&] { product.Run(); }}, bytes{"read", [&] { read.Run(); }};
  TakeTurns({&operations, &bytes}, repeats);
  const auto peak = [](std::string_view name, double work, const Contender& c) {
    const auto [min, max] = std::ranges::minmax(c.seconds);
    return cpu::Peak{name, work / c.median(), work / max, work / min};
  };
  return {peak("int8 (cuBLASLt)", 2.0 * kSide * kSide * kSide, operations),
          peak("memory read", cuda::MemoryRead::kBytes, bytes)};
}

void RunPaper(const BenchArguments& a, const Common& common) {
  if (common.device == "cpu") FailUsage("bench paper measures a GPU: --device cuda:0");
  const auto backend = MakeBackend(common.device, false);
  const std::vector<cpu::Peak> peaks = MeasureGpuPeaks(a.repeats);
  PaperTable table({peaks[0].median, peaks[1].median});
  const PaperBench bench = {a, common.device, *backend, table};
  const auto shape = [&](const std::string& name, int64_t prompts, int64_t long_context) {
    BenchArguments one = a;
    one.shape = name, one.layers = 1;
    const Network network = BenchNetwork(one);
    const auto batches = [&](const std::vector<int64_t>& usual) {
      return a.full ? std::vector<int64_t>{1, 2, 4, 8, 16, 32} : usual;
    };
    for (const int64_t batch : batches({prompts})) {
      Linears(bench, name, network, batch * kPromptTokens);
    }
    DecodeLinears(bench, name, network);
    BenchLayers(bench, name, network);
    if (!a.shape.empty()) return;  // all parts below are the same for any weights
    for (const int64_t batch : batches({1, 8, 32})) {
      BenchDecodeAttention(bench, network, batch, 2048);
    }
    if (long_context == 0) return;
    for (const int64_t batch : {1, 8}) BenchDecodeAttention(bench, network, batch, long_context);
  };
  if (a.shape.empty()) {
    shape("llama2-7b", 1, 0);
    if (a.full) shape("llama2-13b", 1, 0);
    shape("llama2-70b", 8, 32768);
    BenchAtomProducts(bench);
    BenchSparseProducts(bench);
  } else {
    shape(a.shape, 1, 0);
  }
  table.Print(common.json);
}

}  // namespace nibble::cli
