// SPDX-License-Identifier: Apache-2.0
// The values a chat template computes with: JSON's, plus undefined, tuples, namespaces, the loop
// variable and callables, with Python's truth, equality, str() and json.dumps().
// Strings and containers are immutable and shared, so copying a Value is O(1), as the sandbox of
// the reference (jinja2's ImmutableSandboxedEnvironment) allows no mutation but a namespace's.
// Bounds: work is charged to a Budget (one step an operation or list item, 64 bytes of text, or 8
// characters where each is classified), a text holds at most 4 MiB, containers nest at most 100
// deep (so recursion over a value is bounded), and a namespace or loop cannot be put in a container
// or namespace (so there are no cycles).
#pragma once

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
    if (steps > left_) Raise("more than {} evaluation steps", kMaxSteps);
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
  const std::string* AsString() const { return Pointee<const std::string>(); }
  const List* AsList() const { return Pointee<const List>(); }
  const Dict* AsDict() const { return Pointee<const Dict>(); }
  Namespace* AsNamespace() const { return Pointee<Namespace>(); }
  const Loop* AsLoop() const { return Pointee<const Loop>(); }
  const Callable* AsCallable() const { return Pointee<const Callable>(); }
  std::shared_ptr<const List> ListPointer() const;
  std::optional<int64_t> AsInt() const;    // int or bool
  std::optional<double> AsNumber() const;  // int, bool or float

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
               std::shared_ptr<const Loop>, std::shared_ptr<const Callable>>
      data_;
};

// A generator is what filters such as `map` return: it is true even when empty and has no length.
enum class ListKind { kList, kTuple, kGenerator };
struct List {
  std::vector<Value> items;
  ListKind kind;
  int depth;
};
using DictItems = std::vector<std::pair<std::string, Value>>;
struct Dict {
  DictItems items;
  int depth;
};
struct Namespace {
  std::map<std::string, Value, std::less<>> vars;
};
struct Loop {
  std::shared_ptr<const List> items;
  size_t index;
};

// What a function may read of a text costs as much as writing it.
void ChargeText(Budget& budget, const Value& value);
Value MakeString(Budget& budget, std::string text);
Value MakeList(Budget& budget, std::vector<Value> items, ListKind kind = ListKind::kList);
Value MakeDict(Budget& budget, DictItems items);
Value FromJson(const Json& json);

// The value of a key, nullptr if there is none; constant if the items are.
template <typename Items>
auto* FindKey(Budget& budget, Items& items, std::string_view key) {
  budget.Charge(items.size() / 8);
  for (auto& [name, value] : items) {
    if (name.size() != key.size()) continue;
    budget.Charge(key.size() / kBytesPerStep);
    if (name == key) return &value;
  }
  return static_cast<decltype(&items.front().second)>(nullptr);
}

// Python's == and <, `needle in haystack`, str() and json.dumps().
bool Equal(Budget& budget, const Value& a, const Value& b);
bool Less(Budget& budget, const Value& a, const Value& b);
bool Contains(Budget& budget, const Value& haystack, const Value& needle);
std::string Str(Budget& budget, const Value& value);
struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false;
  std::optional<std::string> indent;
  std::string item_separator = ", ", key_separator = ": ";
};
std::string ToJson(Budget& budget, const Value& value, const JsonStyle& style);

}  // namespace nibble::jinja
