// SPDX-License-Identifier: Apache-2.0
#include "eval/json_lines.h"

#include "base/file.h"

namespace nibble {

constexpr int64_t kMaxLines = 1'000'000;  // each takes some hundred bytes besides its text

void ReadJsonLines(const std::string& path,
                   const std::function<bool(const Json& object, const std::string& where)>& visit) {
  const std::string text = ReadFile(path, uint64_t{1} << 30);
  int64_t line = 1;
  for (size_t begin = 0; begin < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (line > kMaxLines) Fail("{}: over {} lines", path, kMaxLines);
    const std::string where = fmt::format("{}:{}", path, line);
    const Json object = ParseJson(std::string_view(text).substr(begin, end - begin), where);
    if (!object.is_object()) Fail("{}: not a JSON object", where);
    if (!visit(object, where)) return;
    begin = end + 1;
  }
}

}  // namespace nibble
