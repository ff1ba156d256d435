// SPDX-License-Identifier: Apache-2.0
// Fields of messages from outside. A path ("messages[2].content") names the object or list.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace nibble {

inline constexpr size_t kMaxParts = 4096;  // of one content

std::string ItemPath(const std::string& list, size_t index);

void CheckObject(const Json& value, const std::string& path);
// Throws unless the value is an array of at most `most` items.
void CheckList(const Json& value, size_t max, const std::string& path);

// Calls visit(item, its path) for each object of a list.
template <typename Visit>
void ForEachObject(const Json& list, size_t max, const std::string& path, const Visit& visit) {
  CheckList(list, max, path);
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string at = ItemPath(path, i);
    CheckObject(list[i], at);
    visit(list[i], at);
  }
}

// nullptr where the field is absent or null.
const Json* FindField(const Json& object, const char* key);
std::optional<std::string> FindString(const Json& object, const char* key, const std::string& path);
std::string GetString(const Json& object, const char* key, const std::string& path);
const Json& GetField(const Json& object, const char* key, const std::string& path);

// The text of a content: a string, or parts of the types in `text_types` (with a field "text"),
// which are joined by newlines. Any other part is refused by the name of its type.
std::string ContentText(const Json& content, const std::vector<std::string_view>& text_types,
                        const std::string& path);
// Like ContentText, for contents of users and tools: pictures, sounds and documents are named in
// their place, since one of them in a history would otherwise end a conversation for good.
std::string SaidText(const Json& content, const std::vector<std::string_view>& text_types,
                     const std::string& path);
// The words that stand for a picture, a sound or a document; nothing for other types.
std::optional<std::string> UnseenPart(const Json& part);

// Adds `text` to *joined, on a line of its own.
void JoinText(std::string_view text, std::string* joined);

// {type: "function", function: {name, description, parameters}} from an object of any API.
// `parameters` is the name of its field with the schema.
Json FunctionTool(const Json& object, const char* parameters, const std::string& path);

}  // namespace nibble
