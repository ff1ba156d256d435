// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include "base/file.h"

namespace nibble {

Json ParseJson(std::string_view text, const std::string& where) {
  constexpr int kMaxDepth = 64;
  constexpr size_t kMaxKeys = 10000;        // per object; ordered_json looks keys up one by one
  std::vector<std::set<std::string>> keys;  // keys seen in each open object
  // The callback runs while parsing, so a bomb is refused before it is built.
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    using Event = Json::parse_event_t;
    if (depth > kMaxDepth) Fail("{}: JSON nested deeper than {} levels", where, kMaxDepth);
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (keys.back().size() >= kMaxKeys)
        Fail("{}: a JSON object of over {} keys", where, kMaxKeys);
      if (!keys.back().insert(key).second) Fail("{}: duplicate JSON key \"{}\"", where, key);
    }
    return true;
  };
  try {
    return Json::parse(text, watch);
  } catch (const nlohmann::json::exception& e) {
    Fail("{}: not valid JSON ({})", where, e.what());
  }
}

void RefuseUnknownFields(const Json& json, const std::set<std::string>& known,
                         const std::string& where) {
  if (!json.is_object()) Fail("{} must be a JSON object", where);
  for (const auto& item : json.items()) {
    if (!known.contains(item.key())) {
      Fail("{}: unknown field \"{}\"; a newer Nibble may have written it", where, item.key());
    }
  }
}

Json ReadJsonFile(const std::string& path, uint64_t max_bytes) {
  return ParseJson(ReadFile(path, max_bytes), path);
}

}  // namespace nibble
