// SPDX-License-Identifier: Apache-2.0
// The one exception type of Nibble: a bad file, model, option or machine. Its message is one line:
// what is wrong, where (file, tensor, offset), what to do. What it quotes from files cannot harm a
// terminal: control characters are escaped, long texts cut. Bugs do not throw, they abort
// (NIBBLE_CHECK).
#pragma once

#include <stdexcept>
#include <string>

namespace nibble {

// The values are the program's exit codes.
enum class ErrorCode {
  kFailed = 1,        // a file, model or machine is not as it must be
  kUsage = 2,         // the caller asked for something that does not exist or does not fit together
  kInterrupted = 75,  // stopped by a signal; the same command with --resume goes on
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message);
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace nibble
