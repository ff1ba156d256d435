// SPDX-License-Identifier: Apache-2.0
#include "text/token_model.h"

namespace nibble {

TokenModel TokenModel::FromJson(const JsonNode& node) {
  TokenModel model;
  // roberta-style files carry no type; only BPE has merges.
  const bool untyped_bpe = !node.Find("type") && node.Find("merges");
  const auto type = untyped_bpe ? "BPE" : node.Get<std::string_view>("type");
  if (type == "BPE") {
    model.model_ = Bpe::FromJson(node);
  } else if (type == "Unigram") {
    model.model_ = Unigram::FromJson(node);
  } else {
    node.Unsupported(fmt::format("type {} (BPE and Unigram are)", type));
  }
  return model;
}

void TokenModel::Encode(std::string_view piece, Work* work, Scratch* scratch,
                        std::vector<int32_t>* ids) const {
  if (const auto* bpe = std::get_if<Bpe>(&model_)) {
    bpe->Encode(piece, work, &scratch->bpe, ids);
  } else {
    std::get<Unigram>(model_).Encode(piece, work, &scratch->unigram, ids);
  }
}

const Vocabulary& TokenModel::vocabulary() const {
  return std::visit([](const auto& model) -> const Vocabulary& { return model.vocabulary(); },
                    model_);
}

}  // namespace nibble
