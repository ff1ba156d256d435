// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/message_reader.h"

#include <unistd.h>

#include <iostream>

namespace nibble::cli {

MessageReader::MessageReader(const std::string& history)
    : history_(isatty(STDIN_FILENO) != 0 ? history : "") {
  if (isatty(STDIN_FILENO) == 0) return;
  editor_ = std::make_unique<LineEditor>();
  for (const std::string& message : history_.messages()) editor_->Remember(message);
}

std::optional<std::string> MessageReader::Line(const char* prompt) {
  if (editor_) return editor_->Line(prompt);
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  return line;
}

std::optional<std::string> MessageReader::Next() {
  constexpr std::string_view kBlock = "\"\"\"";
  std::string message;
  bool block = false, more = false;
  do {
    auto line = Line(block || more ? ". " : "> ");
    if (!line && !message.empty()) return message;
    if (!line) return std::nullopt;
    if (editor_ && editor_->given_up()) return "";
    const bool bound = *line == kBlock;
    more = !block && !bound && line->ends_with('\\');
    if (more) line->back() = '\n';
    if (bound) {
      block = !block;
    } else {
      message += *line;
      if (block) message += '\n';
    }
  } while (block || more);
  if (editor_ && !message.empty()) {
    editor_->Remember(message);
    history_.Add(message);
  }
  return message;
}

bool MessageReader::Confirms(const std::string& question) {
  if (!editor_) return true;
  const auto answer = editor_->Line((question + " [y/N] ").c_str());
  return answer && (*answer == "y" || *answer == "Y" || *answer == "yes");
}

}  // namespace nibble::cli
