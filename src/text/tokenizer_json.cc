// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_json.h"

#include <algorithm>
#include <vector>

namespace nibble {

std::optional<JsonNode> JsonNode::Find(std::string_view key) const {
  simdjson::dom::element value;
  if (As<simdjson::dom::object>()[key].get(value) != simdjson::SUCCESS || value.is_null()) {
    return std::nullopt;
  }
  return JsonNode(value, file_, fmt::format("{}{}{}", path_, path_.empty() ? "" : ".", key));
}

JsonNode JsonNode::Get(std::string_view key) const {
  const auto node = Find(key);
  if (!node) Fail("{}: field \"{}\" is missing", where(), key);
  return *node;
}

void JsonNode::ForEach(const std::function<void(const JsonNode&)>& item) const {
  size_t index = 0;
  for (const simdjson::dom::element value : As<simdjson::dom::array>()) {
    item(JsonNode(value, file_, fmt::format("{}[{}]", path_, index++)));
  }
}

void JsonNode::ForEachComponent(
    std::string_view list_key,
    const std::function<void(const JsonNode&, std::string_view type)>& component,
    size_t* count) const {
  if (++*count > kMaxComponents) Fail("{}: more than {} components", where(), kMaxComponents);
  const auto type = Get<std::string_view>("type");
  if (type != "Sequence") return component(*this, type);
  AllowKeys({"type", list_key});
  Get(list_key).ForEach(
      [&](const JsonNode& item) { item.ForEachComponent(list_key, component, count); });
}

void JsonNode::AllowKeys(std::initializer_list<std::string_view> keys) const {
  std::vector<std::string_view> seen;
  for (const auto& field : As<simdjson::dom::object>()) {
    if (std::find(keys.begin(), keys.end(), field.key) == keys.end()) {
      Unsupported(fmt::format("field \"{}\"", field.key));
    }
    if (std::find(seen.begin(), seen.end(), field.key) != seen.end()) {
      Fail("{}: field \"{}\" stands twice", where(), field.key);
    }
    seen.push_back(field.key);
  }
}

}  // namespace nibble
