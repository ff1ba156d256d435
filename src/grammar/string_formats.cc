// SPDX-License-Identifier: Apache-2.0
#include "grammar/string_formats.h"

#include <fmt/format.h>

namespace nibble::grammar {
namespace {

constexpr const char* kDate =
    "[1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|"
    "(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))";
constexpr const char* kTime =
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?"
    "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
constexpr const char* kUuid =
    "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}";
constexpr const char* kEmail =
    "[A-Za-z0-9_%+-]{1,30}(\\.[A-Za-z0-9_%+-]{1,30})?@"
    "([A-Za-z0-9]([A-Za-z0-9-]{0,60}[A-Za-z0-9])?\\.){1,3}[A-Za-z]{2,24}";
constexpr const char* kByteNumber = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
// RFC 3339, appendix A.
constexpr const char* kDuration =
    "P([0-9]{{1,6}}W|(([0-9]{{1,6}}Y([0-9]{{1,6}}M([0-9]{{1,6}}D)?)?|[0-9]{{1,6}}M([0-9]{{1,6}}D)?|"
    "[0-9]{{1,6}}D)(T{0})?)|T{0})";
constexpr const char* kDurationTime =
    "([0-9]{1,6}H([0-9]{1,6}M([0-9]{1,6}S)?)?|[0-9]{1,6}M([0-9]{1,6}S)?|[0-9]{1,6}S)";
// Labels of up to 61 characters, four of them at most.
constexpr const char* kHostname =
    "[A-Za-z0-9](-?[A-Za-z0-9]){0,30}(\\.[A-Za-z0-9](-?[A-Za-z0-9]){0,30}){0,3}";
// RFC 4291, without an IPv4 address at the end.
constexpr const char* kIpv6 =
    "({0}:){{7}}{0}|({0}:){{1,7}}:|({0}:){{1,6}}:{0}|({0}:){{1,5}}(:{0}){{1,2}}|"
    "({0}:){{1,4}}(:{0}){{1,3}}|({0}:){{1,3}}(:{0}){{1,4}}|({0}:){{1,2}}(:{0}){{1,5}}|"
    "{0}:(:{0}){{1,6}}|:((:{0}){{1,7}}|:)";
constexpr const char* kPathCharacter = "([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})";
constexpr const char* kPointer = "(/([^~/]|~[01])*)*";

// At most 2,083 characters, the limit that pydantic writes for URLs.
std::string Uri() {
  return fmt::format(
      "[A-Za-z][A-Za-z0-9+.-]{{0,15}}:(//{0}(:[0-9]{{1,5}})?([/?]{1}{{0,500}})?|"
      "[A-Za-z0-9.+_-]{1}{{0,500}})(#{1}{{0,100}})?",
      kHostname, kPathCharacter);
}

}  // namespace

std::optional<std::string> FormatPattern(const std::string& format) {
  if (format == "date") return kDate;
  if (format == "time") return kTime;
  if (format == "date-time") return fmt::format("{}T{}", kDate, kTime);
  if (format == "duration") return fmt::format(fmt::runtime(kDuration), kDurationTime);
  if (format == "uuid") return kUuid;
  if (format == "email" || format == "idn-email") return kEmail;
  if (format == "hostname" || format == "idn-hostname") return kHostname;
  if (format == "ipv4") return fmt::format("({0}\\.){{3}}{0}", kByteNumber);
  if (format == "ipv6") return fmt::format(fmt::runtime(kIpv6), "[0-9A-Fa-f]{1,4}");
  for (const char* uri : {"uri", "uri-reference", "iri", "iri-reference", "uri-template"}) {
    if (format == uri) return Uri();
  }
  if (format == "json-pointer") return kPointer;
  if (format == "relative-json-pointer") {
    return fmt::format("(0|[1-9][0-9]{{0,3}})(#|{})", kPointer);
  }
  return std::nullopt;
}

}  // namespace nibble::grammar
