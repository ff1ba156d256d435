// SPDX-License-Identifier: Apache-2.0
#include "text/token_model.h"

namespace nibble {

TokenModel TokenModel::FromJson(const JsonNode& node) {
  TokenModel model;
  // roberta-style files carry no type; only BPE has merges.
  const bool untyped_bpe = !node.Find("type") && node.Find("merges");
  const auto type = untyped_bpe ? "BPE" : node.Get<std::string_view>("type");
  if (type != "BPE") node.Unsupported(fmt::format("type {} (only BPE is)", type));
  model.model_ = Bpe::FromJson(node);
  return model;
}

void TokenModel::Encode(std::string_view piece, Scratch* scratch, std::vector<int32_t>* ids) const {
  std::get<Bpe>(model_).Encode(piece, &scratch->bpe, ids);
}

const Vocabulary& TokenModel::vocabulary() const {
  return std::visit([](const auto& model) -> const Vocabulary& { return model.vocabulary(); },
                    model_);
}

}  // namespace nibble
