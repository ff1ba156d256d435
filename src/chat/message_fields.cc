// SPDX-License-Identifier: Apache-2.0
#include "chat/message_fields.h"

#include <algorithm>

#include "base/error.h"
#include "chat/answer_events.h"

namespace nibble {
namespace {

constexpr size_t kMaxFunctionNameBytes = 128;  // Anthropic's limit

}  // namespace

std::string ItemPath(const std::string& list, size_t index) {
  return fmt::format("{}[{}]", list, index);
}

void CheckObject(const Json& value, const std::string& path) {
  if (!value.is_object()) FailUsage("{}: must be an object", path);
}

void CheckList(const Json& value, size_t max, const std::string& path) {
  if (!value.is_array()) FailUsage("{}: must be a list", path);
  if (value.size() > max) FailUsage("{}: has {} items, at most {}", path, value.size(), max);
}

const Json* FindField(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::optional<std::string> FindString(const Json& object, const char* key,
                                      const std::string& path) {
  const Json* value = FindField(object, key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) FailUsage("{}.{}: must be a string", path, key);
  return value->get<std::string>();
}

const Json& GetField(const Json& object, const char* key, const std::string& path) {
  const Json* value = FindField(object, key);
  if (value == nullptr) FailUsage("{}.{}: is missing", path, key);
  return *value;
}

std::string GetString(const Json& object, const char* key, const std::string& path) {
  GetField(object, key, path);
  return *FindString(object, key, path);
}

void JoinText(std::string_view text, std::string* joined) {
  if (!joined->empty() && !text.empty()) *joined += '\n';
  *joined += text;
}

namespace {

std::string JoinedParts(const Json& content, const std::vector<std::string_view>& text_types,
                        bool names_unseen, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) FailUsage("{}: must be a string or a list of parts", path);
  std::string joined;
  ForEachObject(content, kMaxParts, path, [&](const Json& part, const std::string& at) {
    const std::string type = GetString(part, "type", at);
    const bool is_text = std::ranges::find(text_types, type) != text_types.end();
    const auto unseen = is_text || !names_unseen ? std::nullopt : UnseenPart(part);
    if (!is_text && !unseen) {
      FailUsage("{}.type: \"{}\" is not supported, only text is", at, Printable(type));
    }
    JoinText(unseen ? *unseen : GetString(part, type == "refusal" ? "refusal" : "text", at),
             &joined);
  });
  return joined;
}

}  // namespace

std::string ContentText(const Json& content, const std::vector<std::string_view>& text_types,
                        const std::string& path) {
  return JoinedParts(content, text_types, false, path);
}

std::string SaidText(const Json& content, const std::vector<std::string_view>& text_types,
                     const std::string& path) {
  return JoinedParts(content, text_types, true, path);
}

std::optional<std::string> UnseenPart(const Json& part) {
  constexpr std::pair<std::string_view, const char*> kKinds[] = {
      {"image", "image"},       {"image_url", "image"}, {"input_image", "image"},
      {"audio", "audio"},       {"audio_url", "audio"}, {"input_audio", "audio"},
      {"video", "video"},       {"video_url", "video"}, {"input_video", "video"},
      {"document", "document"}, {"file", "document"},   {"input_file", "document"},
  };
  const std::string type = part.value("type", "");
  const auto kind = std::ranges::find(kKinds, type, [](const auto& known) { return known.first; });
  if (kind == std::end(kKinds)) return std::nullopt;
  return fmt::format("[{}: not shown, this model reads text alone]", kind->second);
}

Json FunctionTool(const Json& object, const char* parameters, const std::string& path) {
  const std::string name = GetString(object, "name", path);
  if (name.empty() || name.size() > kMaxFunctionNameBytes ||
      !std::ranges::all_of(name, IsNameCharacter)) {
    FailUsage("{}.name: must be 1 to {} of letters, digits, '_', '-' and '.'", path,
              kMaxFunctionNameBytes);
  }
  const Json* schema = FindField(object, parameters);
  if (schema != nullptr && !schema->is_object()) {
    FailUsage("{}.{}: must be an object", path, parameters);
  }
  // Templates write the description and the parameters without asking whether they are there.
  const Json none = {{"type", "object"}, {"properties", Json::object()}};
  Json tool = {{"type", "function"},
               {"function",
                {{"name", name},
                 {"description", FindString(object, "description", path).value_or("")},
                 {"parameters", schema == nullptr ? none : *schema}}}};
  const Json* strict = FindField(object, "strict");
  if (strict != nullptr && *strict == true) tool["function"]["strict"] = true;
  return tool;
}

}  // namespace nibble
