// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "apps/cli/line_editor.h"
#include "apps/cli/message_history.h"

namespace nibble::cli {

// Reads what a user writes: lines from a pipe, or from a terminal with editing and the messages of
// earlier sessions. A line that ends with \ goes on in the next one; lines between two """ are one
// message.
class MessageReader {
 public:
  // `history` is the file of MessageHistory, "" for none; a pipe's messages are not kept.
  explicit MessageReader(const std::string& history);

  bool terminal() const { return editor_ != nullptr; }
  // The next message; nothing at the end, which is Ctrl-D in a terminal. Ctrl-C there gives up what
  // was written so far.
  std::optional<std::string> Next();
  // Asks a user in a terminal to agree. A script has said what it wants.
  bool Confirms(const std::string& question);

 private:
  std::optional<std::string> Line(const char* prompt);

  MessageHistory history_;
  std::unique_ptr<LineEditor> editor_;
};

}  // namespace nibble::cli
