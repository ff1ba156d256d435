// SPDX-License-Identifier: Apache-2.0
#include "models/import/open_network.h"

#include <mutex>
#include <set>

#include "models/checkpoint/packed_checkpoint.h"
#include "models/checkpoint/tile_plane.h"
#include "models/families/family.h"
#include "models/import/config_keys.h"
#include "models/import/gguf_names.h"
#include "models/import/load_source.h"
#include "source/model_source.h"

namespace nibble {
namespace {

UnreadKeys CheckKeys(const std::string& model, const Json& config) {
  UnreadKeys unread;
  // A GGUF file's config.json is made of its keys.
  if (!IsGguf(model)) FindUnreadConfigKeys(config, unread);
  FindUnreadDocumentKeys(model, unread);
  if (!unread.refused.empty()) {
    Fail("{}: not supported: {}", model, fmt::join(unread.refused, ", "));
  }
  return unread;
}

// Once for each model: some commands open one several times.
void Deliver(const std::string& model, const UnreadKeys& unread) {
  static std::mutex mutex;
  static std::set<std::string> reported;
  const std::lock_guard lock(mutex);
  const auto tell = [&](const char* what, const std::vector<std::string>& keys) {
    const auto line = fmt::format("nibble: {}: {} {}\n", model, what, fmt::join(keys, ", "));
    if (!keys.empty() && reported.insert(line).second) Note("{}", line);
  };
  tell("answers may differ, as nothing reads", unread.answers);
  tell("not known, and left alone:", unread.unknown);
}

}  // namespace

Network OpenNetwork(const std::string& directory) {
  Network net;
  net.directory = directory;
  RequireModel(directory);
  const std::string where = DocumentPath(directory, "config.json");
  net.config_json = ParseJson(GetDocument(directory, "config.json", kMaxJsonBytes), where);
  net.config = ParseConfig(net.config_json, where);
  net.unread = CheckKeys(directory, net.config_json);
  const auto quantization = JsonFind<Json>(net.config_json, "quantization_config", where);
  net.store = OpenTensors(directory);
  if (quantization && JsonFind<std::string>(*quantization, "quant_method", where) == "nibble") {
    net.packed = true;
    LoadPacked(net, *quantization, where);
    AttachTiles(net);
    Deliver(directory, net.unread);
    return net;
  }
  std::optional<StoredCodes> codes;
  const bool mxfp4 =
      quantization && JsonFind<std::string>(*quantization, "quant_method", where) == "mxfp4";
  if (quantization && !mxfp4) {
    codes.emplace(*quantization, where);
    net.stored_codes = codes->name();
  }
  const bool gguf = IsGguf(directory);
  LoadSource(net, gguf ? GgufFamilyOf(net.config, where) : FamilyOf(net.config_json, where), codes);
  Deliver(directory, net.unread);
  return net;
}

}  // namespace nibble
