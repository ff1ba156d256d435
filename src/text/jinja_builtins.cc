// SPDX-License-Identifier: Apache-2.0
#include "text/jinja_builtins.h"

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "text/jinja_text.h"

namespace nibble::jinja {
namespace {

using Table = std::map<std::string_view, Function>;

template <Side side>
Value StripText(Context& c, const Value& self, const Args& args) {
  const std::string text = Str(c.budget, self);
  const Value* chars = args.Find(0, "chars");
  if (chars == nullptr || chars->IsNone()) return std::string(Strip(text, side));
  const std::string set = Str(c.budget, *chars);
  c.budget.Charge((text.size() + set.size()) / kCharsPerStep);
  return std::string(Strip(text, side, set));
}

template <Case style>
Value ChangeTextCase(Context& c, const Value& self, const Args&) {
  const std::string text = Str(c.budget, self);
  c.budget.Charge(text.size() / kCharsPerStep);
  return MakeString(c.budget, ChangeCase(text, style));
}

Value ReplaceText(Context& c, const Value& self, const Args& args) {
  const std::string text = Str(c.budget, self);
  const std::string from = Str(c.budget, args.Need(0, "old"));
  const std::string to = Str(c.budget, args.Need(1, "new"));
  const Value* limit = args.Find(2, "count");
  int64_t left = limit == nullptr || limit->IsNone() ? -1 : args.Int(2, "count", -1);
  Text out(c.budget);
  if (from.empty()) {  // Python puts `to` around every character
    c.budget.Charge(text.size() / kCharsPerStep);
    if (left-- != 0) out.Add(to);
    for (const std::string_view one : Chars(text)) {
      out.Add(one);
      if (left-- != 0) out.Add(to);
    }
    return out.Take();
  }
  size_t at = 0;
  for (size_t hit; left != 0 && (hit = FindText(text, from, at)) != std::string::npos; --left) {
    c.budget.Charge(1);
    out.Add(std::string_view(text).substr(at, hit - at));
    out.Add(to);
    at = hit + from.size();
  }
  out.Add(std::string_view(text).substr(at));
  return out.Take();
}

Value SplitText(Context& c, const Value& self, const Args& args) {
  const std::string& text = *self.AsString();
  const Value* separator = args.Find(0, "sep");
  int64_t left = args.Int(1, "maxsplit", -1);
  std::vector<Value> parts;
  const auto add = [&](std::string_view part) {
    c.budget.Charge(part.size() / kBytesPerStep + 1);
    parts.emplace_back(std::string(part));
  };
  if (separator != nullptr && !separator->IsNone()) {
    const std::string by = Str(c.budget, *separator);
    if (by.empty()) Raise("split(): empty separator");
    size_t at = 0;
    for (size_t hit; left != 0 && (hit = FindText(text, by, at)) != std::string::npos; --left) {
      add(std::string_view(text).substr(at, hit - at));
      at = hit + by.size();
    }
    add(std::string_view(text).substr(at));
    return MakeList(c.budget, std::move(parts));
  }
  std::string_view rest = Strip(text, Side::kLeft);
  for (; !rest.empty(); rest = Strip(rest, Side::kLeft)) {
    size_t end = left == 0 ? rest.size() : 0;
    while (end < rest.size() && !IsSpace(FirstChar(rest.substr(end)))) {
      end += FirstChar(rest.substr(end)).size();
    }
    --left;
    add(rest.substr(0, end));
    rest.remove_prefix(end);
  }
  return MakeList(c.budget, std::move(parts));
}

Value SplitLines(Context& c, const Value& self, const Args&) {
  std::vector<Value> lines;
  std::string_view rest = *self.AsString();
  while (!rest.empty()) {
    const size_t end = std::min(rest.find_first_of("\r\n"), rest.size());
    lines.push_back(MakeString(c.budget, std::string(rest.substr(0, end))));
    rest.remove_prefix(end);
    if (!rest.empty()) rest.remove_prefix(rest.starts_with("\r\n") ? 2 : 1);
  }
  return MakeList(c.budget, std::move(lines));
}

template <bool at_start>
Value HasAffix(Context& c, const Value& self, const Args& args) {
  const std::string& text = *self.AsString();
  const auto matches = [&](const Value& affix) {
    if (affix.AsString() == nullptr) Raise("startswith() and endswith() need strings");
    c.budget.Charge(1 + std::min(text.size(), affix.AsString()->size()) / kBytesPerStep);
    return at_start ? text.starts_with(*affix.AsString()) : text.ends_with(*affix.AsString());
  };
  const Value& affix = args.Need(0, "prefix");
  const List* choices = affix.AsList();
  if (choices == nullptr) return matches(affix);
  return std::any_of(choices->items.begin(), choices->items.end(), matches);
}

Value JoinText(Context& c, const Value& self, const Args& args) {
  Text out(c.budget);
  std::string_view between;
  const auto list = Iterate(c, args.Need(0, "iterable"));
  for (const Value& item : list->items) {
    if (item.AsString() == nullptr) Raise("join(): expected strings, found {}", item.TypeName());
    c.budget.Charge(1);
    out.Add(between);
    out.Add(*item.AsString());
    between = *self.AsString();
  }
  return out.Take();
}

// ---- dictionaries ----

template <bool keys, bool values>
Value ItemsOf(Context& c, const Value& self, const Args&) {
  std::vector<Value> items;
  for (const auto& [key, value] : self.AsDict()->items) {
    const Value name = keys ? MakeString(c.budget, key) : Value();
    if (keys && values) {
      items.push_back(MakeList(c.budget, {name, value}, ListKind::kTuple));
    } else {
      items.push_back(keys ? name : value);
    }
  }
  return MakeList(c.budget, std::move(items));
}

Value DictGet(Context& c, const Value& self, const Args& args) {
  const std::string* key = args.Need(0, "key").AsString();
  const Value* found = key == nullptr ? nullptr : FindKey(c.budget, self.AsDict()->items, *key);
  const Value* fallback = args.Find(1, "default");
  return found != nullptr ? *found : fallback != nullptr ? *fallback : Value::None();
}

// ---- globals and the loop variable ----

Value Range(Context& c, const Value&, const Args& args) {
  const size_t count = args.positional.size();
  if (count < 1 || count > 3) Raise("range() takes one to three numbers");
  const int64_t start = count == 1 ? 0 : args.Int(0, "start", 0);
  const int64_t stop = args.Int(count == 1 ? 0 : 1, "stop", 0);
  const int64_t step = args.Int(2, "step", 1);
  if (step == 0) Raise("range(): step must not be zero");
  std::vector<Value> items;
  int64_t value = start;
  while (step > 0 ? value < stop : value > stop) {
    if (items.size() == static_cast<size_t>(kMaxRange)) {
      Raise("range() of more than {} numbers", kMaxRange);
    }
    items.emplace_back(value);
    if (__builtin_add_overflow(value, step, &value)) break;
  }
  return MakeList(c.budget, std::move(items));
}

Value MakeNamespace(Context& c, const Value&, const Args& args) {
  auto result = std::make_shared<Namespace>();
  if (!args.positional.empty()) {
    const Dict* initial = args.positional[0].AsDict();
    if (initial == nullptr) Raise("namespace() takes a dictionary or named values");
    for (const auto& [key, value] : initial->items) SetVar(c.budget, *result, key, value);
  }
  for (const auto& [key, value] : args.named) SetVar(c.budget, *result, key, value);
  return result;
}

Value RaiseException(Context& c, const Value&, const Args& args) {
  const std::string message = Str(c.budget, args.Need(0, "message"));
  throw Error(ErrorCode::kFailed,
              message.empty() ? "the chat template refuses these messages" : message);
}

Value StrftimeNow(Context& c, const Value&, const Args& args) {
  char text[1024];
  const std::string format = Str(c.budget, args.Need(0, "format"));
  return std::string(text, std::strftime(text, sizeof text, format.c_str(), &c.now));
}

const Table& StringMethods() {
  static const Table table = {
      {"strip", StripText<Side::kBoth>},
      {"lstrip", StripText<Side::kLeft>},
      {"rstrip", StripText<Side::kRight>},
      {"upper", ChangeTextCase<Case::kUpper>},
      {"lower", ChangeTextCase<Case::kLower>},
      {"capitalize", ChangeTextCase<Case::kCapitalize>},
      {"title", ChangeTextCase<Case::kTitle>},
      {"replace", ReplaceText},
      {"split", SplitText},
      {"splitlines", SplitLines},
      {"startswith", HasAffix<true>},
      {"endswith", HasAffix<false>},
      {"join", JoinText},
  };
  return table;
}

Value Bind(Function function, const Value& self) {
  return std::make_shared<const Callable>(Callable{function, self, nullptr});
}

Value LoopAttr(const Loop& loop, std::string_view name) {
  const int64_t index = static_cast<int64_t>(loop.index);
  const int64_t size = static_cast<int64_t>(loop.items->items.size());
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return size - index;
  if (name == "revindex0") return size - index - 1;
  if (name == "first") return index == 0;
  if (name == "last") return index == size - 1;
  if (name == "length") return size;
  if (name == "depth" || name == "depth0") return int64_t{name == "depth"};  // never recursive
  if (name == "previtem" && index > 0) return loop.items->items[loop.index - 1];
  if (name == "nextitem" && index < size - 1) return loop.items->items[loop.index + 1];
  return Value::Missing(fmt::format("loop.{} is undefined", name));
}

}  // namespace

const Value* Args::Find(size_t position, std::string_view name) const {
  if (position < positional.size()) return &positional[position];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

const Value& Args::Need(size_t position, std::string_view name) const {
  const Value* value = Find(position, name);
  if (value == nullptr) Raise("argument {} is missing", name);
  return *value;
}

int64_t Args::Int(size_t position, std::string_view name, int64_t fallback) const {
  const Value* value = Find(position, name);
  if (value == nullptr) return fallback;
  const auto number = value->AsInt();
  if (!number) Raise("argument {} must be an integer, not {}", name, value->TypeName());
  return *number;
}

bool Args::Bool(size_t position, std::string_view name, bool fallback) const {
  const Value* value = Find(position, name);
  return value == nullptr ? fallback : value->Truth();
}

Args Args::Tail(size_t from) const {
  Args rest = *this;
  const auto begin = rest.positional.begin();
  rest.positional.erase(begin, begin + static_cast<ptrdiff_t>(std::min(from, positional.size())));
  return rest;
}

void SetVar(Budget& budget, Namespace& target, const std::string& name, const Value& value) {
  budget.Charge(name.size() / kBytesPerStep);
  // A namespace inside one would allow a cycle, which nothing would ever free.
  if (value.Depth() >= kMaxValueDepth) {
    Raise("a namespace cannot hold a namespace, a loop or values nested {} deep", kMaxValueDepth);
  }
  target.vars[name] = value;
}

Function FindStringMethod(std::string_view name) {
  const auto it = StringMethods().find(name);
  return it == StringMethods().end() ? nullptr : it->second;
}

Value FindGlobal(const std::string& name) {
  static const Table table = {{"range", Range},
                              {"namespace", MakeNamespace},
                              {"raise_exception", RaiseException},
                              {"strftime_now", StrftimeNow}};
  const auto it = table.find(name);
  if (it == table.end()) return Value::Missing(fmt::format("'{}' is undefined", name));
  return Bind(it->second, Value());
}

Value GetAttr(Context& c, const Value& object, std::string_view name) {
  static const Table dict_methods = {{"items", ItemsOf<true, true>},
                                     {"keys", ItemsOf<true, false>},
                                     {"values", ItemsOf<false, true>},
                                     {"get", DictGet}};
  if (const Undefined* missing = object.AsUndefined()) Raise("{}", missing->Message());
  c.budget.Charge(name.size() / kBytesPerStep);  // it goes into a message
  if (const Dict* dict = object.AsDict()) {
    const auto method = dict_methods.find(name);
    if (method != dict_methods.end()) return Bind(method->second, object);
    if (const Value* value = FindKey(c.budget, dict->items, name)) return *value;
  } else if (object.AsString() != nullptr) {
    if (const Function method = FindStringMethod(name)) return Bind(method, object);
  } else if (const Loop* loop = object.AsLoop()) {
    return LoopAttr(*loop, name);
  } else if (const Namespace* vars = object.AsNamespace()) {
    const auto it = vars->vars.find(name);
    if (it != vars->vars.end()) return it->second;
  }
  return Value::Missing(fmt::format("'{} object' has no attribute '{}'", object.TypeName(), name));
}

Value GetItem(Context& c, const Value& object, const Value& key) {
  if (const std::string* name = key.AsString()) {
    const Dict* dict = object.AsDict();
    const Value* value = dict == nullptr ? nullptr : FindKey(c.budget, dict->items, *name);
    return value != nullptr ? *value : GetAttr(c, object, *name);
  }
  if (const Undefined* missing = object.AsUndefined()) Raise("{}", missing->Message());
  const auto number = key.AsInt();
  if (const List* list = object.AsList(); number && list && list->kind != ListKind::kGenerator) {
    const int64_t size = static_cast<int64_t>(list->items.size());
    const int64_t index = *number < 0 ? *number + size : *number;
    if (index >= 0 && index < size) return list->items[static_cast<size_t>(index)];
  } else if (const std::string* text = object.AsString(); number && text) {
    c.budget.Charge(text->size() / kCharsPerStep);
    const auto chars = Chars(*text);
    const int64_t size = static_cast<int64_t>(chars.size());
    const int64_t index = *number < 0 ? *number + size : *number;
    if (index >= 0 && index < size) return std::string(chars[static_cast<size_t>(index)]);
  }
  return Value::Missing(fmt::format("{} has no such element", object.TypeName()));
}

std::shared_ptr<const List> Iterate(Context& c, const Value& value) {
  if (auto list = value.ListPointer()) {
    c.budget.Charge(list->items.size());
    return list;
  }
  std::vector<Value> items;
  if (const std::string* text = value.AsString()) {
    const auto chars = Chars(*text);
    c.budget.Charge(chars.size());  // before the items are made
    for (const std::string_view one : chars) items.emplace_back(std::string(one));
  } else if (const Dict* dict = value.AsDict()) {
    for (const auto& [key, unused] : dict->items) items.push_back(MakeString(c.budget, key));
  } else if (!value.IsUndefined()) {
    Raise("'{}' object is not iterable", value.TypeName());
  }
  return MakeList(c.budget, std::move(items)).ListPointer();
}

}  // namespace nibble::jinja
