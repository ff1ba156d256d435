// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/acts/transform_plan.h"

#include <algorithm>
#include <array>
#include <list>
#include <mutex>
#include <numeric>

#include "base/error.h"

namespace nibble::cpu {
namespace {

std::vector<uint8_t> SignPatterns(const TransformFactor& factor) {
  const int64_t n = factor.order;
  NIBBLE_CHECK(n % 4 == 0, "a dense Hadamard factor of order {}", n);
  const std::span<const int8_t> h = HadamardMatrix(factor);
  std::vector<uint8_t> patterns(static_cast<size_t>(n * n / 4));
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t col = 0; col < n; ++col) {
      const int64_t at = ((row / 4) * (n / 4) + col / 4) * 4 + row % 4;
      if (h[static_cast<size_t>(row * n + col)] < 0) {
        patterns[static_cast<size_t>(at)] |= static_cast<uint8_t>(kTile << (col % 4));
      }
    }
  }
  return patterns;
}

std::vector<uint16_t> SignTiles(const TransformFactor& factor) {
  const int64_t n = factor.order, steps = (n + 31) / 32, tiles = (n + 15) / 16;
  const std::span<const int8_t> h = HadamardMatrix(factor);
  std::vector<uint16_t> signs(static_cast<size_t>(tiles * steps * 16 * 32));
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t col = 0; col < n; ++col) {
      const int64_t at = ((row / 16 * steps + col / 32) * 16 + row % 16) * 32 + col % 32;
      signs[static_cast<size_t>(at)] = h[static_cast<size_t>(row * n + col)] < 0 ? 0xBF80 : 0x3F80;
    }
  }
  return signs;
}

std::vector<float> Entries(const TransformFactor& factor) {
  const int64_t n = factor.order, pitch = (n + kEntryRows - 1) / kEntryRows * kEntryRows;
  const std::span<const double> matrix = FactorMatrix(factor);
  std::vector<float> entries(static_cast<size_t>(n * pitch));
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t col = 0; col < n; ++col) {
      entries[static_cast<size_t>(col * pitch + row)] =
          static_cast<float>(matrix[static_cast<size_t>(row * n + col)]);
    }
  }
  return entries;
}

TransformPlan MakePlan(const TransformSpec& spec, bool amx) {
  TransformPlan plan = {.spec = spec, .amx = amx, .axes = {}};
  plan.scale = static_cast<float>(spec.scale());
  int64_t after = spec.width() / spec.outer;
  for (const TransformFactor& factor : spec.factors) {
    after /= factor.order;
    if (factor.order == 1) continue;
    TransformAxis axis = {.order = factor.order,
                          .after = after,
                          .patterns = {},
                          .signs = {},
                          .entries = {},
                          .fourier = {}};
    if (factor.kind == FactorKind::kFourier) {
      axis.fourier = factor;
    } else if (factor.kind != FactorKind::kSylvester) {
      if (!factor.hadamard()) {
        axis.entries = Entries(factor);
      } else if (amx) {
        axis.signs = SignTiles(factor);
      } else {
        axis.patterns = SignPatterns(factor);
      }
      const int64_t columns = spec.width() / factor.order;
      plan.row_group = std::max(plan.row_group, axis.columns() / std::gcd(axis.columns(), columns));
    }
    const int64_t dense_cost = 1 + factor.order / (!factor.hadamard() ? 4 : amx ? 48 : 12);
    const int64_t cost = axis.fourier   ? OperationsPerElement(factor)
                         : axis.dense() ? dense_cost
                                        : 2;
    plan.row_cost += spec.width() * cost;
    plan.axes.push_back(std::move(axis));
  }
  return plan;
}

}  // namespace

const TransformPlan& PlanFor(const TransformSpec& spec, Isa isa) {
  static std::mutex mutex;
  static std::list<TransformPlan> plans;  // a program uses a handful
  const std::lock_guard<std::mutex> lock(mutex);
  const bool amx = isa >= Isa::kAmx;
  for (const TransformPlan& plan : plans) {
    if (plan.spec == spec && plan.amx == amx) return plan;
  }
  return plans.emplace_back(MakePlan(spec, amx));
}

float* ThreadScratch(Scratch use, int64_t floats) {
  constexpr size_t kAlign = 64;
  thread_local std::array<std::vector<float>, 3> memory;
  std::vector<float>& own = memory[static_cast<size_t>(use)];
  const size_t needed = static_cast<size_t>(floats) + kAlign / sizeof(float);
  if (own.size() < needed) own.resize(needed);
  const auto address = reinterpret_cast<uintptr_t>(own.data());
  return own.data() + ((address + kAlign - 1) / kAlign * kAlign - address) / sizeof(float);
}

}  // namespace nibble::cpu
