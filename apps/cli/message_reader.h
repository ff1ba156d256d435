// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace nibble::cli {

// Reads what a user writes: lines from a pipe, or from a terminal with editing and history
// (libedit). A line that ends with \ goes on in the next one; lines between two """ are one
// message.
class MessageReader {
 public:
  MessageReader();
  ~MessageReader();

  bool terminal() const { return editor_ != nullptr; }
  // The next message; nothing at the end, which is Ctrl-D in a terminal. Ctrl-C there gives up what
  // was written so far.
  std::optional<std::string> Next();

 private:
  class Editor;
  std::optional<std::string> Line(const char* prompt);

  std::unique_ptr<Editor> editor_;
};

}  // namespace nibble::cli
