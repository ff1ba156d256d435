// SPDX-License-Identifier: Apache-2.0
// The error that refuses a request, and its form in each API.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "base/json.h"

namespace nibble::serve {

enum class Dialect { kOpenAi, kAnthropic };

struct ApiError : std::runtime_error {
  // `param`: the field that is wrong; `code`: a name that clients look for. Both may be empty.
  ApiError(int http_status, const std::string& message, std::string field = {},
           std::string name = {})
      : std::runtime_error(message),
        status(http_status),
        param(std::move(field)),
        code(std::move(name)) {}

  int status;
  std::string param, code;
  int64_t retry_seconds = 1;  // of 429 and 503
};

template <typename... Args>
[[noreturn]] void BadField(const std::string& field, fmt::format_string<Args...> format,
                           Args&&... args) {
  throw ApiError(400, fmt::format(format, std::forward<Args>(args)...), field);
}

// The body that a dialect gives an error.
Json ErrorJson(Dialect dialect, int status, const std::string& message,
               const std::string& param = {}, const std::string& code = {});

}  // namespace nibble::serve
