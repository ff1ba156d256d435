// SPDX-License-Identifier: Apache-2.0
// Methods of texts that look for another text, and those that split and join.
#include <algorithm>

#include "base/utf8.h"
#include "text/jinja_builtins.h"
#include "text/jinja_text.h"

namespace nibble::jinja {
namespace {

const std::string& TextArgument(const Args& args, size_t position, std::string_view name) {
  const Value& value = args.Need(position, name);
  if (value.AsString() == nullptr)
    Raise("argument {} must be a text, not {}", name, value.TypeName());
  return *value.AsString();
}

// text[start:end], as the optional arguments after the first give them. Nothing if start is behind
// the end, where even the empty text is not found.
struct Part {
  std::string_view text;
  int64_t start;  // characters before it
};
std::optional<Part> PartOf(Context& c, std::string_view text, const Args& args) {
  const auto given = [&](size_t i, std::string_view name, int64_t fallback) {
    const Value* value = args.Find(i, name);
    return value == nullptr || value->IsNone() ? fallback : args.Int(i, name, 0);
  };
  if (args.positional.size() < 2) return Part{text, 0};
  c.budget.Charge(text.size() / kCharsPerStep);
  const int64_t size = CountChars(text);
  const auto clamp = [&](int64_t at) { return at < 0 ? std::max<int64_t>(at + size, 0) : at; };
  const int64_t start = clamp(given(1, "start", 0));
  const int64_t end = std::min(clamp(given(2, "end", size)), size);
  if (start > end) return std::nullopt;
  const auto bytes = [](std::string_view rest, int64_t chars) {
    size_t at = 0;
    for (; chars > 0; --chars) at += FirstChar(rest.substr(at)).size();
    return at;
  };
  text.remove_prefix(bytes(text, start));
  return Part{text.substr(0, bytes(text, end - start)), start};
}

// The last place of a text, found as the first of the reversed ones, in linear time.
size_t FindLast(std::string_view text, std::string_view needle) {
  const std::string back(text.rbegin(), text.rend()), turned(needle.rbegin(), needle.rend());
  const size_t hit = FindText(back, turned);
  return hit == std::string::npos ? hit : text.size() - hit - needle.size();
}

template <bool last, bool raises>
Value Find(Context& c, const Value& self, const Args& args) {
  const std::string& needle = TextArgument(args, 0, "sub");
  const auto part = PartOf(c, *self.AsString(), args);
  c.budget.Charge((self.AsString()->size() + needle.size()) / kCharsPerStep);
  size_t hit = std::string::npos;
  if (part) hit = last ? FindLast(part->text, needle) : FindText(part->text, needle);
  if (hit != std::string::npos) return part->start + CountChars(part->text.substr(0, hit));
  if (raises) Raise("substring not found");
  return int64_t{-1};
}

Value Count(Context& c, const Value& self, const Args& args) {
  const std::string& needle = TextArgument(args, 0, "sub");
  const auto part = PartOf(c, *self.AsString(), args);
  if (!part) return int64_t{0};
  c.budget.Charge((self.AsString()->size() + needle.size()) / kCharsPerStep);
  if (needle.empty()) return CountChars(part->text) + 1;
  int64_t count = 0;
  for (size_t at = 0; (at = FindText(part->text, needle, at)) != std::string::npos; ++count) {
    c.budget.Charge(1);
    at += needle.size();
  }
  return count;
}

template <bool at_start>
Value HasAffix(Context& c, const Value& self, const Args& args) {
  const auto part = PartOf(c, *self.AsString(), args);
  const auto matches = [&](const Value& affix) {
    if (affix.AsString() == nullptr) Raise("startswith() and endswith() need strings");
    if (!part) return false;
    c.budget.Charge(1 + std::min(part->text.size(), affix.AsString()->size()) / kBytesPerStep);
    return at_start ? part->text.starts_with(*affix.AsString())
                    : part->text.ends_with(*affix.AsString());
  };
  const Value& affix = args.Need(0, "prefix");
  const List* choices = affix.AsList();
  if (choices == nullptr || !choices->IsTuple()) return matches(affix);
  return std::any_of(choices->items.begin(), choices->items.end(), matches);
}

template <bool at_start>
Value RemoveAffix(Context& c, const Value& self, const Args& args) {
  const std::string& affix = TextArgument(args, 0, "prefix");
  std::string_view text = *self.AsString();
  c.budget.Charge(std::min(text.size(), affix.size()) / kBytesPerStep);
  if (at_start && text.starts_with(affix)) text.remove_prefix(affix.size());
  if (!at_start && text.ends_with(affix)) text.remove_suffix(affix.size());
  return MakeString(c.budget, std::string(text));
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

// ---- splitting: both ways take parts off `rest` ----

template <bool last>
std::string_view TakeWord(std::string_view& rest, bool all) {
  const auto strip = last ? Side::kRight : Side::kLeft;
  rest = Strip(rest, strip);
  size_t size = all ? rest.size() : 0;
  while (size < rest.size()) {
    const std::string_view one =
        last ? LastChar(rest.substr(0, rest.size() - size)) : FirstChar(rest.substr(size));
    if (IsSpace(one)) break;
    size += one.size();
  }
  const std::string_view word = last ? rest.substr(rest.size() - size) : rest.substr(0, size);
  last ? rest.remove_suffix(size) : rest.remove_prefix(size);
  return word;
}

// The places of a separator; from the end they may overlap others.
template <bool last>
std::vector<size_t> Places(Context& c, std::string_view text, std::string_view by, int64_t left) {
  if (by.empty()) Raise("empty separator");
  const std::string back = last ? std::string(text.rbegin(), text.rend()) : std::string();
  const std::string turned = last ? std::string(by.rbegin(), by.rend()) : std::string(by);
  const std::string_view where = last ? std::string_view(back) : text;
  std::vector<size_t> places;
  for (size_t at = 0; left != 0 && (at = FindText(where, turned, at)) != std::string::npos;
       --left) {
    c.budget.Charge(1);
    places.push_back(last ? text.size() - at - by.size() : at);
    at += by.size();
  }
  if (last) std::reverse(places.begin(), places.end());
  return places;
}

template <bool last>
Value SplitText(Context& c, const Value& self, const Args& args) {
  const std::string_view text = *self.AsString();
  const Value* separator = args.Find(0, "sep");
  int64_t left = args.Int(1, "maxsplit", -1);
  std::vector<Value> parts;
  const auto add = [&](std::string_view part) {
    c.budget.Charge(part.size() / kBytesPerStep + 1);
    parts.emplace_back(std::string(part));
  };
  if (separator != nullptr && !separator->IsNone()) {
    const std::string by = Str(c.budget, *separator);
    size_t at = 0;
    c.budget.Charge(text.size() / kBytesPerStep);
    for (const size_t place : Places<last>(c, text, by, left)) {
      add(text.substr(at, place - at));
      at = place + by.size();
    }
    add(text.substr(at));
    return MakeList(c.budget, std::move(parts));
  }
  std::string_view rest = Strip(text, last ? Side::kRight : Side::kLeft);
  while (!rest.empty()) {
    // The rest after the last split keeps its spaces on the far side.
    add(TakeWord<last>(rest, left == 0));
    --left;
    rest = Strip(rest, last ? Side::kRight : Side::kLeft);
  }
  if (last) std::reverse(parts.begin(), parts.end());
  return MakeList(c.budget, std::move(parts));
}

template <bool last>
Value Partition(Context& c, const Value& self, const Args& args) {
  const std::string_view text = *self.AsString();
  const std::string& by = TextArgument(args, 0, "sep");
  if (by.empty()) Raise("empty separator");
  c.budget.Charge((text.size() + by.size()) / kBytesPerStep);
  const size_t hit = last ? FindLast(text, by) : FindText(text, by);
  const bool found = hit != std::string::npos;
  const size_t place = found ? hit : last ? 0 : text.size();
  const size_t behind = found ? hit + by.size() : place;
  return MakeList(c.budget,
                  {MakeString(c.budget, std::string(text.substr(0, place))),
                   found ? args.Need(0, "sep") : Value(std::string()),
                   MakeString(c.budget, std::string(text.substr(behind)))},
                  ListKind::kTuple);
}

Value SplitLines(Context& c, const Value& self, const Args& args) {
  const bool keeps = args.Bool(0, "keepends", false);
  std::vector<Value> lines;
  std::string_view rest = *self.AsString();
  c.budget.Charge(rest.size() / kCharsPerStep);
  while (!rest.empty()) {
    size_t end = 0, mark = 0;
    while (end < rest.size()) {
      const std::string_view one = FirstChar(rest.substr(end));
      if (IsLineEnd(CodePoint(one))) {
        mark = rest.substr(end).starts_with("\r\n") ? 2 : one.size();
        break;
      }
      end += one.size();
    }
    lines.push_back(MakeString(c.budget, std::string(rest.substr(0, keeps ? end + mark : end))));
    rest.remove_prefix(end + mark);
  }
  return MakeList(c.budget, std::move(lines));
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

}  // namespace

void AddSearchMethods(Table& methods) {
  methods.insert({{"find", Find<false, false>},
                  {"rfind", Find<true, false>},
                  {"index", Find<false, true>},
                  {"rindex", Find<true, true>},
                  {"count", Count},
                  {"startswith", HasAffix<true>},
                  {"endswith", HasAffix<false>},
                  {"removeprefix", RemoveAffix<true>},
                  {"removesuffix", RemoveAffix<false>},
                  {"replace", ReplaceText},
                  {"split", SplitText<false>},
                  {"rsplit", SplitText<true>},
                  {"partition", Partition<false>},
                  {"rpartition", Partition<true>},
                  {"splitlines", SplitLines},
                  {"join", JoinText}});
}

}  // namespace nibble::jinja
