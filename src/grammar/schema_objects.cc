// SPDX-License-Identifier: Apache-2.0
// Objects and arrays of schemas.
#include <algorithm>
#include <map>

#include "base/utf8.h"
#include "grammar/json_schema.h"
#include "grammar/json_text.h"

namespace nibble::grammar {
namespace {

// Names that agree with a declared one in so many characters are not offered as further ones.
constexpr size_t kMaxSharedName = 100;
constexpr size_t kNameWork = 1024;  // bytes of the expressions for a character of them

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

Expr SchemaCompiler::Object(const Json& schema, Where at) {
  const Json properties = schema.value("properties", Json::object());
  const Json required = schema.value("required", Json::array());
  if (!properties.is_object()) Refuse(at, "properties must be an object");
  if (!required.is_array()) Refuse(at, "required must be an array of names");
  std::set<std::string> needed;
  for (const Json& name : required) {
    if (!name.is_string()) Refuse(at, "required must be an array of names");
    needed.insert(name.get<std::string>());
  }
  const Json others = schema.value("additionalProperties", Json(true));
  std::vector<std::string> names;
  std::vector<Member> members;
  const auto add = [&](const std::string& name, const Json& value, const std::string& place) {
    Expr text = Sequence({Literal(JsonDump(name)), JsonColon(), Value(value, place)});
    members.push_back({std::move(text), needed.contains(name)});
    names.push_back(name);
  };
  const std::string prefix = at + (at.empty() ? "" : ".");
  if (properties.size() + needed.size() > GrammarLimits::kProperties) {
    Refuse(at, fmt::format("over {} properties", GrammarLimits::kProperties));
  }
  for (const auto& item : properties.items()) {
    add(item.key(), item.value(), prefix + "properties." + item.key());
  }
  for (const std::string& name : needed) {
    if (!properties.contains(name)) add(name, others, prefix + "additionalProperties");
  }
  Expr further;
  if (others != false) {
    Expr value = Value(others, prefix + "additionalProperties");
    further = Shared(Sequence({FurtherName(names, at), JsonColon(), std::move(value)}));
  }
  return JsonBrackets(builder_, '{', '}', Members(std::move(members), further));
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

Expr SchemaCompiler::Array(const Json& schema, Where at) {
  const std::string prefix = at + (at.empty() ? "" : ".");
  const Json firsts = schema.value("prefixItems", Json::array());
  const Json items = schema.value("items", Json(true));
  if (!firsts.is_array()) Refuse(at, "prefixItems must be an array of schemas");
  if (items.is_array()) Refuse(at, "items as an array is not supported; write prefixItems");
  const int64_t min = Count(schema, "minItems", 0, at);
  int64_t max = Count(schema, "maxItems", kUnbounded, at);
  const auto fixed = static_cast<int64_t>(firsts.size());
  if (items == false) max = max == kUnbounded ? fixed : std::min(max, fixed);
  if (max != kUnbounded && max < min) return Choice({});
  Expr inside = Literal("");
  if (max == kUnbounded || max > fixed) {
    const Expr item = Shared(Value(items, prefix + "items"));
    const int64_t more = max == kUnbounded ? kUnbounded : max - fixed;
    if (fixed == 0) {
      inside = JsonList(builder_, item, min, max);
    } else {
      inside =
          Repeat(Sequence({JsonComma(builder_), item}), std::max<int64_t>(min - fixed, 0), more);
    }
  }
  for (int64_t i = max == kUnbounded ? fixed : std::min(fixed, max); i-- > 0;) {
    Expr value = Value(firsts[static_cast<size_t>(i)], fmt::format("{}prefixItems.{}", prefix, i));
    if (i > 0) value = Sequence({JsonComma(builder_), std::move(value)});
    inside = Sequence({std::move(value), std::move(inside)});
    if (i >= min) inside = Optional(std::move(inside));
  }
  return JsonBrackets(builder_, '[', ']', std::move(inside));
}

}  // namespace nibble::grammar
