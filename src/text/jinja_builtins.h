// SPDX-License-Identifier: Apache-2.0
// What a template can call: filters, tests, methods of strings and dictionaries, and the global
// functions. This list is the whole sandbox: nothing here reaches a file, the environment, the
// program or an attribute of an object, and every function charges its work to the budget.
// Where this is less than Python: integers have 64 bits, dictionary keys are strings, a generator
// may be walked twice, surplus arguments are ignored, upper() and lower() map single code points.
#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_value.h"

namespace nibble::jinja {

inline constexpr int64_t kMaxRange = 100'000;

struct Node;

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
  // By position or by name; nullptr if not given.
  const Value* Find(size_t position, std::string_view name) const;
  const Value& Need(size_t position, std::string_view name) const;
  int64_t Int(size_t position, std::string_view name, int64_t fallback) const;
  bool Bool(size_t position, std::string_view name, bool fallback) const;
  Args Tail(size_t from) const;  // without the first `from` positional ones
};

struct Context {
  Budget budget;
  std::tm now;  // what strftime_now formats
};

using Function = Value (*)(Context& context, const Value& self, const Args& args);

struct Callable {
  Function function;  // of `self`: a method or global function
  Value self;
  const Node* macro;  // instead of a function
};

Value ApplyFilter(Context& context, const std::string& name, const Value& input, const Args& args);
bool ApplyTest(Context& context, const std::string& name, const Value& input, const Args& args);
// object.name prefers a method, object[key] an item, as in jinja2. Absent gives undefined; any
// access to an undefined object raises.
Value GetAttr(Context& context, const Value& object, std::string_view name);
Value GetItem(Context& context, const Value& object, const Value& key);
Function FindStringMethod(std::string_view name);  // nullptr if there is none
void SetVar(Budget& budget, Namespace& target, const std::string& name, const Value& value);
Value FindGlobal(const std::string& name);  // undefined if there is none
// The items a for loop visits: list items, characters, keys.
std::shared_ptr<const List> Iterate(Context& context, const Value& value);

}  // namespace nibble::jinja
