// SPDX-License-Identifier: Apache-2.0
// Arrays of schemas.
#include <algorithm>

#include "grammar/json_schema.h"
#include "grammar/json_text.h"

namespace nibble::grammar {
namespace {

constexpr int64_t kMaxCountedItems = 2000;  // items times those that "contains" counts

}  // namespace

// All values that a schema allows, if it lists them.
std::optional<std::vector<Json>> SchemaCompiler::FiniteValues(const Json& schema, Where at) {
  Constraints c = Read(schema, at);
  if (!c.choices.empty()) {
    const std::vector<Json> choice = c.choices.front();
    c.choices.clear();
    if (c != Constraints()) return std::nullopt;
    std::vector<Json> all;
    for (const Json& one : choice) {
      const auto values = FiniteValues(one, at);
      if (!values) return std::nullopt;
      for (const Json& value : *values) {
        if (std::ranges::find(all, value) == all.end()) all.push_back(value);
      }
    }
    return all;
  }
  if (!c.values && (c.types & ~(kNull | kBoolean)) == 0)
    c.values = std::vector<Json>{nullptr, false, true};
  if (!c.values) return std::nullopt;
  return Admitted(c, at);
}

// Some of the values that the items may be, in the order of the schema.
Expr SchemaCompiler::UniqueArray(const Constraints::Arrays& a, Where at) {
  const auto values = FiniteValues(*a.items, Below(at, "items"));
  std::vector<Member> members;
  for (const Json& value : *values) {
    if (std::ranges::find(*values, value) ==
        values->begin() + static_cast<ptrdiff_t>(members.size())) {
      members.push_back({JsonConstant(builder_, value), false});
    }
  }
  return JsonBrackets(builder_, '[', ']', Members(members, nullptr, a.min, a.max, at));
}

// Items of which some number satisfies a schema of their own. A rule is what may stand behind n
// items with h of these, or as many as matter and more.
Expr SchemaCompiler::ContainingArray(const Constraints::Arrays& a, Where at) {
  const Constraints::Contained& contained = a.contained[0];
  const Json items = a.items.value_or(true);
  const bool bounded = contained.max != kUnbounded;
  const Expr hit = Shared(Value(Both(items, contained.schema), Below(at, "contains")));
  const Json other = bounded ? Both(items, {{"not", contained.schema}}) : items;
  const Expr miss = Shared(Value(other, Below(at, "items")));
  const int64_t max_items = std::max<int64_t>(a.max == kUnbounded ? a.min : a.max, 1);
  const int64_t max_hits = bounded ? contained.max : contained.min;
  std::vector<int32_t> rules;
  for (int64_t i = 0; i < (max_items + 1) * (max_hits + 1); ++i) {
    rules.push_back(builder_->AddRule(fmt::format("schema {} part {}", number_, parts_++)));
  }
  const auto rule = [&](int64_t n, int64_t h) {
    const int64_t items_so_far = std::min(n, max_items), hits = std::min(h, max_hits);
    return rules[static_cast<size_t>(items_so_far * (max_hits + 1) + hits)];
  };
  for (int64_t n = 0; n <= max_items; ++n) {
    for (int64_t h = 0; h <= max_hits; ++h) {
      std::vector<Expr> all;
      const Expr comma = n == 0 ? Literal("") : JsonComma(builder_);
      if (n >= a.min && h >= contained.min) all.push_back(Literal(""));
      if (a.max == kUnbounded || n < a.max) {
        if (!bounded || h < contained.max) {
          all.push_back(Sequence({comma, hit, Reference(rule(n + 1, h + 1))}));
        }
        all.push_back(Sequence({comma, miss, Reference(rule(n + 1, h))}));
      }
      builder_->SetRule(rule(n, h), Choice(std::move(all)));
    }
  }
  return JsonBrackets(builder_, '[', ']', Reference(rule(0, 0)));
}

Expr SchemaCompiler::Array(const Constraints& c, Where at) {
  Constraints::Arrays a = c.arrays;
  const Json items = a.items.value_or(true);
  const auto fixed = static_cast<int64_t>(a.firsts.size());
  if (items == false) a.max = a.max == kUnbounded ? fixed : std::min(a.max, fixed);
  if (a.max != kUnbounded && a.max < a.min) return Choice({});
  if (a.unique && a.max != 0 && a.max != 1) {
    const bool listed =
        fixed == 0 && a.contained.empty() && a.items && FiniteValues(*a.items, at).has_value();
    if (listed) return UniqueArray(a, at);
    LeaveOut(at, "\"uniqueItems\" of items that are not listed is not supported");
  }
  std::erase_if(a.contained, [](const Constraints::Contained& contained) {
    return contained.min == 0 && contained.max == kUnbounded;
  });
  if (!a.contained.empty()) {
    const Constraints::Contained& one = a.contained[0];
    const int64_t hits = (one.max == kUnbounded ? one.min : one.max) + 1;
    const int64_t max_items = (a.max == kUnbounded ? a.min : a.max) + 2;
    const bool fits = hits <= kMaxCountedItems && max_items <= kMaxCountedItems / hits;
    const bool can_be_counted = one.max == kUnbounded || Held(at, [&] { Negated(one.schema, at); });
    if (fixed == 0 && a.contained.size() == 1 && fits && can_be_counted) {
      return ContainingArray(a, at);
    }
    LeaveOut(at, "\"contains\" beside prefixItems, another one or large counts is not supported");
  }
  Expr inside = Literal("");
  if (a.max == kUnbounded || a.max > fixed) {
    const Expr item = Shared(Value(items, Below(at, "items")));
    const int64_t more = a.max == kUnbounded ? kUnbounded : a.max - fixed;
    inside = fixed == 0 ? JsonList(builder_, item, a.min, a.max)
                        : Repeat(Sequence({JsonComma(builder_), item}),
                                 std::max<int64_t>(a.min - fixed, 0), more);
  }
  for (int64_t i = a.max == kUnbounded ? fixed : std::min(fixed, a.max); i-- > 0;) {
    const std::string place = Below(at, fmt::format("prefixItems.{}", i));
    Expr value = Value(a.firsts[static_cast<size_t>(i)], place);
    if (i > 0) value = Sequence({JsonComma(builder_), std::move(value)});
    inside = Sequence({std::move(value), std::move(inside)});
    if (i >= a.min) inside = Optional(std::move(inside));
  }
  return JsonBrackets(builder_, '[', ']', std::move(inside));
}

}  // namespace nibble::grammar
