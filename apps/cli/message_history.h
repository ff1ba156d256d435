// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace nibble::cli {

// Messages that a user wrote, from session to session: a file with a JSON text a line, the newest
// last, which the user alone may read.
class MessageHistory {
 public:
  static constexpr size_t kMessages = 1000;
  static constexpr size_t kMessageBytes = 16 << 10;  // longer ones are not kept

  // nibble/messages.jsonl in the user's state directory; "" without one.
  static std::string DefaultPath();
  // "": nothing is kept. A file that cannot be read counts as empty, and so does a damaged line.
  explicit MessageHistory(std::string path);

  // Messages of earlier sessions, kMessages at most.
  const std::vector<std::string>& messages() const { return messages_; }
  // Keeps a message; says once on standard error if it cannot be kept.
  void Add(const std::string& message);

 private:
  void Load();
  void Append(const std::string& line);

  std::string path_;
  std::vector<std::string> messages_;
};

}  // namespace nibble::cli
