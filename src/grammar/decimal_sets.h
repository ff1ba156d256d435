// SPDX-License-Identifier: Apache-2.0
// Decimal numbers without exponents, as sets of their texts: those within bounds, multiples, single
// ones. Digits and not doubles say what is in a set. Numbers have the lengths that json_text.h
// gives them, and no "-0".
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "grammar/text_set.h"

namespace nibble::grammar {

struct Decimal {
  bool negative = false;
  std::string whole = "0";    // without zeros in front
  std::string fraction = "";  // without zeros at its end
  bool is_zero() const { return whole == "0" && fraction.empty(); }
  bool operator==(const Decimal&) const = default;
};
bool Less(const Decimal& a, const Decimal& b);
// The decimal of a number in JSON; a double is taken as its shortest text.
Decimal ToDecimal(const Json& number);

struct DecimalBound {
  Decimal value;
  bool within;  // whether the bound itself is allowed
  bool operator==(const DecimalBound&) const = default;
};

struct NumberLimits {
  bool integer = false;
  std::optional<DecimalBound> min = {}, max = {};
  std::vector<Decimal> multiples = {}, non_multiples = {};  // all of these hold
  std::vector<Decimal> excluded = {};
  bool operator==(const NumberLimits&) const = default;
};
// The texts of all numbers within `limits`. A divisor that takes too many states is a kUsage Error.
TextSet Numbers(const NumberLimits& limits);

}  // namespace nibble::grammar
