// SPDX-License-Identifier: Apache-2.0
// Throwing a formatted nibble::Error (public type) and aborting on bugs.
//   Fail("{}: tensor {} has shape {}", file, name, shape);   a bad file: throws
//   Note("nibble: {}\n", text);                              tells, and goes on whatever happens
//   NIBBLE_CHECK(rows == m, "rows {} vs {}", rows, m);       a bug in this program: aborts
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include "nibble/error.h"

namespace nibble {

// A text from outside as one line for people: control characters and bytes that are not UTF-8
// become "\n", "\t" or "\x1b"; of more than 1000 bytes, the middle is left out.
std::string Printable(std::string_view text);

template <typename... Args>
[[noreturn]] void Fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::kFailed, fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
[[noreturn]] void FailUsage(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::kUsage, fmt::format(format, std::forward<Args>(args)...));
}

// Writes text for people to standard error. If that fails nobody would have read it: no error.
template <typename... Args>
void Note(fmt::format_string<Args...> format, Args&&... args) {
  std::fputs(fmt::format(format, std::forward<Args>(args)...).c_str(), stderr);
}

// The system's message for an errno; for a full disk, with advice on what to do.
std::string SystemErrorText(int error);

// Prints "file:line: check failed: condition: message" and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const std::string& message);

}  // namespace nibble

#define NIBBLE_CHECK(condition, ...)                                                      \
  do {                                                                                    \
    if (!(condition)) [[unlikely]]                                                        \
      ::nibble::CheckFailed(__FILE__, __LINE__, #condition, fmt::format("" __VA_ARGS__)); \
  } while (false)
