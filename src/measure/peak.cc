// SPDX-License-Identifier: Apache-2.0
#include "measure/peak.h"

#include <algorithm>
#include <chrono>
#include <functional>

#include "base/aligned.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "measure/peak_loops.h"

namespace nibble::cpu {
namespace {

constexpr int kRuns = 11;

Peak Measure(std::string_view name, double work, const std::function<void()>& run) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> rates;
  // Cores take a moment to reach the clock they keep under such instructions.
  for (const auto start = Clock::now(); Clock::now() - start < std::chrono::milliseconds(200);)
    run();
  for (int i = 0; i < kRuns; ++i) {
    const auto start = Clock::now();
    run();
    rates.push_back(work / std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::sort(rates.begin(), rates.end());
  return {name, rates[kRuns / 2], rates.front(), rates.back()};
}

// Every thread runs the loop in pieces, so that a preempted one does not hold up the others.
Peak Multiply(std::string_view name, int (*loop)(int64_t), int64_t step) {
  constexpr int64_t kPieces = 32, kOperations = int64_t{1} << 29;  // of a piece
  const int64_t pieces = kPieces * Threads(), steps = std::max<int64_t>(1, kOperations / step);
  const double work = static_cast<double>(pieces) * static_cast<double>(steps * step);
  return Measure(name, work, [=] {
    ParallelFor(static_cast<size_t>(pieces),
                [=](size_t) { [[maybe_unused]] volatile int keep = loop(steps); });
  });
}

Peak ReadStream(int (*read)(const uint8_t*, int64_t)) {
  constexpr int64_t kBytes = int64_t{1} << 30, kPiece = int64_t{4} << 20;
  const AlignedBytes memory = MakeAlignedBytes(kBytes);
  const auto* data = reinterpret_cast<const uint8_t*>(memory.get());
  return Measure("memory read", static_cast<double>(kBytes), [=] {
    ParallelFor(static_cast<size_t>(kBytes / kPiece), [=](size_t i) {
      [[maybe_unused]] volatile int keep = read(data + static_cast<int64_t>(i) * kPiece, kPiece);
    });
  });
}

}  // namespace

Peak MeasureIntPeak(Isa isa) {
  NIBBLE_CHECK(isa >= Isa::kAvx2, "{}", IsaName(isa));
  if (isa == Isa::kAvx2) return Multiply("avx2 int8", avx2_peak_u8s8, kAvx2StepInt);
  if (isa == Isa::kAvxVnni) return Multiply("avx_vnni int8", avx_vnni_peak_u8s8, kAvxVnniStepInt);
  if (isa < Isa::kAmx) return Multiply("avx512 int8", avx512_peak_u8s8, kAvx512StepInt);
  return Multiply("amx int8", amx_peak_u8s8, kAmxStepInt);
}

std::vector<Peak> MeasurePeaks(Isa isa) {
  const bool wide = isa >= Isa::kAvx512;
  std::vector<Peak> peaks = {MeasureIntPeak(isa),
                             wide ? Multiply("avx512 fp32", avx512_peak_f32, kAvx512StepF32)
                                  : Multiply("avx2 fp32", avx2_peak_f32, kAvx2StepF32)};
  if (isa >= Isa::kAmx) peaks.push_back(Multiply("amx bf16", amx_peak_bf16, kAmxStepBf16));
  peaks.push_back(ReadStream(wide ? avx512_read : avx2_read));
  return peaks;
}

}  // namespace nibble::cpu
