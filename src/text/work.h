// SPDX-License-Identifier: Apache-2.0
// The work that one input, a text or a stream of tokens, may cost a tokenizer: one budget that
// grows with the input and that all of its regular expressions, normalizers and decoders share. A
// file whose steps multiply, or whose patterns backtrack over and over, ends in an Error.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/error.h"

namespace nibble {

// A step is about what PCRE2 does for one item of a pattern, some nanoseconds. Real tokenizers take
// fewer than 100 a byte; 512 a byte are a second for 200 kB.
inline constexpr uint64_t kStepsPerInput = 4'000'000;
inline constexpr uint64_t kStepsPerInputByte = 512;
inline constexpr uint64_t kStepsPerByteWritten = 8;  // so a text grows at most 64 times

class Work {
 public:
  // `where` names the tokenizer in messages.
  Work(std::string where, uint64_t input_bytes) : where_(std::move(where)) { Allow(input_bytes); }

  void Allow(uint64_t more_input_bytes) {
    input_bytes_ += more_input_bytes;
    left_ += more_input_bytes * kStepsPerInputByte;
  }
  bool Take(uint64_t steps) {
    if (steps > left_) return false;
    left_ -= steps;
    return true;
  }
  void Charge(uint64_t steps) {
    if (!Take(steps)) Exceeded(where_);
  }
  void ChargeWrite(uint64_t bytes) { Charge(bytes * kStepsPerByteWritten); }
  [[noreturn]] void Exceeded(const std::string& where) const {
    Fail("{}: a text of {} bytes takes more than {} steps to match or to write, the limit", where,
         input_bytes_, kStepsPerInput + input_bytes_ * kStepsPerInputByte);
  }

 private:
  std::string where_;
  uint64_t input_bytes_ = 0;
  uint64_t left_ = kStepsPerInput;
};

}  // namespace nibble
