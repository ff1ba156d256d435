// SPDX-License-Identifier: Apache-2.0
// The global functions.
#include "base/error.h"
#include "text/jinja_builtins.h"

namespace nibble::jinja {
namespace {

Value Range(Context& c, const Value&, const Args& args) {
  const size_t count = args.positional.size();
  if (count < 1 || count > 3) Raise("range() takes one to three numbers");
  const int64_t start = count == 1 ? 0 : args.Int(0, "start", 0);
  const int64_t stop = args.Int(count == 1 ? 0 : 1, "stop", 0);
  return MakeRange(c.budget, start, stop, args.Int(2, "step", 1));
}

Value MakeDictionary(Context& c, const Value&, const Args& args) {
  DictItems items;
  if (!args.positional.empty() && args.positional[0].AsDict() != nullptr) {
    for (const auto& [key, value] : args.positional[0].AsDict()->items) {
      SetKey(c.budget, items, key, value);
    }
  } else if (!args.positional.empty()) {
    const auto pairs = Iterate(c, args.positional[0]);
    for (const Value& pair : pairs->items) {
      const auto list = Iterate(c, pair);
      if (list->items.size() != 2) Raise("dict() takes pairs of a key and a value");
      SetKey(c.budget, items, list->items[0], list->items[1]);
    }
  }
  for (const auto& [key, value] : args.named) SetKey(c.budget, items, Value(key), value);
  return MakeDict(c.budget, std::move(items));
}

Value MakeNamespace(Context& c, const Value& self, const Args& args) {
  auto result = std::make_shared<Namespace>();
  const Value values = MakeDictionary(c, self, args);
  for (const auto& [key, value] : values.AsDict()->items) {
    if (key.AsString() == nullptr) Raise("namespace(): names must be strings");
    SetVar(c.budget, *result, *key.AsString(), value);
  }
  return result;
}

Value MakeCycler(Context& c, const Value&, const Args& args) {
  if (args.positional.empty()) Raise("cycler() needs values");
  auto result = std::make_shared<Namespace>();
  result->kind = StateKind::kCycler;
  result->vars["items"] = MakeList(c.budget, args.positional, ListKind::kTuple);
  result->vars["position"] = int64_t{0};
  return result;
}

Value MakeJoiner(Context& c, const Value&, const Args& args) {
  auto result = std::make_shared<Namespace>();
  result->kind = StateKind::kJoiner;
  const Value* separator = args.Find(0, "sep");
  result->vars["sep"] = separator == nullptr ? ", " : Str(c.budget, *separator);
  result->vars["used"] = false;
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

}  // namespace

void SetVar(Budget& budget, Namespace& target, const std::string& name, const Value& value) {
  budget.Charge(name.size() / kBytesPerStep);
  // A namespace inside one would allow a cycle, which nothing would ever free.
  if (value.Depth() >= kMaxValueDepth) {
    Raise("a namespace cannot hold a namespace, a loop or values nested {} deep", kMaxValueDepth);
  }
  target.vars[name] = value;
}

Value FindGlobal(const std::string& name) {
  static const Table table = {{"range", Range},
                              {"dict", MakeDictionary},
                              {"namespace", MakeNamespace},
                              {"cycler", MakeCycler},
                              {"joiner", MakeJoiner},
                              {"raise_exception", RaiseException},
                              {"strftime_now", StrftimeNow}};
  const auto it = table.find(name);
  if (it == table.end()) return Value::Missing(fmt::format("'{}' is undefined", name));
  return Bind(it->second, Value());
}

}  // namespace nibble::jinja
