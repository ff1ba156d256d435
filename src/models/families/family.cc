// SPDX-License-Identifier: Apache-2.0
#include "models/families/family.h"

#include <vector>

#include "models/families/families.h"

namespace nibble {

std::string SourceName(const ModelConfig& config, int64_t layer, Role role) {
  for (const Family* family : kFamilies) {
    if (family->model_type == config.family) return family->linear(config, layer, role);
  }
  return LinearName(layer, role);
}

const Json& TextConfig(const Json& config) {
  if (!config.is_object()) return config;
  const auto text = config.find("text_config");
  return text != config.end() && text->is_object() ? *text : config;
}

const Family& FamilyOf(const Json& config, const std::string& where) {
  const auto type = JsonGet<std::string>(TextConfig(config), "model_type", where);
  std::vector<std::string_view> known;
  for (const Family* family : kFamilies) {
    if (family->model_type == type) return *family;
    known.push_back(family->model_type);
  }
  Fail("{}: model_type \"{}\" is not supported; this build knows {}", where, type,
       fmt::join(known, ", "));
}

ModelConfig ParseConfig(const Json& config, const std::string& where) {
  return FamilyOf(config, where).parse(TextConfig(config), where);
}

}  // namespace nibble
