// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// Finds some literals in a text that comes byte by byte, and holds back what could be the beginning
// of one (Aho and Corasick 1975). No literal lies within another one.
class LiteralMatcher {
 public:
  explicit LiteralMatcher(const std::vector<std::string>& literals);

  struct Found {
    std::string_view plain;  // bytes that belong to no literal, until the next call
    int literal = -1;        // index of the one that ends with this byte, behind `plain`; -1: none
  };
  Found Push(char c);
  std::string Flush();  // returns the bytes that are held back, as plain ones

 private:
  struct Node {
    std::array<int16_t, 256> next;
    int16_t depth = 0, literal = -1;
  };
  std::vector<Node> nodes_;
  int16_t at_ = 0;
  std::string held_, plain_;
};

}  // namespace nibble
