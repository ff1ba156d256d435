// SPDX-License-Identifier: Apache-2.0
#include "grammar/decimal_sets.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "grammar/json_text.h"

namespace nibble::grammar {
namespace {

// The number of digits that a double tells apart.
constexpr int64_t kExactDigits = 15;
// The most states of an automaton for remainders, and of one that counts digits beside them.
constexpr size_t kMaxDivisorStates = 4000, kMaxCountedStates = 30'000;

Expr AnyDigits(size_t count) {
  return Repeat(Digit(), static_cast<int64_t>(count), static_cast<int64_t>(count));
}

// Digits, as many as `least` has and not below it, or as many as `most` has and not above it.
Expr DigitsFrom(std::string_view min) {
  if (min.empty()) return Literal("");
  const std::string_view rest = min.substr(1);
  std::vector<Expr> all = {Sequence({Digit(min[0], min[0]), DigitsFrom(rest)})};
  if (min[0] < '9') {
    const auto above = static_cast<char>(min[0] + 1);
    all.push_back(Sequence({Digit(above, '9'), AnyDigits(rest.size())}));
  }
  return Choice(std::move(all));
}
Expr DigitsTo(std::string_view max) {
  if (max.empty()) return Literal("");
  const std::string_view rest = max.substr(1);
  std::vector<Expr> all = {Sequence({Digit(max[0], max[0]), DigitsTo(rest)})};
  if (max[0] > '0') {
    const auto below = static_cast<char>(max[0] - 1);
    all.push_back(Sequence({Digit('0', below), AnyDigits(rest.size())}));
  }
  return Choice(std::move(all));
}

Expr Fraction() {
  return Optional(Sequence({Literal("."), Repeat(Digit(), 1, kUnbounded)}));
}
Expr Zeros(int64_t min) {
  return Repeat(Digit('0', '0'), min, kUnbounded);
}

// The digits that make a number at least (FractionFrom) or at most (FractionTo) the bound, where
// those so far are the bound's own; `rest` are the bound's further digits behind the point.
Expr FractionFrom(std::string_view rest, bool within) {
  if (rest.empty()) {
    return within ? Repeat(Digit(), 0, kUnbounded)
                  : Sequence({Zeros(0), Digit('1'), Repeat(Digit(), 0, kUnbounded)});
  }
  std::vector<Expr> all = {
      Sequence({Digit(rest[0], rest[0]), FractionFrom(rest.substr(1), within)})};
  if (rest[0] < '9') {
    const auto above = static_cast<char>(rest[0] + 1);
    all.push_back(Sequence({Digit(above, '9'), Repeat(Digit(), 0, kUnbounded)}));
  }
  return Choice(std::move(all));
}
Expr FractionTo(std::string_view rest, bool within) {
  if (rest.empty()) return within ? Zeros(0) : Choice({});
  std::vector<Expr> all = {Literal(""),
                           Sequence({Digit(rest[0], rest[0]), FractionTo(rest.substr(1), within)})};
  if (rest[0] > '0') {
    const auto below = static_cast<char>(rest[0] - 1);
    all.push_back(Sequence({Digit('0', below), Repeat(Digit(), 0, kUnbounded)}));
  }
  return Choice(std::move(all));
}

// Numbers without a sign of at least, or at most, the magnitude of `bound`. Zeros in front and a
// point without digits behind it are among them; Shape() has neither.
Expr MagnitudeFrom(const Decimal& bound, bool within) {
  const std::string& whole = bound.whole;
  const auto size = static_cast<int64_t>(whole.size());
  std::vector<Expr> all = {
      Sequence({Repeat(Digit(), size + 1, kUnbounded), Fraction()}),
      Sequence({Literal(whole), Literal("."), FractionFrom(bound.fraction, within)})};
  if (within && bound.fraction.empty()) all.push_back(Literal(whole));
  if (whole.find_first_not_of('9') != std::string::npos) {  // larger ones of as many digits
    std::string above = whole;
    size_t last = above.size() - 1;
    for (; above[last] == '9'; --last) above[last] = '0';
    ++above[last];
    all.push_back(Sequence({DigitsFrom(above), Fraction()}));
  }
  return Choice(std::move(all));
}
Expr MagnitudeTo(const Decimal& bound, bool within) {
  const std::string& whole = bound.whole;
  const auto size = static_cast<int64_t>(whole.size());
  std::vector<Expr> all = {
      Sequence({Literal(whole), Literal("."), FractionTo(bound.fraction, within)})};
  if (size > 1) all.push_back(Sequence({Repeat(Digit(), 1, size - 1), Fraction()}));
  if (within || !bound.fraction.empty()) all.push_back(Literal(whole));
  if (whole != "0") {  // smaller ones of as many digits
    std::string below = whole;
    size_t last = below.size() - 1;
    for (; below[last] == '0'; --last) below[last] = '9';
    --below[last];
    all.push_back(Sequence({DigitsTo(below), Fraction()}));
  }
  return Choice(std::move(all));
}

Expr Negative(Expr magnitude) {
  return Sequence({Literal("-"), std::move(magnitude)});
}

// The texts of numbers, with up to so many digits in front of the point and behind it.
TextSet Shape(int64_t whole_digits, int64_t fraction_digits) {
  const Expr whole =
      Choice({Literal("0"), Sequence({Digit('1'), Repeat(Digit(), 0, whole_digits - 1)})});
  Expr number = whole;
  if (fraction_digits > 0) {
    number =
        Sequence({whole, Optional(Sequence({Literal("."), Repeat(Digit(), 1, fraction_digits)}))});
  }
  const TextSet shape = TextSet::Of(Sequence({Optional(Literal("-")), number}));
  return shape.Without(
      TextSet::Of(Sequence({Literal("-0"), Optional(Sequence({Literal("."), Zeros(1)}))})));
}

Expr AnyMagnitude() {
  return Sequence({Repeat(Digit(), 1, kUnbounded), Fraction()});
}

TextSet From(const DecimalBound& bound) {
  const Decimal& value = bound.value;
  if (!value.negative) return TextSet::Of(MagnitudeFrom(value, bound.within));
  return TextSet::Of(Choice({AnyMagnitude(), Negative(MagnitudeTo(value, bound.within))}));
}

TextSet To(const DecimalBound& bound) {
  const Decimal& value = bound.value;
  if (value.negative) return TextSet::Of(Negative(MagnitudeFrom(value, bound.within)));
  return TextSet::Of(Choice({Negative(AnyMagnitude()), MagnitudeTo(value, bound.within)}));
}

TextSet Equal(const Decimal& value) {
  Expr text = Sequence({Literal(value.negative ? "-" : ""), Literal(value.whole)});
  if (value.fraction.empty()) {
    return TextSet::Of(Sequence({text, Optional(Sequence({Literal("."), Zeros(1)}))}));
  }
  return TextSet::Of(Sequence({text, Literal("." + value.fraction), Zeros(0)}));
}

// Multiples of a * 10^zeros / 10^places, where one of `zeros` and `places` is 0. A state is the
// remainder by `a` of the digits so far without their last zeros, of which it counts up to `zeros`;
// and how many digits stand behind the point, or that none has come.
class MultiplesSet {
 public:
  explicit MultiplesSet(const Decimal& divisor) : places_(divisor.fraction.size()) {
    std::string digits = divisor.whole + divisor.fraction;
    while (places_ == 0 && digits.ends_with('0')) {
      digits.pop_back();
      ++zeros_;
    }
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), divisor_);
    const size_t max = kMaxDivisorStates / ((places_ + 1) * (zeros_ + 1));
    if (error != std::errc() || divisor_ == 0 || divisor_ > max) {
      FailUsage("multipleOf {}{}{} is not supported: too many remainders", divisor.whole,
                divisor.fraction.empty() ? "" : ".", divisor.fraction);
    }
  }

  TextSet Make() const {
    std::vector<TextSet::State> states;
    for (size_t phase = 0; phase <= places_ + 1; ++phase) {
      for (size_t zeros = 0; zeros <= zeros_; ++zeros) {
        for (uint64_t rest = 0; rest < divisor_; ++rest) {
          states.push_back(MakeState(phase, zeros, rest));
        }
      }
    }
    // Texts begin as though zeros stood in front of them, so that state becomes the start.
    std::swap(states[0], states[Index(0, zeros_, 0)]);
    for (TextSet::State& state : states) {
      for (TextSet::Arc& arc : state.arcs) arc.to = Swapped(arc.to);
    }
    return TextSet(std::move(states));
  }

 private:
  size_t Index(size_t phase, size_t zeros, uint64_t rest) const {
    return (phase * (zeros_ + 1) + zeros) * divisor_ + rest;
  }
  int32_t Swapped(int32_t state) const {
    const auto begin = static_cast<int32_t>(Index(0, zeros_, 0));
    return state == 0 ? begin : state == begin ? 0 : state;
  }

  // Phase 0 is in front of the point, phase p behind the point and p - 1 digits.
  TextSet::State MakeState(size_t phase, size_t zeros, uint64_t rest) const {
    TextSet::State state;
    uint64_t left = rest;
    for (size_t i = phase == 0 ? 0 : phase - 1; i < places_; ++i) left = left * 10 % divisor_;
    state.accepts = left == 0 && zeros == zeros_;
    if (phase == 0) {
      if (zeros == zeros_ && rest == 0) state.arcs.push_back({'-', '-', At(0, zeros, rest)});
      if (places_ > 0 || state.accepts) state.arcs.push_back({'.', '.', At(1, zeros, rest)});
    }
    if (phase == places_ + 1) {  // no digit but 0 behind all that count
      if (state.accepts) state.arcs.push_back({'0', '0', At(phase, zeros, rest)});
      return state;
    }
    for (uint32_t digit = 0; digit < 10; ++digit) {
      const bool counted = digit == 0 && zeros < zeros_;
      uint64_t next = rest;
      if (!counted) {
        const size_t shifts = digit == 0 ? 1 : zeros + 1;
        for (size_t i = 0; i < shifts; ++i) next = next * 10 % divisor_;
        next = (next + digit) % divisor_;
      }
      const size_t kept = counted ? zeros + 1 : digit == 0 ? zeros : 0;
      const int32_t to = At(phase == 0 ? 0 : phase + 1, kept, next);
      state.arcs.push_back({'0' + digit, '0' + digit, to});
    }
    return state;
  }
  int32_t At(size_t phase, size_t zeros, uint64_t rest) const {
    return static_cast<int32_t>(Index(phase, zeros, rest));
  }

  uint64_t divisor_ = 0;
  size_t places_, zeros_ = 0;
};

// Exclusive bounds end where doubles no longer tell a number from them.
int64_t FractionDigits(const NumberLimits& limits) {
  if (limits.integer) return 0;
  int64_t digits = kNumberDigits;
  for (const auto& bound : {limits.min, limits.max}) {
    if (!bound || bound->within) continue;
    const auto whole = static_cast<int64_t>(bound->value.whole.size());
    digits = std::min(digits, std::max<int64_t>(kExactDigits - whole, 1));
  }
  return digits;
}

}  // namespace

bool Less(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative;
  const Decimal& small = a.negative ? b : a;
  const Decimal& large = a.negative ? a : b;
  if (small.whole.size() != large.whole.size()) return small.whole.size() < large.whole.size();
  if (small.whole != large.whole) return small.whole < large.whole;
  return small.fraction < large.fraction;
}

Decimal ToDecimal(const Json& number) {
  const std::string text = JsonDump(number);
  std::string_view rest = text;
  Decimal value;
  value.negative = rest.starts_with('-');
  rest.remove_prefix(value.negative ? 1 : 0);
  const size_t e = std::min(rest.find_first_of("eE"), rest.size());
  int exponent = 0;
  if (e < rest.size()) {
    const char* begin = rest.data() + e + 1;
    std::from_chars(begin + (*begin == '+' ? 1 : 0), rest.data() + rest.size(), exponent);
  }
  const std::string_view mantissa = rest.substr(0, e);
  const size_t point = std::min(mantissa.find('.'), mantissa.size());
  std::string digits(mantissa);
  if (point < digits.size()) digits.erase(point, 1);
  int64_t whole = static_cast<int64_t>(point) + exponent;  // of the digits
  if (whole < 0) digits.insert(0, static_cast<size_t>(-whole), '0');
  whole = std::max<int64_t>(whole, 0);
  if (whole > static_cast<int64_t>(digits.size())) digits.resize(static_cast<size_t>(whole), '0');
  value.whole = digits.substr(0, static_cast<size_t>(whole));
  value.fraction = digits.substr(static_cast<size_t>(whole));
  value.whole.erase(0, value.whole.find_first_not_of('0'));
  if (value.whole.empty()) value.whole = "0";
  value.fraction.erase(value.fraction.find_last_not_of('0') + 1);
  if (value.is_zero()) value.negative = false;
  return value;
}

TextSet Numbers(const NumberLimits& limits) {
  std::vector<TextSet> multiples, others;
  size_t states = 1;
  for (const Decimal& divisor : limits.multiples) {
    multiples.push_back(MultiplesSet(divisor).Make());
    states = std::min(states * multiples.back().size(), kMaxCountedStates);
  }
  for (const Decimal& divisor : limits.non_multiples) {
    others.push_back(MultiplesSet(divisor).Make());
    states = std::min(states * others.back().size(), kMaxCountedStates);
  }
  const auto digits = static_cast<int64_t>(kMaxCountedStates / states);
  TextSet numbers = Shape(std::clamp<int64_t>(digits, 1, kNumberDigits), FractionDigits(limits));
  if (limits.min) numbers = numbers.And(From(*limits.min));
  if (limits.max) numbers = numbers.And(To(*limits.max));
  for (const Decimal& value : limits.excluded) numbers = numbers.Without(Equal(value));
  for (const TextSet& set : multiples) numbers = numbers.And(set);
  for (const TextSet& set : others) numbers = numbers.Without(set);
  return numbers;
}

}  // namespace nibble::grammar
