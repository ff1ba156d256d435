// SPDX-License-Identifier: Apache-2.0
// All that a template can call: filters, tests, methods of texts, lists and dictionaries, and the
// global functions. This list is the whole sandbox: nothing here reaches a file, the environment,
// the program or an attribute of an object, and every function charges its work to the budget.
//
// It differs from Python in that surplus arguments are ignored, upper() and lower() map single code
// points, and a generator takes its items when it is made. It lacks random, lipsum, urlize and
// methods that give bytes.
#pragma once

#include <ctime>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_value.h"

namespace nibble::jinja {

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
  // The argument given by position or by name; nullptr if there is none.
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

using Table = std::map<std::string_view, Function>;

struct Callable {
  Function function = nullptr;  // of `self`: a method or global function
  Value self;
  const Node* macro = nullptr;  // instead of a function
  const void* scope = nullptr;  // where a macro was made that cannot leave that scope
};

Value ApplyFilter(Context& context, const std::string& name, const Value& input, const Args& args);
bool ApplyTest(Context& context, const std::string& name, const Value& input, const Args& args);
bool HasFilter(std::string_view name);
bool HasTest(std::string_view name);
// object.name prefers a method, object[key] an item, as in jinja2. Absent gives undefined; any
// access to an undefined object raises.
Value GetAttr(Context& context, const Value& object, std::string_view name);
Value GetItem(Context& context, const Value& object, const Value& key);
Value Bind(Function function, const Value& self);
void SetVar(Budget& budget, Namespace& target, const std::string& name, const Value& value);
Value FindGlobal(const std::string& name);  // undefined if there is none
const Table& StringMethods();
// The rows of those tables that have a file of their own.
void AddSearchMethods(Table& methods);
void AddSequenceFilters(Table& filters);
void AddTextFilters(Table& filters);
void AddNumberFilters(Table& filters);
// The items a for loop visits: list items, characters, keys, and what is left of a generator. An
// error behind the last item is raised, or put into *failure.
std::shared_ptr<const List> Iterate(Context& context, const Value& value,
                                    std::string* failure = nullptr);

}  // namespace nibble::jinja
