// SPDX-License-Identifier: Apache-2.0
#include "text/jinja_format.h"

#include <charconv>
#include <cmath>

#include "text/jinja_markup.h"
#include "text/jinja_text.h"

namespace nibble::jinja {
namespace {

// [[fill]align][sign][#][0][width][group][.precision][type]
struct Spec {
  std::string fill = " ";
  char align = '\0', sign = '-', group = '\0', type = '\0';
  bool alternate = false;
  int64_t width = 0, precision = -1;
};

// Reads one character of a set, or 0.
char TakeOne(std::string_view& text, std::string_view set) {
  if (text.empty() || set.find(text[0]) == std::string_view::npos) return '\0';
  const char taken = text[0];
  text.remove_prefix(1);
  return taken;
}

std::optional<int64_t> TakeNumber(std::string_view& text, int64_t max) {
  int64_t number = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || text[0] == '-' || result.ec == std::errc::invalid_argument)
    return std::nullopt;
  if (result.ec != std::errc() || number > max) Raise("a format's number is above {}", max);
  text.remove_prefix(static_cast<size_t>(result.ptr - text.data()));
  return number;
}

// ---- one value ----

void Pad(Text& out, const Spec& spec, std::string_view sign, std::string_view body) {
  out.budget().Charge((sign.size() + body.size()) / kCharsPerStep);
  const auto size = static_cast<int64_t>(sign.size() + CountChars(body));
  const int64_t missing = std::max<int64_t>(spec.width - size, 0);
  const int64_t left = spec.align == '<' || spec.align == '=' ? 0
                       : spec.align == '^'                    ? missing / 2
                                                              : missing;
  const int64_t inner = spec.align == '=' ? missing : 0;
  const auto fill = [&](int64_t count) {
    for (int64_t i = 0; i < count; ++i) out.Add(spec.fill);
  };
  fill(left);
  out.Add(sign);
  fill(inner);
  out.Add(body);
  fill(missing - left - inner);
}

std::string Grouped(std::string text, char separator, bool decimal) {
  const size_t each = decimal ? 3 : 4;
  const char* const digits = decimal ? "0123456789" : "0123456789abcdefABCDEF";
  for (size_t at = std::min(text.find_first_not_of(digits), text.size()); at > each;) {
    text.insert(at -= each, 1, separator);
  }
  return text;
}

void PutNumber(Text& out, Spec spec, std::string text, std::string_view prefix) {
  std::string sign = text.starts_with('-') ? "-"
                     : spec.sign == '-'    ? ""
                                           : std::string(1, spec.sign);
  if (text.starts_with('-')) text.erase(0, 1);
  sign += prefix;
  const bool decimal = std::string_view("xXob").find(spec.type) == std::string_view::npos;
  if (spec.group != '\0') text = Grouped(std::move(text), spec.group, decimal);
  if (spec.align == '\0') spec.align = '>';
  Pad(out, spec, sign, text);
}

std::string FloatBody(double number, const Spec& spec) {
  const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
  switch (spec.type) {
    case '\0': {
      if (spec.precision < 0) return FloatText(number);
      std::string text = fmt::format("{:.{}g}", number, precision);
      if (text.find_first_of(".eni") == std::string::npos) text += ".0";
      return text;
    }
    case 'e':
      return fmt::format("{:.{}e}", number, precision);
    case 'E':
      return fmt::format("{:.{}E}", number, precision);
    case 'f':
      return fmt::format("{:.{}f}", number, precision);
    case 'F':
      return fmt::format("{:.{}F}", number, precision);
    case 'G':
      return fmt::format("{:.{}G}", number, precision);
    case '%':
      return fmt::format("{:.{}f}%", number * 100, precision);
    default:
      return fmt::format("{:.{}g}", number, precision);
  }
}

void PutInteger(Text& out, const Spec& spec, const Value& value) {
  const BigInt* big = value.AsBigInt();
  const bool decimal = std::string_view("dniu").find(spec.type) != std::string_view::npos;
  if (spec.type == '\0' || decimal) {
    return PutNumber(out, spec, big ? big->digits : fmt::format("{}", *value.AsInt()), "");
  }
  if (big != nullptr) Raise("format '{}' of an integer of more than 64 bits", spec.type);
  const int64_t number = *value.AsInt();
  const uint64_t size =
      number < 0 ? 0 - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
  std::string digits = spec.type == 'x'   ? fmt::format("{:x}", size)
                       : spec.type == 'X' ? fmt::format("{:X}", size)
                       : spec.type == 'o' ? fmt::format("{:o}", size)
                                          : fmt::format("{:b}", size);
  if (number < 0) digits.insert(0, 1, '-');
  const std::string prefix = {'0', spec.type};
  PutNumber(out, spec, std::move(digits), spec.alternate ? prefix : "");
}

void PutText(Text& out, Spec spec, std::string_view text) {
  out.budget().Charge(text.size() / kCharsPerStep);
  size_t end = 0;
  for (int64_t i = 0; end < text.size() && (spec.precision < 0 || i < spec.precision); ++i) {
    end += spec.precision < 0 ? text.size() : FirstChar(text.substr(end)).size();
  }
  if (spec.align == '\0') spec.align = '<';
  Pad(out, spec, "", text.substr(0, end));
}

// One character of its code point.
void PutCode(Text& out, const Spec& spec, const Value& value) {
  const auto code = value.AsInt();
  const auto text = code ? CharOf(*code) : std::nullopt;
  if (!text) Raise("format 'c' needs a character's number");
  PutText(out, spec, *text);
}

// format(value, spec)
void PutValue(Text& out, const Spec& spec, const Value& value, bool plain) {
  constexpr std::string_view kFloats = "eEfFgG%", kIntegers = "dnxXob";
  const auto among = [&](std::string_view set) { return set.find(spec.type) != set.npos; };
  if (plain) return out.Add(Str(out.budget(), value));
  if (const std::string* text = value.AsString(); text && (spec.type == '\0' || spec.type == 's')) {
    return PutText(out, spec, *text);
  }
  const auto number = value.AsNumber();
  const bool integer = value.IsInteger();
  if (integer && spec.type == 'c') return PutCode(out, spec, value);
  if (integer && (spec.type == '\0' || among(kIntegers))) return PutInteger(out, spec, value);
  if (number && (among(kFloats) || (!integer && (spec.type == '\0' || spec.type == 'n')))) {
    return PutNumber(out, spec, FloatBody(*number, spec), "");
  }
  Raise("format '{}' does not fit a value of type {}", spec.type, value.TypeName());
}

// ---- "%" ----

// The values a "%" format uses up, one after the other.
class Operands {
 public:
  explicit Operands(const Value& values) : values_(values) {}
  const Value& Next() {
    const List* list = values_.AsList();
    const bool tuple = list != nullptr && list->IsTuple();
    if (next_ >= (tuple ? list->items.size() : 1)) Raise("not enough arguments for the format");
    ++next_;
    return tuple ? list->items[next_ - 1] : values_;
  }
  const Value& Named(Budget& budget, std::string_view name) {
    const Dict* dict = values_.AsDict();
    if (dict == nullptr) Raise("the format needs a dictionary");
    const Value* value = FindKey(budget, dict->items, name);
    if (value == nullptr) Raise("the format's key '{}' is missing", name);
    return *value;
  }
  void CheckAllUsed() const {
    const List* list = values_.AsList();
    const bool whole = values_.AsDict() != nullptr || (list != nullptr && !list->IsTuple());
    const size_t size = list != nullptr && list->IsTuple() ? list->items.size() : 1;
    if (!whole && next_ < size) Raise("not all arguments are used by the format");
  }

 private:
  const Value& values_;
  size_t next_ = 0;
};

// A width or precision: "*" takes an operand.
std::optional<int64_t> TakeSize(std::string_view& rest, Operands& operands, int64_t max) {
  if (TakeOne(rest, "*") == '\0') return TakeNumber(rest, max);
  const auto size = operands.Next().AsInt();
  if (!size || *size > max || *size < -max) Raise("'*' in a format needs an integer up to {}", max);
  return *size;
}

void PutPercent(Text& out, Spec spec, const Value& value, bool escapes) {
  const auto among = [&](std::string_view set) { return set.find(spec.type) != set.npos; };
  if (among("sr")) {
    const Value shown = spec.type == 's' ? value : Value(Repr(out.budget(), value));
    const std::string text = escapes ? EscapeHtml(out.budget(), shown) : Str(out.budget(), shown);
    spec.fill = " ";
    return PutText(out, spec, text);
  }
  const std::string* text = value.AsString();
  if (spec.type == 'c' && text != nullptr && CountChars(*text) == 1)
    return PutText(out, spec, *text);
  if (spec.type == 'c') return PutCode(out, spec, value);
  const auto number = value.AsNumber();
  if (!number) Raise("format '{}' needs a number, not {}", spec.type, value.TypeName());
  if (among("eEfFgG")) return PutNumber(out, spec, FloatBody(*number, spec), "");
  if (!value.IsInteger() && !among("diu")) Raise("format '{}' needs an integer", spec.type);
  if (!std::isfinite(*number)) Raise("{} is no integer", *number);
  PutInteger(out, spec,
             value.IsInteger() ? value : MakeInteger(fmt::format("{:.0f}", std::trunc(*number))));
}

// Takes what follows a "%": [(name)][flags][width][.precision][length]type
void TakePercent(Text& out, std::string_view& rest, Operands& operands, bool escapes) {
  const Value* named = nullptr;
  if (TakeOne(rest, "(") != '\0') {
    const size_t end = rest.find(')');
    if (end == std::string_view::npos) Raise("a key of the format is not closed");
    named = &operands.Named(out.budget(), rest.substr(0, end));
    rest.remove_prefix(end + 1);
  }
  Spec spec;
  spec.align = '>';
  bool left = false, zero = false;
  while (const char flag = TakeOne(rest, "-+ #0")) {
    if (flag == '-') left = true;
    if (flag == '0') zero = true;
    if (flag == '#') spec.alternate = true;
    if (flag == '+' || (flag == ' ' && spec.sign != '+')) spec.sign = flag;
  }
  spec.width = TakeSize(rest, operands, kMaxTextBytes).value_or(0);
  if (spec.width < 0) left = true;
  spec.width = std::abs(spec.width);
  if (TakeOne(rest, ".") != '\0') {
    spec.precision = TakeSize(rest, operands, kMaxPrecision).value_or(0);
  }
  TakeOne(rest, "hlL");
  spec.type = TakeOne(rest, "diouxXeEfFgGcrs%");
  if (spec.type == '\0') Raise("a format ends early or has an unknown type");
  if (spec.type == '%') return out.Add("%");
  const bool pads_zeros =
      zero && !left && std::string_view("rsc").find(spec.type) == std::string_view::npos;
  if (left) spec.align = '<';
  if (pads_zeros) spec.align = '=', spec.fill = "0";
  PutPercent(out, spec, named != nullptr ? *named : operands.Next(), escapes);
}

// ---- braces ----

Spec ParseSpec(std::string_view text) {
  constexpr std::string_view kAligns = "<>=^";
  Spec spec;
  const std::string_view fill = text.empty() ? text : FirstChar(text);
  if (fill.size() < text.size() && kAligns.find(text[fill.size()]) != kAligns.npos) {
    spec.fill = fill;
    text.remove_prefix(fill.size());
  }
  spec.align = TakeOne(text, kAligns);
  if (const char sign = TakeOne(text, "-+ ")) spec.sign = sign;
  spec.alternate = TakeOne(text, "#") != '\0';
  if (TakeOne(text, "0") != '\0' && spec.align == '\0') spec.align = '=', spec.fill = "0";
  spec.width = TakeNumber(text, kMaxTextBytes).value_or(0);
  spec.group = TakeOne(text, ",_");
  if (TakeOne(text, ".") != '\0') {
    const auto precision = TakeNumber(text, kMaxPrecision);
    if (!precision) Raise("a format has no precision after '.'");
    spec.precision = *precision;
  }
  spec.type = TakeOne(text, "bcdeEfFgGnosxX%");
  if (!text.empty()) Raise("invalid format specifier");
  return spec;
}

class Braces {
 public:
  Braces(Context& context, const Args& args, bool escapes)
      : context_(context), args_(args), budget_(context.budget), escapes_(escapes) {}

  // `nested`: a specifier, which may itself hold fields.
  std::string Run(std::string_view rest, bool nested) {
    Text out(budget_);
    while (!rest.empty()) {
      const size_t plain = std::min(rest.find_first_of("{}"), rest.size());
      out.Add(rest.substr(0, plain));
      rest.remove_prefix(plain);
      if (rest.starts_with("{{") || rest.starts_with("}}")) {
        out.Add(rest.substr(0, 1));
        rest.remove_prefix(2);
      } else if (!rest.empty()) {
        const size_t end = EndOfField(rest);
        Field(out, rest.substr(1, end - 1), nested);
        rest.remove_prefix(end + 1);
      }
    }
    return out.Take();
  }

 private:
  static size_t EndOfField(std::string_view rest) {
    int open = 0;
    for (size_t i = 0; i < rest.size(); ++i) {
      open += (rest[i] == '{') - (rest[i] == '}');
      if (open <= 0 && i > 0) return i;
      if (open <= 0) break;
    }
    Raise("single '{}' in a format", rest[0]);
  }

  void Field(Text& out, std::string_view field, bool nested) {
    if (nested && field.find('{') != field.npos) Raise("fields of a format are nested too deep");
    const size_t name_end = std::min(field.find_first_of("!:"), field.size());
    Value value = Lookup(field.substr(0, name_end));
    field.remove_prefix(name_end);
    if (TakeOne(field, "!") != '\0') {
      const char conversion = TakeOne(field, "rs");
      if (conversion == '\0') Raise("unknown conversion in a format");
      value = conversion == 'r' ? Repr(budget_, value) : Str(budget_, value);
    }
    if (!field.empty() && TakeOne(field, ":") == '\0') Raise("expected ':' in a format");
    const std::string spec = field.find('{') == field.npos ? std::string(field) : Run(field, true);
    Text text(budget_);
    PutValue(text, ParseSpec(spec), value, spec.empty());
    const Value shown = text.Take();
    out.Add(escapes_ && !value.IsMarkup() ? EscapeHtml(budget_, shown) : *shown.AsString());
  }

  Value Lookup(std::string_view name) {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    Value value = First(name.substr(0, end));
    for (name.remove_prefix(end); !name.empty();) {
      const bool attribute = name[0] == '.';
      const size_t stop =
          attribute ? std::min(name.find_first_of(".[", 1), name.size()) : name.find(']');
      if (stop == name.npos || stop == 1) Raise("a field of a format is not closed or empty");
      const std::string_view key = name.substr(1, stop - 1);
      value = attribute ? GetAttr(context_, value, key) : GetItem(context_, value, KeyOf(key));
      name.remove_prefix(stop + !attribute);
    }
    return value;
  }

  static Value KeyOf(std::string_view key) {
    std::string_view rest = key;
    const auto number = TakeNumber(rest, INT64_MAX);
    return number && rest.empty() ? Value(*number) : Value(std::string(key));
  }

  Value First(std::string_view name) {
    const Value key = KeyOf(name);
    if (name.empty() || key.AsInt()) {
      if (numbered_ && *numbered_ != !name.empty()) Raise("a format mixes {{}} and {{0}}");
      numbered_ = !name.empty();
      const size_t index = name.empty() ? next_++ : static_cast<size_t>(*key.AsInt());
      if (index >= args_.positional.size()) Raise("a format has more fields than arguments");
      return args_.positional[index];
    }
    const Value* named = args_.Find(SIZE_MAX, name);
    if (named == nullptr) Raise("a format's field '{}' is missing", name);
    return *named;
  }

  Context& context_;
  const Args& args_;
  Budget& budget_;
  bool escapes_;
  size_t next_ = 0;
  std::optional<bool> numbered_;
};

}  // namespace

Value FormatPercent(Budget& budget, const Value& format, const Value& values) {
  Text out(budget);
  Operands operands(values);
  std::string_view rest = *format.AsString();
  budget.Charge(rest.size() / kBytesPerStep);
  while (true) {
    const size_t plain = std::min(rest.find('%'), rest.size());
    out.Add(rest.substr(0, plain));
    rest.remove_prefix(plain);
    if (rest.empty()) break;
    budget.Charge(1);
    rest.remove_prefix(1);
    TakePercent(out, rest, operands, format.IsMarkup());
  }
  operands.CheckAllUsed();
  return MarkupAs(budget, format, out.Take());
}

Value FormatBraces(Context& context, const Value& format, const Args& args) {
  std::string text = Braces(context, args, format.IsMarkup()).Run(*format.AsString(), false);
  return MarkupAs(context.budget, format, std::move(text));
}

}  // namespace nibble::jinja
