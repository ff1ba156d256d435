// SPDX-License-Identifier: Apache-2.0
#include "text/scored_vocabulary.h"

#include <cmath>

namespace nibble {

ScoredVocabulary ScoredVocabulary::FromJson(const JsonNode& model) {
  ScoredVocabulary result;
  const JsonNode list = model.Get("vocab");
  const auto items = list.As<simdjson::dom::array>();
  result.vocabulary = Vocabulary(items.size());
  for (const simdjson::dom::element item : items) {
    simdjson::dom::array pair;
    std::string_view token;
    double score = 0;
    if (item.get(pair) != simdjson::SUCCESS || pair.size() != 2 ||
        pair.at(0).get(token) != simdjson::SUCCESS ||
        pair.at(1).get<double>().get(score) != simdjson::SUCCESS || !std::isfinite(score)) {
      Fail("{}[{}] must be [token, score]", list.where(), result.scores.size());
    }
    result.vocabulary.Add(token, static_cast<int64_t>(result.scores.size()), list);
    result.scores.push_back(score);
  }
  if (result.scores.empty()) Fail("{} is empty", list.where());
  const auto types = model.Find("piece_types");
  if (!types) return result;
  types->ForEach([&](const JsonNode& item) {
    const auto type = item.As<int64_t>();
    if (type < kNormal || type > kByte) Fail("{} {} is not known", item.where(), type);
    result.types.push_back(static_cast<Type>(type));
  });
  if (result.types.size() != result.scores.size()) {
    Fail("{} has {} items for {} tokens", types->where(), result.types.size(),
         result.scores.size());
  }
  return result;
}

}  // namespace nibble
