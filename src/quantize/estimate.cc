// SPDX-License-Identifier: Apache-2.0
#include "quantize/estimate.h"

#include <cblas.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "base/progress.h"
#include "base/thread_pool.h"
#include "quantize/channels.h"
#include "quantize/learn_rotation.h"
#include "quantize/learn_scales.h"
#include "quantize/work_directory.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

// Floating-point operations per second of all threads, measured for some tens of milliseconds.
double MeasuredFlops() {
  constexpr int kSize = 512;
  std::vector<float> a(kSize * kSize, 1.5f), b(a), c(a);
  const auto product = [&] {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, kSize, kSize, kSize, 1, a.data(), kSize,
                b.data(), kSize, 0, c.data(), kSize);
  };
  product();
  const auto start = std::chrono::steady_clock::now();
  constexpr int kRepeats = 10;
  for (int i = 0; i < kRepeats; ++i) product();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  return kRepeats * 2.0 * kSize * kSize * kSize / elapsed.count() * Threads();
}

double StoredBytes(const FormatSpec& format, int64_t rows, int64_t cols) {
  double bytes = 0;
  for (const Plane& plane : PlanesOf(format, rows, cols)) {
    bytes += static_cast<double>(plane.bytes());
  }
  return bytes;
}

double StoredBytes(const LinearPlan& plan, int64_t rows, int64_t cols) {
  const int64_t tail = plan.tail.columns;
  const int bytes_per_column = (plan.gather ? 4 : 0) + (plan.input_scales ? 4 : 0);
  return StoredBytes(plan.weights, rows, cols - tail) + StoredBytes(plan.tail.weights, rows, tail) +
         bytes_per_column * static_cast<double>(cols);
}

}  // namespace

uint64_t AvailableMemory() {
  std::ifstream in("/proc/meminfo");
  std::string key, unit;
  uint64_t kilobytes = 0;
  while (in >> key >> kilobytes >> unit) {
    if (key == "MemAvailable:") return kilobytes * 1024;
  }
  return UINT64_MAX;  // unknown: do not refuse
}

QuantizeEstimate EstimateQuantization(const ModelConfig& c, const Plan& plan,
                                      const QuantizeOptions& options) {
  QuantizeEstimate e;
  e.parameters = c.parameters();
  double quantized_bytes = 0, quantized_weights = 0, layer_weights = 0, gram_flops = 0;
  int64_t widest = 0;
  // Of a mixture's experts, those that a token uses.
  const double routed =
      c.experts == 0 ? 1
                     : static_cast<double>(c.experts_per_token) / static_cast<double>(c.experts);
  double used_weights = 0;
  for (Role role : c.layer_roles()) {
    const int64_t rows = c.outputs(role), cols = c.inputs(role);
    layer_weights += static_cast<double>(rows * cols);
    used_weights += static_cast<double>(rows * cols) * (ExpertOf(role) < 0 ? 1 : routed);
    widest = std::max(widest, cols);
    for (int64_t layer = 0; layer < c.layers; ++layer) {
      const LinearPlan& p = plan.at(layer, role);
      const double bytes = StoredBytes(p, rows, cols);
      e.output_bytes += bytes;
      if (!p.weights.quantized()) continue;
      quantized_bytes += bytes;
      quantized_weights += static_cast<double>(rows * cols);
    }
  }
  for (LinearSet set : LinearSets(c)) {
    const double k = static_cast<double>(c.inputs(RolesOf(set)[0]));
    gram_flops += k * k * (set.expert < 0 ? 1 : routed);
  }
  const double table = static_cast<double>(c.vocab_size * c.hidden_size) * sizeof(float);
  for (Role role : kTableRoles) {
    if (role == Role::kHead && plan.tied_head) continue;
    e.output_bytes += StoredBytes(plan.at(0, role), c.vocab_size, c.hidden_size);
  }
  e.bits_per_weight = quantized_weights > 0 ? 8 * quantized_bytes / quantized_weights : 0;
  // Temporary files live beside the output and become it.
  e.disk_bytes = e.output_bytes;
  const bool gptq = options.recipe.rounding == Rounding::kGptq;
  const bool calibrated = options.recipe.calibrates();
  const int64_t tokens = calibrated ? options.calibration_windows * options.context : 0;
  const double streams = gptq && options.recipe.gptaq > 0 ? 2 : 1;
  const int64_t statistics = options.recipe.arranges_channels() ? kStatisticsWindows : 0;
  const double passed =  // tokens through the network
      (gptq ? streams : 0) * static_cast<double>(tokens) +
      static_cast<double>(std::min(tokens, statistics * options.context));
  const bool cpu = options.device == "cpu";
  // One layer in fp64 and rounded; on a CPU also in fp32, a copy of the largest matrix or so, some
  // Hessian-sized matrices, and the token streams, which otherwise are the device's.
  e.peak_memory_bytes = 5 * table + layer_weights * 12;
  if (cpu) {
    e.peak_memory_bytes += layer_weights * 20 + 6 * 8 * static_cast<double>(widest * widest) +
                           streams * static_cast<double>(Stream::Bytes(c, tokens));
  }
  const double attention = 2.0 * static_cast<double>(options.context * c.heads * c.head_dim);
  const double calibration = passed * (2 * used_weights + attention) +
                             (gptq ? static_cast<double>(tokens) * gram_flops : 0);
  double flops = static_cast<double>(c.layers) * ((cpu ? calibration : 0) + 400 * layer_weights);
  if (options.recipe.learns_rotation()) {
    e.peak_memory_bytes += LearningBytes(c, options.context);
    if (cpu) flops += LearningFlops(c);
  }
  if (cpu && LearnsScales(options.recipe, c, tokens)) {
    e.peak_memory_bytes = std::max(e.peak_memory_bytes, e.output_bytes + ScaleLearningBytes(c));
    flops += 2 * static_cast<double>(e.parameters) * ScaleLearningTokens(c, tokens);
  }
  e.seconds = flops / (0.7 * MeasuredFlops());
  return e;
}

void RequireResources(const QuantizeEstimate& e, const QuantizeOptions& options) {
  const double memory = static_cast<double>(AvailableMemory());
  if (e.peak_memory_bytes > memory) {
    Fail(
        "this run needs about {} of memory, {} are available; use fewer --calib-windows, or "
        "--fixed-scales with a recipe that learns them",
        BytesText(e.peak_memory_bytes), BytesText(memory));
  }
  const double missing =
      e.disk_bytes - (options.resume ? FilesBytes(PartialPath(options.output)) : 0);
  fs::path existing = fs::absolute(options.output);
  while (!existing.empty() && !fs::exists(existing)) existing = existing.parent_path();
  std::error_code ec;
  const fs::space_info space = fs::space(existing, ec);
  if (!ec && missing > static_cast<double>(space.available)) {
    Fail("{} needs about {} of disk, {} are free", options.output, BytesText(missing),
         BytesText(static_cast<double>(space.available)));
  }
}

}  // namespace nibble
