// SPDX-License-Identifier: Apache-2.0
#include "serve/api_error.h"

namespace nibble::serve {
namespace {

const char* TypeOf(Dialect dialect, int status) {
  const bool anthropic = dialect == Dialect::kAnthropic;
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return anthropic ? "request_too_large" : "invalid_request_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return anthropic ? "overloaded_error" : "service_unavailable_error";
    default:
      break;
  }
  if (status < 500) return "invalid_request_error";
  return anthropic ? "api_error" : "server_error";
}

}  // namespace

Json ErrorJson(Dialect dialect, int status, const std::string& message, const std::string& param,
               const std::string& code) {
  const auto text = [](const std::string& s) { return s.empty() ? Json() : Json(s); };
  Json error = {{"type", TypeOf(dialect, status)}, {"message", message}};
  if (dialect == Dialect::kAnthropic) return {{"type", "error"}, {"error", error}};
  error["param"] = text(param);
  error["code"] = text(code);
  return {{"error", error}};
}

}  // namespace nibble::serve
