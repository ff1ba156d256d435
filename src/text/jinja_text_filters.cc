// SPDX-License-Identifier: Apache-2.0
// The filters of texts.
#include <algorithm>
#include <cmath>

#include "text/jinja_builtins.h"
#include "text/jinja_format.h"
#include "text/jinja_markup.h"
#include "text/jinja_math.h"
#include "text/jinja_text.h"

namespace nibble::jinja {
namespace {

Value CallMethod(Context& c, std::string_view name, const Value& text,
                 std::vector<Value> arguments) {
  return StringMethods().at(name)(c, text, Args{std::move(arguments), {}});
}

// A filter that is a method of texts.
template <auto method>
Value OfText(Context& c, const Value& input, const Args& args) {
  return MarkupAs(c.budget, input, StringMethods().at(method())(c, input, args));
}

// "..." | format(values): as "..." % values.
Value FormatFilter(Context& c, const Value& input, const Args& args) {
  if (!args.positional.empty() && !args.named.empty()) {
    Raise("format: positional and named values cannot be mixed");
  }
  DictItems named;
  for (const auto& [name, value] : args.named) SetKey(c.budget, named, Value(name), value);
  const Value values = args.named.empty() ? MakeList(c.budget, args.positional, ListKind::kTuple)
                                          : MakeDict(c.budget, std::move(named));
  const Value format = input.AsString() != nullptr ? input : Value(Str(c.budget, input));
  return FormatPercent(c.budget, format, values);
}

Value Indent(Context& c, const Value& input, const Args& args) {
  if (const Undefined* missing = input.AsUndefined()) Raise("{}", missing->Message());
  const Value* width = args.Find(0, "width");
  const bool is_text = width != nullptr && width->AsString() != nullptr;
  const int64_t spaces =
      is_text ? 0 : std::clamp<int64_t>(args.Int(0, "width", 4), 0, kMaxTextBytes);
  const std::string by =
      is_text ? *width->AsString() : std::string(static_cast<size_t>(spaces), ' ');
  const bool blank = args.Bool(2, "blank", false);
  // The line end that is added keeps a last, empty line.
  const Value lines = CallMethod(c, "splitlines", Str(c.budget, input) + "\n", {});
  Text out(c.budget);
  if (args.Bool(1, "first", false)) out.Add(by);
  const auto& items = lines.AsList()->items;
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string& line = *items[i].AsString();
    if (i > 0) out.Add("\n");
    if (i > 0 && (blank || !line.empty())) out.Add(by);
    out.Add(line);
  }
  return MarkupAs(c.budget, input, out.Take());
}

// A word begins after white space, "-" or an opening bracket; str.title() has more places.
Value Title(Context& c, const Value& input, const Args&) {
  const std::string text = Str(c.budget, input);
  c.budget.Charge(text.size() / kCharsPerStep);
  Text out(c.budget);
  bool starts = true;
  for (const std::string_view one : Chars(text)) {
    out.Add(ChangeCase(one, starts ? Case::kUpper : Case::kLower));
    starts = IsSpace(one) || std::string_view("-({[<").find(one) != std::string_view::npos;
  }
  return out.Take();
}

Value Truncate(Context& c, const Value& input, const Args& args) {
  const bool is_text = input.AsString() != nullptr;
  const std::string text = Str(c.budget, input);
  const Value* given_end = args.Find(2, "end");
  const std::string end = given_end == nullptr ? "..." : Str(c.budget, *given_end);
  const int64_t length = args.Int(0, "length", 255), end_size = CountChars(end);
  const Value* given = args.Find(3, "leeway");
  const int64_t leeway = given == nullptr || given->IsNone() ? 5 : args.Int(3, "leeway", 5);
  if (length < end_size) Raise("truncate: length is below {}", end_size);
  if (leeway < 0) Raise("truncate: leeway is below 0");
  c.budget.Charge(text.size() / kCharsPerStep);
  const int64_t size = is_text ? CountChars(text) : *ApplyFilter(c, "length", input, {}).AsInt();
  if (size <= length || size - length <= leeway) return input;
  if (!is_text) Raise("truncate: '{}' is no text", input.TypeName());
  size_t kept = 0;
  for (int64_t i = 0; i < length - end_size; ++i) {
    kept += FirstChar(std::string_view(text).substr(kept)).size();
  }
  std::string_view front = std::string_view(text).substr(0, kept);
  if (!args.Bool(1, "killwords", false)) front = front.substr(0, front.rfind(' '));
  const Value kept_text = MarkupAs(c.budget, input, std::string(front));
  return Arithmetic(c.budget, "+", kept_text, given_end == nullptr ? end : *given_end);
}

Value WordCount(Context& c, const Value& input, const Args&) {
  const std::string text = Str(c.budget, input);
  c.budget.Charge(text.size() / kCharsPerStep);
  int64_t words = 0;
  bool inside = false;
  for (const std::string_view one : Chars(text)) {
    const bool letter = one == "_" || IsAlnum(CodePoint(one));
    words += letter && !inside;
    inside = letter;
  }
  return words;
}

template <bool again>
Value Escape(Context& c, const Value& input, const Args&) {
  const Value text = again ? Value(Str(c.budget, input)) : input;
  return MakeMarkup(c.budget, EscapeHtml(c.budget, text));
}

Value Safe(Context& c, const Value& input, const Args&) {
  return MakeMarkup(c.budget, Str(c.budget, input));
}

Value XmlAttributes(Context& c, const Value& input, const Args& args) {
  const Dict* dict = input.AsDict();
  if (dict == nullptr) Raise("xmlattr: '{}' is not a mapping", input.TypeName());
  Text out(c.budget);
  bool space = args.Bool(0, "autospace", true);
  for (const auto& [key, value] : dict->items) {
    if (value.IsNone() || value.IsUndefined()) continue;
    const std::string* name = key.AsString();
    if (name == nullptr || name->find_first_of(" \t\n\r\f\v/>=") != std::string::npos) {
      Raise("xmlattr: a key is no name of an attribute");
    }
    if (std::exchange(space, true)) out.Add(" ");
    out.Add(EscapeHtml(c.budget, key));
    out.Add("=\"");
    out.Add(EscapeHtml(c.budget, value));
    out.Add("\"");
  }
  return out.Take();
}

// In a query a space becomes "+" and "/" is quoted.
void QuoteUrl(Text& out, const Value& value, bool query) {
  const std::string text = Str(out.budget(), value);
  out.budget().Charge(text.size() / kCharsPerStep);
  for (const char c : text) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       std::string_view("_.-~").find(c) != std::string_view::npos ||
                       (c == '/' && !query);
    if (plain || (c == ' ' && query)) {
      out.Add(plain ? std::string_view(&c, 1) : "+");
    } else {
      out.Add(fmt::format("%{:02X}", static_cast<unsigned char>(c)));
    }
  }
}

Value UrlEncode(Context& c, const Value& input, const Args&) {
  Text out(c.budget);
  if (input.AsDict() == nullptr && input.AsList() == nullptr) {
    QuoteUrl(out, input, false);
    return out.Take();
  }
  const Value pairs = input.AsDict() == nullptr ? input : ApplyFilter(c, "items", input, {});
  std::string_view between;
  const auto walk = Iterate(c, pairs);
  for (const Value& pair : walk->items) {
    const auto list = Iterate(c, pair);
    if (list->items.size() != 2) Raise("urlencode: expected pairs of a name and a value");
    out.Add(between);
    QuoteUrl(out, list->items[0], true);
    out.Add("=");
    QuoteUrl(out, list->items[1], true);
    between = "&";
  }
  return out.Take();
}

Value FileSize(Context& c, const Value& input, const Args& args) {
  const bool binary = args.Bool(0, "binary", false);
  const double base = binary ? 1024 : 1000;
  const Value number = ApplyFilter(c, "float", input, {});
  double bytes = *number.AsDouble();
  if (bytes == 1) return std::string("1 Byte");
  if (bytes < base) return fmt::format("{:.0f} Bytes", std::trunc(bytes));
  static constexpr std::string_view kUnits = "kMGTPEZY";
  size_t unit = 0;
  for (bytes /= base; bytes >= base && unit + 1 < kUnits.size(); ++unit) bytes /= base;
  const char letter = binary && unit == 0 ? 'K' : kUnits[unit];
  return fmt::format("{:.1f} {}{}", bytes, letter, binary ? "iB" : "B");
}

}  // namespace

void AddTextFilters(Table& filters) {
  filters.insert({{"upper", OfText<[] { return "upper"; }>},
                  {"lower", OfText<[] { return "lower"; }>},
                  {"capitalize", OfText<[] { return "capitalize"; }>},
                  {"center", OfText<[] { return "center"; }>},
                  {"trim", OfText<[] { return "strip"; }>},
                  {"replace", StringMethods().at("replace")},
                  {"format", FormatFilter},
                  {"indent", Indent},
                  {"title", Title},
                  {"truncate", Truncate},
                  {"wordcount", WordCount},
                  {"escape", Escape<false>},
                  {"e", Escape<false>},
                  {"forceescape", Escape<true>},
                  {"safe", Safe},
                  {"xmlattr", XmlAttributes},
                  {"urlencode", UrlEncode},
                  {"filesizeformat", FileSize}});
}

}  // namespace nibble::jinja
