// SPDX-License-Identifier: Apache-2.0
#include "quantize/run/estimate.h"

#include <algorithm>
#include <filesystem>

#include "base/memory.h"
#include "base/progress.h"
#include "quantize/learn/learn_rotation.h"
#include "quantize/learn/learn_scales.h"
#include "quantize/learn/tune_block.h"
#include "quantize/map/channels.h"
#include "quantize/run/work_directory.h"
#include "quantize/walk/backprop.h"
#include "quantize/walk/loss_weights.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

double StoredBytes(const FormatSpec& format, int64_t rows, int64_t cols) {
  double bytes = 0;
  for (const Plane& plane : PlanesOf(format.as_stored(), rows, cols)) {
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

// Estimates the bytes that are written, and the bits of a quantized weight.
void EstimateOutput(const ModelConfig& c, const Plan& plan, QuantizeEstimate& e) {
  double quantized_bytes = 0, quantized_weights = 0;
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    for (Role role : c.layer_roles(layer)) {
      const int64_t rows = c.outputs(layer, role), cols = c.inputs(layer, role);
      const LinearPlan& p = plan.at(layer, role);
      const double bytes = StoredBytes(p, rows, cols);
      e.output_bytes += bytes;
      if (!p.weights.quantized()) continue;
      quantized_bytes += bytes;
      quantized_weights += static_cast<double>(rows * cols);
    }
  }
  for (Role role : c.model_roles()) {
    if (role == Role::kHead && plan.tied_head) continue;
    e.output_bytes += StoredBytes(plan.at(0, role), c.outputs(0, role), c.inputs(0, role));
  }
  if (plan.head_rotation) e.output_bytes += 4 * static_cast<double>(c.hidden_size * c.hidden_size);
  e.bits_per_weight = quantized_weights > 0 ? 8 * quantized_bytes / quantized_weights : 0;
}

// Options that take less, ", "-joined in front of another way; may be empty.
std::string WithLess(const Recipe& recipe) {
  std::string options;
  if (recipe.learns_rotation()) options += "--fixed-rotation, ";
  if (recipe.loss_groups > 0) options += "--loss-groups 0, ";
  if (recipe.chooses_cache()) options += "--cache-loss 0, ";
  if (recipe.rounding == Rounding::kGptq) options += "--rounding rtn, ";
  return options.empty() ? "" : options + "or ";
}

// Bytes while a layer is quantized: in fp64 and in fp32, or, of what is not rounded yet, in fp64
// beside the sums of an input, codes, and a linear as what its codes mean.
double LayerBytes(const ModelConfig& c, int64_t layer, const QuantizeOptions& o) {
  double weights = 0, row = 0;  // row: outputs of all linears for a token
  for (Role role : c.layer_roles(layer)) {
    weights += static_cast<double>(c.outputs(layer, role) * c.inputs(layer, role));
    if (ExpertOf(role) <= 0) row += static_cast<double>(c.outputs(layer, role));
  }
  // A layer that learns is there with its scales, its clips, its gradients and their moments as
  // well.
  const bool learns = o.recipe.block_epochs > 0 || o.recipe.tune_epochs > 0;
  double max = (learns ? 40 : 12) * weights, left = weights;
  if (o.recipe.rounding != Rounding::kGptq || o.device != "cpu") return max;
  const int networks = o.recipe.gptaq > 0 ? 2 : 1;
  // A backend has each linear's codes once more in its kernels' order; GPTAQ's reference has 8
  // bits.
  const double codes = weights * (2 * networks - 1);
  for (LinearSet set : LinearSets(c, layer)) {
    const auto inputs = static_cast<double>(c.inputs(layer, RolesOf(set)[0]));
    const double sums =
        8 * inputs * inputs * networks * static_cast<double>(HessiansOf(o.recipe, set));
    const double activations = 4 * static_cast<double>(o.context) * (row + 3 * inputs);
    for (Role role : RolesOf(set)) {
      const double linear = static_cast<double>(c.outputs(layer, role)) * inputs;
      max = std::max(max, 8 * (left + linear) + codes + sums + activations);
      left -= linear;
    }
  }
  return max;
}

// Bytes in host memory but for the windows of calibration; most of a GPU's is its own.
double WorkingBytes(const ModelConfig& c, const QuantizeOptions& o) {
  // The larger of the first and the last layer, which may be of different kinds.
  double bytes = std::max(LayerBytes(c, 0, o), LayerBytes(c, c.layers - 1, o));
  const auto table = static_cast<double>(c.vocab_size * c.hidden_size);
  if (LearnsScales(o.recipe, c, o.calibration_windows * o.context)) {
    bytes += 8 * table + HeadLearningBytes(o.recipe, c);
  }
  return kProgramBytes + std::max(bytes, 3 * table);
}

// Bytes of the windows that searches of scales and clips and layers that learn read, in the
// backend's memory.
double SearchedBytes(const ModelConfig& c, const QuantizeOptions& o) {
  const auto of = [&](int64_t windows) {
    return static_cast<double>(Stream::Bytes(c, windows * o.context));
  };
  const bool searches = o.recipe.searches_scales() || o.recipe.output_clips;
  return (searches ? of(std::min(o.calibration_windows, kStatisticsWindows)) : 0) +
         (o.recipe.block_epochs > 0 ? 2 * of(o.calibration_windows) : 0) +
         (o.recipe.tune_epochs > 0 ? 2 * of(o.calibration_windows) + BlockTuningBytes(c, o.context)
                                   : 0);
}

// Bytes on a GPU: windows, the widest Hessians with what GPTQ makes of them, and the largest
// matrix; or all weights and what gradients or learning leave behind in the layers.
double DeviceBytes(const ModelConfig& c, const QuantizeOptions& o, int64_t tokens) {
  double widest = 0, largest = 0;
  for (const int64_t layer : {int64_t{0}, c.layers - 1}) {
    for (LinearSet set : LinearSets(c, layer)) {
      const auto inputs = static_cast<double>(c.inputs(layer, RolesOf(set)[0]));
      widest = std::max(widest, static_cast<double>(HessiansOf(o.recipe, set)) * inputs * inputs);
      for (Role role : RolesOf(set)) {
        largest = std::max(largest, static_cast<double>(c.outputs(layer, role)) * inputs);
      }
    }
  }
  const bool twice = o.recipe.gptaq > 0;
  double bytes = 0;
  if (o.recipe.rounding == Rounding::kGptq) {
    bytes = (twice ? 2 : 1) * static_cast<double>(Stream::Bytes(c, tokens)) +
            (twice ? 44 : 28) * widest + 25 * largest;
  }
  if (o.recipe.loss_groups > 0) bytes = std::max(bytes, BackpropBytes(c, kLossPieces, kLossPiece));
  if (LearnsScales(o.recipe, c, tokens)) {
    bytes = std::max(bytes, ScaleLearningBytes(o.recipe, c, tokens));
  }
  return kDeviceProgramBytes + bytes + SearchedBytes(c, o);
}

}  // namespace

double MemoryLimit(const QuantizeOptions& options) {
  const std::optional<uint64_t> available = AvailableMemory();
  const double max = available ? static_cast<double>(*available) : 1e18;  // do not refuse
  return options.memory > 0 ? std::min(options.memory, max) : max;
}

double KeptBytes(const QuantizeEstimate& estimate, const QuantizeOptions& options) {
  return std::max(0.0, MemoryLimit(options) - estimate.peak_memory_bytes) / 2;
}

QuantizeEstimate EstimateQuantization(const ModelConfig& c, const Plan& plan,
                                      const QuantizeOptions& options) {
  const Recipe& recipe = options.recipe;
  QuantizeEstimate e;
  e.parameters = c.parameters();
  EstimateOutput(c, plan, e);
  // Temporary files live beside the output and become it.
  e.disk_bytes = e.output_bytes;
  e.peak_memory_bytes = WorkingBytes(c, options);
  const int64_t tokens = recipe.calibrates() ? options.calibration_windows * options.context : 0;
  if (LearnsScales(recipe, c, tokens)) e.disk_bytes += HeadLearningBytes(recipe, c);
  if (recipe.learns_rotation()) e.peak_memory_bytes += LearningBytes(c, options.context);
  if (recipe.loss_groups > 0) {
    const double gradients =
        options.device == "cpu" ? BackpropBytes(c, kLossPieces, kLossPiece) : 0;
    e.peak_memory_bytes =
        std::max(e.peak_memory_bytes, kProgramBytes + LossLayerBytes(c) + gradients) +
        LossWeightBytes(c, recipe, tokens);
  }
  const double choice = recipe.chooses_cache() ? e.output_bytes + CacheChoiceBytes(c) : 0;
  if (options.device != "cpu") {
    e.device_bytes = std::max(DeviceBytes(c, options, tokens), kDeviceProgramBytes + choice);
    return e;
  }
  e.peak_memory_bytes =
      std::max(e.peak_memory_bytes + SearchedBytes(c, options), kProgramBytes + choice);
  if (recipe.rounding == Rounding::kGptq) {
    const double windows =
        (recipe.gptaq > 0 ? 2 : 1) * static_cast<double>(Stream::Bytes(c, tokens));
    e.spills = e.peak_memory_bytes + windows > MemoryLimit(options);
    (e.spills ? e.disk_bytes : e.peak_memory_bytes) += windows;
  }
  if (LearnsScales(recipe, c, tokens)) {
    const double head = HeadLearningBytes(recipe, c);
    e.peak_memory_bytes = std::max(e.peak_memory_bytes,
                                   e.output_bytes + ScaleLearningBytes(recipe, c, tokens) + head);
  }
  return e;
}

void RequireResources(const QuantizeEstimate& e, const QuantizeOptions& options) {
  const double memory = MemoryLimit(options);
  if (e.peak_memory_bytes > memory) {
    Fail("this run needs about {} of memory, {} are {}; use {}a machine with more",
         BytesText(e.peak_memory_bytes), BytesText(memory),
         memory == options.memory ? "given by --memory" : "available", WithLess(options.recipe));
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
