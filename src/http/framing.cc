// SPDX-License-Identifier: Apache-2.0
#include "http/framing.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/utf8.h"

namespace nibble::http {
namespace {

// All values of a list field, in lower case, split at commas, without whitespace around them.
std::vector<std::string> ListOf(const Headers& fields, std::string_view name) {
  std::vector<std::string> items;
  for (const auto& [field, value] : fields) {
    if (field != name) continue;
    std::string_view rest = value;
    while (!rest.empty()) {
      const size_t comma = std::min(rest.find(','), rest.size());
      std::string_view item = rest.substr(0, comma);
      rest.remove_prefix(std::min(comma + 1, rest.size()));
      const size_t first = item.find_first_not_of(" \t");
      if (first == item.npos) continue;
      items.push_back(LowerCase(item.substr(first, item.find_last_not_of(" \t") + 1 - first)));
    }
  }
  return items;
}

std::string PercentDecoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    uint8_t byte = 0;
    const std::string_view digits = text.substr(i + 1, 2);
    const auto end = digits.data() + digits.size();
    const auto result = std::from_chars(digits.data(), end, byte, 16);
    if (digits.size() != 2 || result.ptr != end) {
      throw Refused{400, "the target has a % without two hexadecimal digits"};
    }
    decoded += static_cast<char>(byte);
    i += 2;
  }
  return decoded;
}

// Path and query of a target in absolute form ("http://host/path?query", RFC 9112, 3.2.2); any
// other target as it is.
std::string WithoutAuthority(const std::string& target, std::string_view host) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (LowerCase(target.substr(0, scheme.size())) != scheme) continue;
    const size_t end = std::min(target.find_first_of("/?", scheme.size()), target.size());
    if (LowerCase(target.substr(scheme.size(), end - scheme.size())) != LowerCase(host)) {
      throw Refused{400, "target and Host name different hosts"};
    }
    const std::string rest = target.substr(end);
    return rest.starts_with('/') ? rest : "/" + rest;
  }
  return target;
}

void CheckTarget(std::string_view target, Framing* framing) {
  const auto is_printable = [](char c) { return c > ' ' && c < 0x7F && c != '#'; };
  if (!target.starts_with('/') || !std::ranges::all_of(target, is_printable)) {
    throw Refused{400, "the target must be a path of printable ASCII that begins with /"};
  }
  const size_t mark = std::min(target.find('?'), target.size());
  framing->path = PercentDecoded(target.substr(0, mark));
  framing->query = target.substr(std::min(mark + 1, target.size()));
  const auto is_control = [](char c) { return (c >= 0 && c < ' ') || c == 0x7F; };
  if (!IsValidUtf8(framing->path) || std::ranges::any_of(framing->path, is_control) ||
      !IsValidUtf8(PercentDecoded(framing->query))) {
    throw Refused{400, "the target must be UTF-8, and its path without control characters"};
  }
}

void CheckHost(const Head& head) {
  const auto hosts = std::ranges::count(head.fields, "host", [](const auto& f) { return f.first; });
  if (hosts > 1 || (hosts == 0 && head.version >= 11)) {
    throw Refused{400, "a request must have one Host"};
  }
  const auto is_host = [](char c) {
    return c > ' ' && c < 0x7F && std::string_view("\"#,/<>?@\\^`{|}").find(c) == std::string::npos;
  };
  const std::string host = FindField(head.fields, "host").value_or("");
  if (!std::ranges::all_of(host, is_host)) throw Refused{400, "Host is none"};
}

uint64_t ContentLength(std::string_view value, const Limits& limits) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (value.empty() || !std::ranges::all_of(value, is_digit)) {
    throw Refused{400, "Content-Length must be digits"};
  }
  uint64_t length = 0;
  const auto result = std::from_chars(value.data(), value.data() + value.size(), length);
  if (result.ec != std::errc() || length > limits.body_bytes) {
    throw Refused{413, fmt::format("the body must have at most {} bytes", limits.body_bytes)};
  }
  return length;
}

void CheckBody(const Head& head, const Limits& limits, Framing* framing) {
  std::vector<std::string> lengths, encodings;
  for (const auto& [name, value] : head.fields) {
    if (name == "content-length") lengths.push_back(value);
    if (name == "transfer-encoding") encodings.push_back(LowerCase(value));
  }
  if (!encodings.empty()) {
    if (head.version < 11) throw Refused{400, "HTTP/1.0 has no Transfer-Encoding"};
    if (!lengths.empty())
      throw Refused{400, "Transfer-Encoding and Content-Length exclude each other"};
    if (encodings.size() > 1 || encodings[0] != "chunked") {
      throw Refused{400, "the only Transfer-Encoding here is chunked"};
    }
    framing->body = BodyKind::kChunked;
    return;
  }
  if (lengths.empty()) return;
  if (lengths.size() > 1) throw Refused{400, "a request must not have several Content-Length"};
  framing->length = ContentLength(lengths[0], limits);
  if (framing->length > 0) framing->body = BodyKind::kLength;
}

}  // namespace

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

// Table 3-7 of the Unicode standard: shortest forms, no surrogates, nothing above U+10FFFF.
std::optional<std::string> FindField(const Headers& fields, std::string_view lower_case_name) {
  for (const auto& [name, value] : fields) {
    if (name == lower_case_name) return value;
  }
  return std::nullopt;
}

Framing CheckHead(const Head& head, const Limits& limits) {
  constexpr std::string_view kMethods[] = {"GET",    "HEAD",    "POST", "PUT",
                                           "DELETE", "OPTIONS", "PATCH"};
  if (std::ranges::find(kMethods, head.method) == std::end(kMethods)) {
    throw Refused{501, "no such method here"};
  }
  Framing framing;
  framing.head_only = head.method == "HEAD";
  CheckHost(head);
  const std::string host = FindField(head.fields, "host").value_or("");
  CheckTarget(WithoutAuthority(head.target, host), &framing);
  CheckBody(head, limits, &framing);
  const auto connection = ListOf(head.fields, "connection");
  const auto has = [&](std::string_view option) {
    return std::ranges::find(connection, option) != connection.end();
  };
  framing.keep_alive = !has("close") && (head.version >= 11 || has("keep-alive"));
  if (head.version >= 11) {
    for (const std::string& expected : ListOf(head.fields, "expect")) {
      if (expected != "100-continue") throw Refused{417, "the only Expect here is 100-continue"};
      framing.expects_continue = true;
    }
  }
  return framing;
}

}  // namespace nibble::http
