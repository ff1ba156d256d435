// SPDX-License-Identifier: Apache-2.0
// The filters of sequences.
#include <algorithm>
#include <charconv>

#include "text/jinja_builtins.h"
#include "text/jinja_markup.h"
#include "text/jinja_math.h"
#include "text/jinja_text.h"

namespace nibble::jinja {
namespace {

// The value at "a.b.0" (or an index) of an item, as attribute= and selectattr() take it.
// An undefined value on the way becomes `fallback`, if there is one.
Value GetPath(Context& c, Value item, const Value& path, const Value* fallback = nullptr) {
  const auto get = [&](const Value& key) {
    Value found = GetItem(c, item, key);
    return found.IsUndefined() && fallback != nullptr ? *fallback : found;
  };
  if (path.AsString() == nullptr) return get(path);
  std::string_view rest = *path.AsString();
  while (true) {
    const std::string part(rest.substr(0, rest.find('.')));
    int64_t index = 0;
    const char* const end = part.data() + part.size();
    const auto number = std::from_chars(part.data(), end, index);
    const bool is_index = number.ec == std::errc() && number.ptr == end;
    c.budget.Charge(1 + part.size() / kBytesPerStep);
    item = get(is_index ? Value(index) : Value(part));
    if (part.size() == rest.size()) return item;
    rest.remove_prefix(part.size() + 1);
  }
}

Value Join(Context& c, const Value& input, const Args& args) {
  const Value* between = args.Find(0, "d");
  const Value* path = args.Find(1, "attribute");
  const std::string separator = between == nullptr ? "" : Str(c.budget, *between);
  Text out(c.budget);
  bool first = true;
  const auto list = Iterate(c, input);
  for (const Value& item : list->items) {
    if (!std::exchange(first, false)) out.Add(separator);
    out.Add(Str(c.budget, path == nullptr ? item : GetPath(c, item, *path)));
  }
  return out.Take();
}

// A generator of what use(item, items) adds for every item. A false input has no items, as jinja2
// does not walk it: None is no error here.
template <typename F>
Value Generate(Context& c, const Value& input, F&& use) {
  std::vector<Value> items;
  std::string failure;
  try {
    if (input.Truth()) {
      const auto list = Iterate(c, input, &failure);
      for (const Value& item : list->items) use(item, items);
    }
  } catch (const TemplateError& error) {
    failure = error.what();
  }
  return MakeGenerator(c.budget, std::move(items), std::move(failure));
}

Value Map(Context& c, const Value& input, const Args& args) {
  const Value* path = args.Find(SIZE_MAX, "attribute");
  const Value* fallback = args.Find(SIZE_MAX, "default");
  const Args rest = args.Tail(1);
  return Generate(c, input, [&](const Value& item, std::vector<Value>& items) {
    if (path != nullptr) {
      items.push_back(GetPath(c, item, *path, fallback));
    } else {
      items.push_back(ApplyFilter(c, Str(c.budget, args.Need(0, "filter")), item, rest));
    }
  });
}

template <bool keep, bool by_attribute>
Value Select(Context& c, const Value& input, const Args& args) {
  const Args rest = args.Tail(by_attribute ? 2 : 1);
  const Value* test = args.Find(by_attribute ? 1 : 0, "test");
  return Generate(c, input, [&](const Value& item, std::vector<Value>& items) {
    const Value value = by_attribute ? GetPath(c, item, args.Need(0, "attribute")) : item;
    const bool accepted =
        test == nullptr ? value.Truth() : ApplyTest(c, Str(c.budget, *test), value, rest);
    if (accepted == keep) items.push_back(item);
  });
}

Value Items(Context& c, const Value& input, const Args& args) {
  if (input.IsUndefined()) return MakeList(c.budget, {}, ListKind::kGenerator);
  if (input.AsDict() == nullptr) Raise("items: '{}' is not a mapping", input.TypeName());
  const Value view = GetAttr(c, input, "items").AsCallable()->function(c, input, args);
  return MakeList(c.budget, view.AsList()->items, ListKind::kGenerator);
}

template <bool from_end>
Value Edge(Context& c, const Value& input, const Args&) {
  const List* given = input.AsList();
  if (given != nullptr && given->kind == ListKind::kGenerator) {
    if (from_end) Raise("a generator has no last item");
    if (given->walked < given->items.size()) return given->items[given->walked++];
  }
  const auto list = Iterate(c, input);
  if (list->items.empty()) return Value::Missing("an empty sequence has no first or last item");
  return from_end ? list->items.back() : list->items.front();
}

Value Reverse(Context& c, const Value& input, const Args&) {
  const auto list = Iterate(c, input);
  std::vector<Value> items(list->items.rbegin(), list->items.rend());
  if (input.AsString() == nullptr) {
    const bool copied = input.AsList() && input.AsList()->kind == ListKind::kGenerator;
    return MakeList(c.budget, std::move(items), copied ? ListKind::kList : ListKind::kGenerator);
  }
  Text out(c.budget);
  for (const Value& item : items) out.Add(*item.AsString());
  return MarkupAs(c.budget, input, out.Take());
}

// The keys by which sort, unique, min, max and groupby compare items.
class Key {
 public:
  Key(Context& c, const Value* attribute, bool case_sensitive, const Value* fallback = nullptr)
      : c_(c), attribute_(attribute), fallback_(fallback), case_sensitive_(case_sensitive) {
    if (attribute_ != nullptr && attribute_->IsNone()) attribute_ = nullptr;
  }

  Value Of(const Value& item) const {
    return Folded(attribute_ == nullptr ? item : GetPath(c_, item, *attribute_, fallback_));
  }
  // sort takes several attributes: "a,b".
  Value OfAll(const Value& item) const {
    const std::string* names = attribute_ == nullptr ? nullptr : attribute_->AsString();
    if (names == nullptr || names->find(',') == std::string::npos) return Of(item);
    std::vector<Value> keys;
    for (size_t at = 0, end; at <= names->size(); at = end + 1) {
      end = std::min(names->find(',', at), names->size());
      keys.push_back(Folded(GetPath(c_, item, names->substr(at, end - at))));
    }
    return MakeList(c_.budget, std::move(keys));
  }

 private:
  Value Folded(const Value& key) const {
    if (case_sensitive_ || key.AsString() == nullptr) return key;
    return StringMethods().at("lower")(c_, key, {});
  }

  Context& c_;
  const Value *attribute_, *fallback_;
  bool case_sensitive_;
};

using Keyed = std::vector<std::pair<Value, Value>>;  // key, item

template <typename F>
Keyed SortedBy(Context& c, const Value& input, bool reverse, F&& key) {
  Keyed keyed;
  const auto list = Iterate(c, input);
  for (const Value& item : list->items) keyed.emplace_back(key(item), item);
  StableSort(keyed, [&](const auto& a, const auto& b) {
    return reverse ? Less(c.budget, b.first, a.first) : Less(c.budget, a.first, b.first);
  });
  return keyed;
}

Value ItemsOf(Context& c, Keyed keyed) {
  std::vector<Value> items;
  for (auto& [key, item] : keyed) items.push_back(std::move(item));
  return MakeList(c.budget, std::move(items));
}

Value Sort(Context& c, const Value& input, const Args& args) {
  const Key key(c, args.Find(2, "attribute"), args.Bool(1, "case_sensitive", false));
  return ItemsOf(c, SortedBy(c, input, args.Bool(0, "reverse", false),
                             [&](const Value& item) { return key.OfAll(item); }));
}

Value DictSort(Context& c, const Value& input, const Args& args) {
  if (const Undefined* missing = input.AsUndefined()) Raise("{}", missing->Message());
  const Value* by = args.Find(1, "by");
  const std::string field = by == nullptr ? "key" : Str(c.budget, *by);
  if (field != "key" && field != "value") Raise("dictsort: by must be 'key' or 'value'");
  const Value position = int64_t{field == "value"};
  const Key key(c, &position, args.Bool(0, "case_sensitive", false));
  return ItemsOf(c, SortedBy(c, Items(c, input, {}), args.Bool(2, "reverse", false),
                             [&](const Value& item) { return key.Of(item); }));
}

Value Unique(Context& c, const Value& input, const Args& args) {
  const Key key(c, args.Find(1, "attribute"), args.Bool(0, "case_sensitive", false));
  DictItems seen;
  std::vector<Value> items;
  const auto list = Iterate(c, input);
  for (const Value& item : list->items) {
    SetKey(c.budget, seen, key.Of(item), Value::None());
    if (seen.size() > items.size()) items.push_back(item);
  }
  return MakeList(c.budget, std::move(items), ListKind::kGenerator);
}

template <bool greatest>
Value Extreme(Context& c, const Value& input, const Args& args) {
  const Key key(c, args.Find(1, "attribute"), args.Bool(0, "case_sensitive", false));
  const auto list = Iterate(c, input);
  if (list->items.empty()) return Value::Missing("no aggregated item, the sequence was empty");
  Value best = list->items[0], best_key = key.Of(best);
  for (size_t i = 1; i < list->items.size(); ++i) {
    Value other = key.Of(list->items[i]);
    if (greatest ? Less(c.budget, best_key, other) : Less(c.budget, other, best_key)) {
      best = list->items[i];
      best_key = std::move(other);
    }
  }
  return best;
}

Value GroupBy(Context& c, const Value& input, const Args& args) {
  const Value& path = args.Need(0, "attribute");
  const Value* fallback = args.Find(1, "default");
  if (fallback != nullptr && fallback->IsNone()) fallback = nullptr;
  const Key key(c, &path, args.Bool(2, "case_sensitive", false), fallback);
  const Keyed sorted = SortedBy(c, input, false, [&](const Value& item) { return key.Of(item); });
  std::vector<Value> groups;
  for (size_t i = 0; i < sorted.size();) {
    std::vector<Value> items;
    const size_t first = i;
    for (; i < sorted.size() && Equal(c.budget, sorted[i].first, sorted[first].first); ++i) {
      items.push_back(sorted[i].second);
    }
    if (items.empty()) items.push_back(sorted[i++].second);  // its key is not even equal to itself
    // The key as it stands in the first item, not in lower case.
    Value name = GetPath(c, items[0], path, fallback);
    groups.push_back(MakeList(c.budget, {std::move(name), MakeList(c.budget, std::move(items))},
                              ListKind::kGroup));
  }
  return MakeList(c.budget, std::move(groups));
}

Value Sum(Context& c, const Value& input, const Args& args) {
  const Value* attribute = args.Find(0, "attribute");
  if (attribute != nullptr && attribute->IsNone()) attribute = nullptr;
  const Value* start = args.Find(1, "start");
  Value sum = start == nullptr ? Value(int64_t{0}) : *start;
  const auto list = Iterate(c, input);
  for (const Value& item : list->items) {
    sum = Arithmetic(c.budget, "+", sum, attribute ? GetPath(c, item, *attribute) : item);
  }
  return sum;
}

// The count that a filter is given, 1 or more, charged before the filter makes so many values.
size_t Charged(Context& c, const Args& args, std::string_view name) {
  const int64_t count = args.Int(0, name, 0);
  if (count < 1) Raise("{} must be 1 or more", name);
  c.budget.Charge(static_cast<size_t>(count));
  return static_cast<size_t>(count);
}

Value Batch(Context& c, const Value& input, const Args& args) {
  const size_t count = Charged(c, args, "linecount");
  const Value* fill = args.Find(1, "fill_with");
  const auto list = Iterate(c, input);
  std::vector<Value> batches;
  for (size_t at = 0; at < list->items.size(); at += count) {
    const auto begin = list->items.begin() + static_cast<ptrdiff_t>(at);
    const size_t size = std::min(count, list->items.size() - at);
    std::vector<Value> batch(begin, begin + static_cast<ptrdiff_t>(size));
    if (fill != nullptr && !fill->IsNone()) batch.resize(count, *fill);
    batches.push_back(MakeList(c.budget, std::move(batch)));
  }
  return MakeList(c.budget, std::move(batches), ListKind::kGenerator);
}

Value SliceInto(Context& c, const Value& input, const Args& args) {
  const size_t count = Charged(c, args, "slices");
  const Value* fill = args.Find(1, "fill_with");
  const auto list = Iterate(c, input);
  const size_t each = list->items.size() / count, longer = list->items.size() % count;
  std::vector<Value> slices;
  auto at = list->items.begin();
  for (size_t i = 0; i < count; ++i) {
    const auto end = at + static_cast<ptrdiff_t>(each + (i < longer));
    std::vector<Value> slice(at, end);
    if (fill != nullptr && !fill->IsNone() && i >= longer) slice.push_back(*fill);
    slices.push_back(MakeList(c.budget, std::move(slice)));
    at = end;
  }
  return MakeList(c.budget, std::move(slices), ListKind::kGenerator);
}

Value ToList(Context& c, const Value& input, const Args&) {
  return MakeList(c.budget, Iterate(c, input)->items);
}

}  // namespace

void AddSequenceFilters(Table& filters) {
  filters.insert({{"join", Join},
                  {"map", Map},
                  {"select", Select<true, false>},
                  {"reject", Select<false, false>},
                  {"selectattr", Select<true, true>},
                  {"rejectattr", Select<false, true>},
                  {"items", Items},
                  {"first", Edge<false>},
                  {"last", Edge<true>},
                  {"reverse", Reverse},
                  {"sort", Sort},
                  {"dictsort", DictSort},
                  {"unique", Unique},
                  {"min", Extreme<false>},
                  {"max", Extreme<true>},
                  {"groupby", GroupBy},
                  {"sum", Sum},
                  {"batch", Batch},
                  {"slice", SliceInto},
                  {"list", ToList}});
}

}  // namespace nibble::jinja
