// SPDX-License-Identifier: Apache-2.0
// The values a chat template computes with: JSON's, plus undefined, tuples, namespaces, the loop
// variable and callables, with Python's truth, equality, str() and json.dumps(). Strings and
// containers are immutable and shared, so copying a Value is O(1): jinja2's
// ImmutableSandboxedEnvironment allows no mutation but a namespace's.
//
// A namespace or loop cannot be put in a container or namespace, so there are no cycles, and
// containers nest at most kMaxValueDepth deep, which bounds recursion over a value.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/json.h"

namespace nibble::jinja {

inline constexpr size_t kMaxSteps = 1'000'000;
inline constexpr size_t kBytesPerStep = 64;
inline constexpr size_t kCharsPerStep = 8;        // where each is looked up in the Unicode tables
inline constexpr size_t kMaxTextBytes = 4 << 20;  // of the output and of every string
inline constexpr int kMaxValueDepth = 100;
inline constexpr int64_t kMaxRange = 100'000;
inline constexpr size_t kMaxDigits = 4300;  // of an integer, as in Python

// Caught where the template's name and line are known, and rethrown as nibble::Error.
struct TemplateError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <typename... A>
[[noreturn]] void Raise(fmt::format_string<A...> format, A&&... args) {
  throw TemplateError(fmt::format(format, std::forward<A>(args)...));
}

class Budget {
 public:
  explicit Budget(size_t steps = kMaxSteps) : left_(steps) {}
  void Charge(size_t steps) {
    if (steps > left_) {
      left_ = 0;  // a failure that is kept for later does not let the run go on
      Raise("more than {} evaluation steps", kMaxSteps);
    }
    left_ -= steps;
  }

 private:
  size_t left_;
};

// Every string a template computes is built here.
class Text {
 public:
  explicit Text(Budget& budget) : budget_(budget) {}
  void Add(std::string_view piece) {
    if (piece.size() > kMaxTextBytes - text_.size()) {
      Raise("text longer than {} bytes", kMaxTextBytes);
    }
    const size_t charged = text_.size() / kBytesPerStep;
    budget_.Charge((text_.size() + piece.size()) / kBytesPerStep - charged);
    text_ += piece;
  }
  std::string Take() {
    budget_.Charge(1);
    return std::exchange(text_, {});
  }
  Budget& budget() { return budget_; }

 private:
  Budget& budget_;
  std::string text_;
};

// Python's int has no bounds. One that 64 bits do not hold keeps its decimal digits, without
// leading zeros, and prints exactly; jinja_math.h says how far one can compute with it.
struct BigInt {
  std::string digits;  // "-" may stand before them
};
// A text that is HTML already: Python's markupsafe, whose type `safe` and `escape` make. What is
// joined to it is escaped (jinja_markup.h); otherwise it is a text like others.
struct Markup {
  std::string text;
};
struct List;
struct Dict;
struct Namespace;
struct Loop;
struct Callable;
struct Undefined {
  std::shared_ptr<const std::string> message;  // what a use other than a test says
  std::string_view Message() const {
    return message ? std::string_view(*message) : "undefined value";
  }
};

class Value {
 public:
  Value() = default;
  // Implicit, as values are made from results everywhere.
  Value(bool b) : data_(b) {}                                                         // NOLINT
  Value(int64_t i) : data_(i) {}                                                      // NOLINT
  Value(double d) : data_(d) {}                                                       // NOLINT
  Value(std::string s) : data_(std::make_shared<const std::string>(std::move(s))) {}  // NOLINT
  Value(const char*) = delete;  // would become a bool
  template <typename T>
  Value(std::shared_ptr<T> p) : data_(std::move(p)) {}  // NOLINT
  static Value Missing(std::string message);
  static Value None() {
    Value value;
    value.data_ = nullptr;
    return value;
  }

  template <typename T>
  bool Is() const {
    return std::holds_alternative<T>(data_);
  }
  bool IsUndefined() const { return Is<Undefined>(); }
  bool IsNone() const { return Is<std::nullptr_t>(); }
  const bool* AsBool() const { return std::get_if<bool>(&data_); }
  const double* AsDouble() const { return std::get_if<double>(&data_); }
  const Undefined* AsUndefined() const { return std::get_if<Undefined>(&data_); }
  const BigInt* AsBigInt() const { return Pointee<const BigInt>(); }
  const std::string* AsString() const {
    const Markup* markup = Pointee<const Markup>();
    return markup != nullptr ? &markup->text : Pointee<const std::string>();
  }
  bool IsMarkup() const { return Pointee<const Markup>() != nullptr; }
  const List* AsList() const { return Pointee<const List>(); }
  const Dict* AsDict() const { return Pointee<const Dict>(); }
  Namespace* AsNamespace() const { return Pointee<Namespace>(); }
  const Loop* AsLoop() const { return Pointee<const Loop>(); }
  const Callable* AsCallable() const { return Pointee<const Callable>(); }
  std::shared_ptr<const List> ListPointer() const;
  std::optional<int64_t> AsInt() const;    // int of 64 bits, or bool
  std::optional<double> AsNumber() const;  // int, bool or float
  bool IsInteger() const { return AsBigInt() != nullptr || AsInt().has_value(); }

  bool Truth() const;
  const char* TypeName() const;  // Python's
  int Depth() const;

 private:
  template <typename T>
  T* Pointee() const {
    const auto* p = std::get_if<std::shared_ptr<T>>(&data_);
    return p == nullptr ? nullptr : p->get();
  }
  std::variant<Undefined, std::nullptr_t, bool, int64_t, double, std::shared_ptr<const std::string>,
               std::shared_ptr<const List>, std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
               std::shared_ptr<const Loop>, std::shared_ptr<const Callable>,
               std::shared_ptr<const BigInt>, std::shared_ptr<const Markup>>
      data_;
};

// A generator is what filters such as `map` return: it is true even when empty, has no length and
// is walked once. Its items are computed before that, unlike in Python; an error is kept for a walk
// that gets there. Keys, values and items are views of a dictionary, a group is the tuple that
// groupby yields.
enum class ListKind { kList, kTuple, kGroup, kRange, kGenerator, kKeys, kValues, kItems };
struct List {
  std::vector<Value> items;
  ListKind kind;
  int depth;
  int64_t start = 0, stop = 0, step = 1;  // only for a range
  // For a generator: how many items were walked, and the error behind the last one. No template
  // holds a generator as a constant, so that one run alone changes it.
  mutable size_t walked = 0;
  std::string failure = "";

  bool IsTuple() const { return kind == ListKind::kTuple || kind == ListKind::kGroup; }
  bool HasIndex() const { return kind <= ListKind::kRange; }
  bool HasLength() const { return kind != ListKind::kGenerator; }
};
using DictItems = std::vector<std::pair<Value, Value>>;
struct Dict {
  DictItems items;
  int depth;
};
// The objects whose state a template may change.
enum class StateKind { kNamespace, kCycler, kJoiner };
struct Namespace {
  std::map<std::string, Value, std::less<>> vars;
  StateKind kind = StateKind::kNamespace;
};
struct Node;
// A loop cannot leave the scope it is made in, as no container or namespace holds it: `scope`
// outlives it.
struct Loop {
  std::shared_ptr<const List> items;
  size_t index;
  int depth;
  const Node* node;                // of a recursive loop, else nullptr
  const void* scope;               // of a recursive loop: where it stands
  std::shared_ptr<Value> changed;  // what loop.changed() saw last
};

// Charges a text that a function may read as much as writing it costs.
void ChargeText(Budget& budget, const Value& value);
Value MakeString(Budget& budget, std::string text);
Value MakeList(Budget& budget, std::vector<Value> items, ListKind kind = ListKind::kList);
Value MakeGenerator(Budget& budget, std::vector<Value> items, std::string failure);
Value MakeDict(Budget& budget, DictItems items);
Value MakeRange(Budget& budget, int64_t start, int64_t stop, int64_t step);
Value MakeInteger(std::string_view digits);  // a sign may stand before them; raises on other text
Value FromJson(const Json& json);

// The value of a key, nullptr if there is none.
const Value* FindKey(Budget& budget, const DictItems& items, const Value& key);
const Value* FindKey(Budget& budget, const DictItems& items, std::string_view key);
// Sets or appends; raises for a key without a hash: a list or dictionary.
void SetKey(Budget& budget, DictItems& items, const Value& key, Value value);

// Python's == and <, `needle in haystack`, str() and json.dumps().
bool Equal(Budget& budget, const Value& a, const Value& b);
bool Less(Budget& budget, const Value& a, const Value& b);
// Sorts by any `less`, which need not be a strict order for a template's values (NaN): std::merge
// stays within its ranges even then, std::sort does not.
template <typename T, typename F>
void StableSort(std::vector<T>& items, F&& less) {
  std::vector<T> merged(items.size());
  const auto at = [&](auto& list, size_t i) {
    return list.begin() + static_cast<ptrdiff_t>(std::min(i, items.size()));
  };
  for (size_t width = 1; width < items.size(); width *= 2) {
    for (size_t i = 0; i < items.size(); i += 2 * width) {
      std::merge(at(items, i), at(items, i + width), at(items, i + width), at(items, i + 2 * width),
                 at(merged, i), less);
    }
    items.swap(merged);
  }
}
bool Contains(Budget& budget, const Value& haystack, const Value& needle);
std::string Str(Budget& budget, const Value& value);
std::string Repr(Budget& budget, const Value& value);
struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false;
  std::optional<std::string> indent;
  std::string item_separator = ", ", key_separator = ": ";
};
std::string ToJson(Budget& budget, const Value& value, const JsonStyle& style);

}  // namespace nibble::jinja
