// SPDX-License-Identifier: Apache-2.0
// Objects of schemas.
#include <algorithm>
#include <map>

#include "base/utf8.h"
#include "grammar/json_schema.h"
#include "grammar/json_text.h"
#include "grammar/regex_pattern.h"

namespace nibble::grammar {
namespace {

// Names that agree with a declared one in so many characters are not offered as further ones.
constexpr size_t kMaxSharedName = 100;
constexpr size_t kNameWork = 1024;  // bytes of expressions for a character of a name
constexpr size_t kMaxNamePatterns = 6;
constexpr size_t kMaxCountedMembers = 20'000;  // members times how many may be there

using NamesByChar = std::map<uint32_t, std::vector<std::string_view>>;

// The rest of a string, to its quote, that makes none of `rests`; all of them begin here.
class OtherNames {
 public:
  explicit OtherNames(GrammarBuilder* builder) {
    const Expr quote = Literal("\"");
    end_ = RuleOf(builder, "JSON string end",
                  Sequence({Repeat(JsonCharacter(builder), 0, kUnbounded), quote}));
    beyond_ascii_ = RuleOf(builder, "JSON string end beyond ASCII",
                           Sequence({CharClass({{0x80, 0x10FFFF}}), end_}));
  }

  Expr Rest(const std::vector<std::string_view>& rests, size_t depth) const {
    if (depth == kMaxSharedName) return Choice({});
    NamesByChar next;
    CharRanges shared = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
    bool ends = false, ascii = true;
    for (const std::string_view rest : rests) {
      ends = ends || rest.empty();
      if (rest.empty()) continue;
      const size_t size = Utf8Length(rest[0]);
      const uint32_t c = CodePoint(rest.substr(0, size));
      ascii = ascii && c < 0x80;
      next[c].push_back(rest.substr(size));
      shared.push_back({c, c});
    }
    std::vector<Expr> all;
    if (!ends) all.push_back(Literal("\""));
    if (ascii) {
      shared.push_back({0x80, 0x10FFFF});
      all.push_back(beyond_ascii_);
    }
    all.push_back(Sequence({CharClass(Complement(std::move(shared))), end_}));
    for (const auto& [c, inner] : next) {
      std::string text;
      AppendUtf8(c, &text);
      const std::string quoted = JsonDump(text);
      all.push_back(
          Sequence({Literal(quoted.substr(1, quoted.size() - 2)), Rest(inner, depth + 1)}));
    }
    return Choice(std::move(all));
  }

 private:
  static Expr RuleOf(GrammarBuilder* builder, const char* name, Expr body) {
    const auto known = builder->FindRule(name);
    return Reference(known ? *known : builder->AddRule(name, std::move(body)));
  }
  Expr end_, beyond_ascii_;
};

}  // namespace

Expr SchemaCompiler::FurtherName(const std::vector<std::string>& declared, Where at) {
  for (const std::string& name : declared) {
    Charge(std::min(name.size(), kMaxSharedName) * kNameWork, at);
  }
  if (declared.empty()) return JsonString(builder_);
  const std::vector<std::string_view> rests(declared.begin(), declared.end());
  return Sequence({Literal("\""), OtherNames(builder_).Rest(rests, 0)});
}

// The texts for which a schema of names holds.
std::optional<TextSet> SchemaCompiler::NameSet(const Json& schema, Where at) {
  const Constraints c = Read(schema, at);
  if (c == Constraints()) return std::nullopt;
  if (!c.choices.empty()) {
    LeaveOut(at, "a choice of schemas for propertyNames is not supported");
    return std::nullopt;
  }
  std::vector<Expr> names;
  if (c.values) {
    for (const Json& value : Admitted(c, at)) {
      if (value.is_string()) names.push_back(Literal(value.get<std::string>()));
    }
  }
  if (c.values || (c.types & kString) == 0) return TextSet::Of(Choice(std::move(names)));
  return StringSet(c, at);
}

// patternProperties, but for patterns that are left out.
std::vector<SchemaCompiler::NamePattern> SchemaCompiler::NamePatterns(const Constraints::Objects& o,
                                                                      Where at) {
  std::vector<NamePattern> all;
  const std::string place = Below(at, "patternProperties");
  for (const auto& item : o.patterns.items()) {
    Held(place, [&] {
      const auto names = [&] { return PatternSet(item.key(), "pattern", true); };
      all.push_back({Paid(place, names), item.value()});
    });
  }
  return all;
}

// A member whose name is not declared; its value has the schemas of all patterns that match the
// name, or else that of additionalProperties. nullptr if there is no such member.
Expr SchemaCompiler::FurtherMember(const Constraints::Objects& o,
                                   const std::vector<NamePattern>& patterns,
                                   const std::optional<TextSet>& allowed,
                                   const std::vector<std::string>& declared, Where at) {
  const Json others = o.others.value_or(true);
  const std::string place = Below(at, "additionalProperties");
  if (patterns.empty() && !allowed) {
    if (others == false) return nullptr;
    Expr value = Value(others, place);
    return Shared(Sequence({FurtherName(declared, at), JsonColon(), std::move(value)}));
  }
  struct Names {
    TextSet set;
    Json schema;
    bool matched;
  };
  std::vector<Expr> literals;
  for (const std::string& name : declared) literals.push_back(Literal(name));
  TextSet free = TextSet::All().Without(TextSet::Of(Choice(std::move(literals))));
  if (allowed) free = free.And(*allowed);
  std::vector<Names> all = {{std::move(free), true, false}};
  for (const NamePattern& pattern : patterns) {
    Held(Below(at, "patternProperties"), [&] {
      std::vector<Names> cut;
      for (const Names& names : all) {
        const auto in = [&] { return names.set.And(pattern.names); };
        const auto out = [&] { return names.set.Without(pattern.names); };
        cut.push_back({Paid(at, in), Both(names.schema, pattern.schema), true});
        cut.push_back({Paid(at, out), names.schema, names.matched});
      }
      std::erase_if(cut, [](const Names& names) { return names.set.empty(); });
      all = std::move(cut);
    });
  }
  std::vector<Expr> members;
  for (const Names& names : all) {
    const Json& schema = names.matched ? names.schema : others;
    if (schema == false) continue;
    const Expr quote = Literal("\"");
    members.push_back(
        Sequence({quote, Written(names.set), quote, JsonColon(),
                  Value(schema, names.matched ? Below(at, "patternProperties") : place)}));
  }
  return members.empty() ? nullptr : Shared(Choice(std::move(members)));
}

Expr SchemaCompiler::Object(const Constraints& c, Where at) {
  const Constraints::Objects& o = c.objects;
  if (o.properties.size() + o.required.size() > GrammarLimits::kProperties) {
    Refuse(at, fmt::format("over {} properties", GrammarLimits::kProperties));
  }
  if (o.patterns.size() > kMaxNamePatterns) {
    Refuse(at, fmt::format("over {} patterns in patternProperties", kMaxNamePatterns));
  }
  const std::set<std::string> needed(o.required.begin(), o.required.end());
  std::optional<TextSet> allowed;
  if (o.names) allowed = NameSet(*o.names, Below(at, "propertyNames"));
  const std::vector<NamePattern> patterns = NamePatterns(o, at);
  std::vector<std::string> names;
  std::vector<Member> members;
  bool possible = true;
  const auto add = [&](const std::string& name) {
    const bool declared = o.properties.contains(name);
    Json schema = declared ? o.properties.at(name) : Json(true);
    bool matched = declared;
    for (const NamePattern& pattern : patterns) {
      if (!pattern.names.Contains(name)) continue;
      schema = Both(schema, pattern.schema);
      matched = true;
    }
    if (!matched) schema = o.others.value_or(true);
    names.push_back(name);
    if (schema == false || (allowed && !allowed->Contains(name))) {
      possible = possible && !needed.contains(name);
      return;
    }
    const std::string place = Below(at, declared ? "properties." + name : "additionalProperties");
    members.push_back({Sequence({Literal(JsonDump(name)), JsonColon(), Value(schema, place)}),
                       needed.contains(name)});
  };
  for (const auto& item : o.properties.items()) add(item.key());
  for (const std::string& name : needed) {
    if (!o.properties.contains(name)) add(name);
  }
  if (!possible) return Choice({});
  const Expr further = FurtherMember(o, patterns, allowed, names, at);
  return JsonBrackets(builder_, '{', '}', Members(members, further, o.min, o.max, at));
}

// Members in their order, with commas between those that are there. pick is what may stand where
// one of the members from i on must come: that one, and what may follow it.
Expr SchemaCompiler::Members(const std::vector<Member>& members, const Expr& further) {
  Expr pick = further ? JsonList(builder_, further, 1, kUnbounded) : nullptr;
  bool needed = false;  // one of those from i on
  const auto rest = [&] {
    if (pick == nullptr) return Literal("");
    Expr more = Sequence({JsonComma(builder_), pick});
    return needed ? more : Optional(std::move(more));
  };
  constexpr size_t kNested = 32;  // members in one expression
  for (size_t i = members.size(); i-- > 0;) {
    const bool twice = !members[i].required;
    if (pick != nullptr && (twice || i % kNested == 0)) pick = Shared(std::move(pick));
    Expr one = Sequence({members[i].text, rest()});
    pick = twice && pick != nullptr ? Choice({std::move(one), pick}) : std::move(one);
    needed = needed || members[i].required;
  }
  if (pick == nullptr) return Literal("");
  return needed ? pick : Optional(std::move(pick));
}

Expr SchemaCompiler::Members(const std::vector<Member>& members, const Expr& further, int64_t min,
                             int64_t max, Where at) {
  const auto count = static_cast<int64_t>(members.size());
  // A further name may come twice: one of them counts.
  if (further != nullptr && min > count + 1) {
    LeaveOut(at, "minProperties of names that are not declared is not supported");
    min = count + 1;
  }
  const auto required = std::ranges::count_if(members, &Member::required);
  if (max != kUnbounded && further == nullptr && max >= count) max = kUnbounded;
  if (min <= required && max == kUnbounded) return Members(members, further);
  const int64_t counted = std::max<int64_t>(max == kUnbounded ? min : max, 1);
  if (static_cast<size_t>(counted) > kMaxCountedMembers / (members.size() + 1)) {
    LeaveOut(at, "minProperties or maxProperties of so many properties is not supported");
    return Members(members, further);
  }
  return CountedMembers(members, further, min, max, counted);
}

// tails[n]: what may stand behind n members, or `counted` and more where that is all that matters.
Expr SchemaCompiler::CountedMembers(const std::vector<Member>& members, const Expr& further,
                                    int64_t min, int64_t max, int64_t counted) {
  const auto with_comma = [&](int64_t n, const Expr& text) {
    return n == 0 ? text : Sequence({JsonComma(builder_), text});
  };
  std::vector<Expr> tails;
  for (int64_t n = 0; n <= counted; ++n) {
    const int64_t room = max == kUnbounded ? kUnbounded : max - n;
    const int64_t missing = std::max<int64_t>(min - n, 0);
    if (further == nullptr || room == 0 || missing > 1) {
      tails.push_back(missing == 0 ? Literal("") : Choice({}));
    } else {
      Expr list = with_comma(n, JsonList(builder_, further, 1, room));
      tails.push_back(missing == 0 ? Optional(std::move(list)) : std::move(list));
    }
  }
  for (size_t i = members.size(); i-- > 0;) {
    for (Expr& tail : tails) tail = Shared(std::move(tail));
    std::vector<Expr> before;
    for (int64_t n = 0; n <= counted; ++n) {
      std::vector<Expr> all;
      if (!members[i].required) all.push_back(tails[static_cast<size_t>(n)]);
      if (max == kUnbounded || n < max) {
        const auto next = static_cast<size_t>(std::min(n + 1, counted));
        all.push_back(with_comma(n, Sequence({members[i].text, tails[next]})));
      }
      before.push_back(Choice(std::move(all)));
    }
    tails = std::move(before);
  }
  return tails[0];
}

}  // namespace nibble::grammar
