// SPDX-License-Identifier: Apache-2.0
// Tables of the rotary position embedding (Su et al., RoFormer, 2021) for the half-split layout:
// dimensions i and i + head_dim / 2 are a pair, rotated by position * frequency[i]. Every step is
// rounded to fp32 where transformers rounds it: at position 10000 a frequency's last bit already
// turns a pair by a visible 0.0006.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace nibble {

struct RopeSpec {
  double theta = 10000;
  int64_t head_dim = 0;  // the first dimensions of a head, which are rotated
  // "linear": positions / factor; "llama3", "yarn", "longrope"; "proportional": of a head's pairs
  // only the first turn, as fast as if all did.
  std::string type = "default";
  double factor = 1;
  // "llama3" only: waves shorter than original_context / high_freq_factor tokens stay, waves longer
  // than original_context / low_freq_factor are stretched by factor, between them both are blended.
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_context = 8192;  // "yarn" reads it, too
  // "yarn" only (Peng et al., 2023): dimensions that turn more than beta_fast times within
  // original_context stay, those that turn less than beta_slow times are stretched by factor, with
  // a ramp over the dimensions between them, whose ends are rounded outwards if `truncate`.
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;
  // "longrope" only (Ding et al., 2024): the divisors of the frequencies, head_dim / 2 of them.
  std::vector<double> divisors = {};
  double attention_factor = 1;  // multiplies cosines and sines
  int64_t turned = 0;           // "proportional" only: dimensions whose pairs turn
};

struct RopeTable {
  Matrix<float> cos, sin;  // [positions, head_dim / 2]
};

// A table in any memory.
struct RopeView {
  RopeView(const float* cos_table, const float* sin_table, int64_t rows, int64_t cols)
      : cos(cos_table), sin(sin_table), positions(rows), angles(cols) {}
  RopeView(const RopeTable& table)
      : RopeView(table.cos.data.data(), table.sin.data.data(), table.cos.rows, table.cos.cols) {}

  const float *cos, *sin;  // [positions, angles]
  int64_t positions, angles;
};

// Throws on a type this version does not know and on numbers out of range.
RopeTable BuildRope(const RopeSpec& spec, int64_t positions);

}  // namespace nibble
