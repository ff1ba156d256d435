// SPDX-License-Identifier: Apache-2.0
// Arguments and attributes, and the methods of lists, dictionaries, numbers and loops.
#include "text/jinja_builtins.h"

#include <algorithm>
#include <cmath>

#include "text/jinja_parser.h"
#include "text/jinja_text.h"

namespace nibble::jinja {
namespace {

// ---- lists ----

Value IndexOfItem(Context& c, const Value& self, const Args& args) {
  const Value& wanted = args.Need(0, "value");
  const auto& items = self.AsList()->items;
  const auto size = static_cast<int64_t>(items.size());
  const auto clamp = [&](int64_t at) { return at < 0 ? std::max<int64_t>(at + size, 0) : at; };
  const int64_t end = std::min(clamp(args.Int(2, "stop", size)), size);
  for (int64_t i = clamp(args.Int(1, "start", 0)); i < end; ++i) {
    if (Equal(c.budget, items[static_cast<size_t>(i)], wanted)) return i;
  }
  Raise("index(): the value is not in the {}", self.TypeName());
}

Value CountItem(Context& c, const Value& self, const Args& args) {
  const Value& wanted = args.Need(0, "value");
  const auto& items = self.AsList()->items;
  return static_cast<int64_t>(std::count_if(items.begin(), items.end(), [&](const Value& item) {
    return Equal(c.budget, item, wanted);
  }));
}

Value CopyOf(Context&, const Value& self, const Args&) {
  return self;  // nothing can change it
}

// ---- dictionaries ----

template <ListKind kind>
Value View(Context& c, const Value& self, const Args&) {
  std::vector<Value> items;
  for (const auto& [key, value] : self.AsDict()->items) {
    if (kind != ListKind::kValues) ChargeText(c.budget, key);
    if (kind == ListKind::kItems) {
      items.push_back(MakeList(c.budget, {key, value}, ListKind::kTuple));
    } else {
      items.push_back(kind == ListKind::kKeys ? key : value);
    }
  }
  return MakeList(c.budget, std::move(items), kind);
}

Value DictGet(Context& c, const Value& self, const Args& args) {
  const Value* found = FindKey(c.budget, self.AsDict()->items, args.Need(0, "key"));
  const Value* fallback = args.Find(1, "default");
  return found != nullptr ? *found : fallback != nullptr ? *fallback : Value::None();
}

// ---- numbers ----

Value BitLength(Context&, const Value& self, const Args&) {
  const auto integer = self.AsInt();
  if (!integer) Raise("bit_length() of an integer of more than 64 bits");
  uint64_t size =
      *integer < 0 ? 0 - static_cast<uint64_t>(*integer) : static_cast<uint64_t>(*integer);
  int64_t bits = 0;
  for (; size != 0; size >>= 1) ++bits;
  return bits;
}

Value IsWhole(Context&, const Value& self, const Args&) {
  return self.IsInteger() || std::floor(*self.AsNumber()) == *self.AsNumber();
}

// ---- the loop variable, cyclers and joiners ----

Value LoopCycle(Context&, const Value& self, const Args& args) {
  if (args.positional.empty()) Raise("loop.cycle() needs values");
  return args.positional[self.AsLoop()->index % args.positional.size()];
}

Value LoopChanged(Context& c, const Value& self, const Args& args) {
  // A list refuses loops and namespaces, which might hold this loop.
  const Value now = MakeList(c.budget, args.positional, ListKind::kTuple);
  Value& before = *self.AsLoop()->changed;
  if (Equal(c.budget, before, now)) return false;
  before = now;
  return true;
}

Value LoopAttr(const Value& self, std::string_view name) {
  const Loop& loop = *self.AsLoop();
  const int64_t index = static_cast<int64_t>(loop.index);
  const int64_t size = static_cast<int64_t>(loop.items->items.size());
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return size - index;
  if (name == "revindex0") return size - index - 1;
  if (name == "first") return index == 0;
  if (name == "last") return index == size - 1;
  if (name == "length") return size;
  if (name == "depth") return int64_t{loop.depth};
  if (name == "depth0") return int64_t{loop.depth - 1};
  if (name == "previtem" && index > 0) return loop.items->items[loop.index - 1];
  if (name == "nextitem" && index < size - 1) return loop.items->items[loop.index + 1];
  if (name == "cycle") return Bind(LoopCycle, self);
  if (name == "changed") return Bind(LoopChanged, self);
  return Value::Missing(fmt::format("loop.{} is undefined", name));
}

Value CyclerCurrent(const Namespace& cycler) {
  const auto& items = cycler.vars.at("items").AsList()->items;
  return items[static_cast<size_t>(*cycler.vars.at("position").AsInt())];
}

template <bool resets>
Value CyclerMove(Context&, const Value& self, const Args&) {
  Namespace& cycler = *self.AsNamespace();
  const Value current = CyclerCurrent(cycler);
  Value& position = cycler.vars["position"];
  const auto size = static_cast<int64_t>(cycler.vars["items"].AsList()->items.size());
  position = resets ? int64_t{0} : (*position.AsInt() + 1) % size;
  return resets ? Value::None() : current;
}

Value StateAttr(const Value& self, std::string_view name) {
  const Namespace& state = *self.AsNamespace();
  if (state.kind == StateKind::kCycler) {
    if (name == "next") return Bind(CyclerMove<false>, self);
    if (name == "reset") return Bind(CyclerMove<true>, self);
    if (name == "current") return CyclerCurrent(state);
  } else if (state.kind == StateKind::kNamespace) {
    const auto it = state.vars.find(name);
    if (it != state.vars.end()) return it->second;
  }
  return Value::Missing(fmt::format("'{} object' has no attribute '{}'", self.TypeName(), name));
}

// The attributes of a macro.
Value MacroAttr(Context& c, const Node& macro, std::string_view name) {
  const auto uses = [&](MacroUse use) { return (macro.uses & static_cast<int>(use)) != 0; };
  if (name == "name") return macro.text.empty() ? Value::None() : Value(macro.text);
  if (name == "caller") return uses(MacroUse::kCaller);
  if (name == "catch_kwargs") return uses(MacroUse::kKwargs);
  if (name == "catch_varargs") return uses(MacroUse::kVarargs);
  std::vector<Value> names;
  for (size_t i = 1; i < macro.kids.size(); ++i) names.emplace_back(macro.kids[i]->text);
  if (name == "arguments") return MakeList(c.budget, std::move(names), ListKind::kTuple);
  return Value::Missing(fmt::format("a macro has no attribute '{}'", name));
}

// The method of a value of this type, nullptr if there is none.
Function FindMethod(const Value& object, std::string_view name) {
  static const Table none, lists = {{"index", IndexOfItem}, {"count", CountItem}},
                           dicts = {{"items", View<ListKind::kItems>},
                                    {"keys", View<ListKind::kKeys>},
                                    {"values", View<ListKind::kValues>},
                                    {"copy", CopyOf},
                                    {"get", DictGet}},
                           integers = {{"bit_length", BitLength}, {"is_integer", IsWhole}},
                           floats = {{"is_integer", IsWhole}};
  const List* list = object.AsList();
  const Table& table = object.AsString() != nullptr          ? StringMethods()
                       : object.AsDict() != nullptr          ? dicts
                       : object.IsInteger()                  ? integers
                       : object.AsDouble() != nullptr        ? floats
                       : list != nullptr && list->HasIndex() ? lists
                                                             : none;
  const auto it = table.find(name);
  if (it != table.end()) return it->second;
  const bool copies = list != nullptr && list->kind == ListKind::kList && name == "copy";
  return copies ? CopyOf : nullptr;
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

Value Bind(Function function, const Value& self) {
  return std::make_shared<const Callable>(Callable{function, self, nullptr, nullptr});
}

Value GetAttr(Context& c, const Value& object, std::string_view name) {
  if (const Undefined* missing = object.AsUndefined()) Raise("{}", missing->Message());
  c.budget.Charge(name.size() / kBytesPerStep);  // it goes into a message
  if (const Function method = FindMethod(object, name)) return Bind(method, object);
  if (object.AsLoop() != nullptr) return LoopAttr(object, name);
  if (object.AsNamespace() != nullptr) return StateAttr(object, name);
  if (const Callable* callable = object.AsCallable(); callable && callable->macro) {
    return MacroAttr(c, *callable->macro, name);
  }
  if (const Dict* dict = object.AsDict()) {
    if (const Value* value = FindKey(c.budget, dict->items, name)) return *value;
  }
  const List* list = object.AsList();
  if (list != nullptr && list->kind == ListKind::kGroup) {
    if (name == "grouper") return list->items[0];
    if (name == "list") return list->items[1];
  }
  if (name == "real" && object.AsNumber()) return object.AsBool() ? *object.AsInt() : object;
  return Value::Missing(fmt::format("'{} object' has no attribute '{}'", object.TypeName(), name));
}

}  // namespace nibble::jinja
