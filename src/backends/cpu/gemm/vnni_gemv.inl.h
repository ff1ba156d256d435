// SPDX-License-Identifier: Apache-2.0
// Two vectors of outputs against up to Vector::kGemvRows tokens at a time, straight from the stored
// codes, each byte of which is read once. A step takes eight inputs, so nibble and byte panels
// share the loop, and every broadcast activation serves both vectors.
//
// Beside what products need (vnni_gemm.inl.h) a Vector has kGemvRows and Chains(rows), the sums
// kept per token and vector: the more, the less a vpdpbusd waits for the one before.
#pragma once

#include "backends/cpu/gemm/int_kernels.h"
#include "backends/cpu/gemm/prefetch.inl.h"

namespace nibble::cpu {
namespace {

// b points into a line of 64 bytes, where the codes of the vector's first output begin.
template <typename Vector>
struct NibbleCodes {
  using V = typename Vector::V;
  static constexpr int64_t kStep = 64;  // bytes per eight inputs
  static constexpr bool kLevels = false;
  void Load(const uint8_t* b, V& lo, V& hi) const {
    const V w = Vector::Load(b);
    lo = Vector::LowNibbles(w);
    hi = Vector::HighNibbles(w);
  }
};

template <typename Vector>
struct FloatCodes : NibbleCodes<Vector> {
  using V = typename Vector::V;
  void Load(const uint8_t* b, V& lo, V& hi) const {
    const V bytes = Vector::Repeat(kFloatBytes);
    NibbleCodes<Vector>::Load(b, lo, hi);
    lo = Vector::Shuffle(bytes, lo);
    hi = Vector::Shuffle(bytes, hi);
  }
};

template <typename Vector>
struct ByteCodes {
  using V = typename Vector::V;
  static constexpr int64_t kStep = 128;
  static constexpr bool kLevels = false;
  void Load(const uint8_t* b, V& lo, V& hi) const {
    lo = Vector::Load(b);
    hi = Vector::Load(b + 64);
  }
};

// A nibble times its scale is below 256, so pairs of bytes are multiplied at once.
template <typename Vector>
struct LevelCodes {
  using V = typename Vector::V;
  static constexpr int64_t kStep = 64;
  static constexpr bool kLevels = true;
  // Byte shuffles for four outputs, whose steps are the lower halves of 32 bits each: the scale
  // twice, followed by a zero each time, and the start four times.
  static constexpr uint8_t kScaleBytes[16] = {0, 128, 0, 128, 4,  128, 4,  128,
                                              8, 128, 8, 128, 12, 128, 12, 128};
  static constexpr uint8_t kStartBytes[16] = {1, 1, 1, 1, 5, 5, 5, 5, 9, 9, 9, 9, 13, 13, 13, 13};
  V scales, starts;

  void Start(const uint16_t* steps) {
    const V step = Vector::Widen(steps);
    scales = Vector::Shuffle(step, Vector::Repeat(kScaleBytes));
    starts = Vector::Shuffle(step, Vector::Repeat(kStartBytes));
  }
  void Load(const uint8_t* b, V& lo, V& hi) const {
    NibbleCodes<Vector>().Load(b, lo, hi);
    lo = Vector::Add8(Vector::Multiply16(lo, scales), starts);
    hi = Vector::Add8(Vector::Multiply16(hi, scales), starts);
  }
};

// The beginnings of the codes, steps and sums of two vectors of outputs.
struct VnniCodes {
  const int8_t* a;  // inputs of the first of the rows that share a pass; c: their sums
  const uint8_t* b[2];
  const uint16_t* steps[2];
  int32_t* c[2];
};

template <typename Vector, template <typename> typename Codes, int R>
__attribute__((noinline)) void VnniSums(const GemvTile& t, VnniCodes p) {
  using V = typename Vector::V;
  using Code = Codes<Vector>;
  constexpr int kChains = Vector::Chains(R);
  constexpr bool kTwoPanels = Vector::kOutputs == kPanel;  // not halves of the same lines
  Code codes[2];
  for (int64_t g = 0; g < t.groups; ++g) {
    V sums[R][2][kChains];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < kChains; ++i) sums[r][0][i] = sums[r][1][i] = Vector::Zero();
    }
    const auto step = [&](int chain) __attribute__((always_inline)) {
      V lo[2], hi[2];
      PrefetchAhead<Code::kStep>(p.b[0]);
      if constexpr (kTwoPanels) PrefetchAhead<Code::kStep>(p.b[1]);
      codes[0].Load(p.b[0], lo[0], hi[0]);
      codes[1].Load(p.b[1], lo[1], hi[1]);
      const int next = (chain + 1) % kChains;
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const int8_t* const a = p.a + r * t.a_stride;
        const V x0 = Vector::Broadcast(a), x1 = Vector::Broadcast(a + 4);
        sums[r][0][chain] = Vector::Dot(sums[r][0][chain], lo[0], x0);
        sums[r][1][chain] = Vector::Dot(sums[r][1][chain], lo[1], x0);
        sums[r][0][next] = Vector::Dot(sums[r][0][next], hi[0], x1);
        sums[r][1][next] = Vector::Dot(sums[r][1][next], hi[1], x1);
      }
      p.b[0] += Code::kStep, p.b[1] += Code::kStep;
      p.a += 8;
    };
    const auto run = [&](int64_t steps) __attribute__((always_inline)) {
      if constexpr (kChains == 4) {
        for (; steps >= 2; steps -= 2) {
          step(0);
          step(2);
        }
      }
      for (; steps > 0; --steps) step(0);
    };
    if constexpr (Code::kLevels) {
      int64_t done = 0;
      for (int64_t left = t.k; left > 0; left -= t.steps.cols, done += kPanel) {
        codes[0].Start(p.steps[0] + done);
        codes[1].Start(p.steps[1] + done);
        run((left < t.steps.cols ? left : t.steps.cols) / 8);
      }
    } else {
      run(t.k / 8);
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        V sum = sums[r][i][0];
#pragma GCC unroll 4
        for (int chain = 1; chain < kChains; ++chain) sum = Vector::Add32(sum, sums[r][i][chain]);
        Vector::Store(p.c[i] + (g * t.rows + r) * kTileOutputs, sum);
      }
    }
  }
}

template <typename Vector, template <typename> typename Codes, int R = Vector::kGemvRows>
void VnniRowsOf(const GemvTile& t, int64_t rows, const VnniCodes& p) {
  if (rows == R) return VnniSums<Vector, Codes, R>(t, p);
  if constexpr (R > 1) VnniRowsOf<Vector, Codes, R - 1>(t, rows, p);
}

template <typename Vector, template <typename> typename Codes>
void VnniGemv(const GemvTile& t) {
  const int64_t blocks = (t.rows + Vector::kGemvRows - 1) / Vector::kGemvRows;
  for (int64_t n = 0; n < kTileOutputs; n += 2 * Vector::kOutputs) {
    VnniCodes p = {.a = t.a};
    for (int64_t i = 0; i < 2; ++i) {
      const int64_t output = n + i * Vector::kOutputs, panel = output / kPanel;
      p.b[i] = t.b + panel * t.b_stride + output % kPanel * 4;
      if constexpr (Codes<Vector>::kLevels) {
        p.steps[i] = t.steps.steps + panel * t.steps.stride + output % kPanel;
      }
      p.c[i] = t.c + output;
    }
    for (int64_t i = 0, left = t.rows; i < blocks; ++i) {
      const int64_t rows = left / (blocks - i);
      VnniRowsOf<Vector, Codes>(t, rows, p);
      p.a += rows * t.a_stride, left -= rows;
      p.c[0] += rows * kTileOutputs, p.c[1] += rows * kTileOutputs;
    }
  }
}

}  // namespace
}  // namespace nibble::cpu
