// SPDX-License-Identifier: Apache-2.0
// POST /v1/embeddings: the last hidden states of a text, pooled as the model says. Networks that
// were rotated may give rotated vectors, with the same products among each other (Model::States).
#include <cstring>

#include "io/base64.h"
#include "serve/fields.h"
#include "serve/responder.h"

namespace nibble::serve {
namespace {

constexpr size_t kMaxInputs = 1024;

class EmbeddingResponder : public Responder {
 public:
  EmbeddingResponder(Call& call, size_t inputs, bool base64)
      : Responder(call, false), base64_(base64), data_(inputs) {}

 private:
  void OnDelta(size_t input, Delta& d) override {
    if (!d.end) return;
    Json vector = d.embedding;
    if (base64_) {
      std::string bytes(d.embedding.size() * sizeof(float), '\0');
      std::memcpy(bytes.data(), d.embedding.data(), bytes.size());  // little-endian, as we are
      vector = EncodeBase64(bytes);
    }
    data_[input] = {{"object", "embedding"}, {"index", input}, {"embedding", std::move(vector)}};
  }

  void OnEnd() override {
    Reply({{"object", "list"},
           {"data", data_},
           {"model", call_->service.options().name},
           {"usage", {{"prompt_tokens", usage_.prompt}, {"total_tokens", usage_.prompt}}}});
  }

  const bool base64_;
  std::vector<Json> data_;
};

}  // namespace

void Embeddings(Call& call) {
  RequireModel(call);
  const Pooling& pooling = call.service.pooling();
  if (!pooling.problem.empty()) throw ApiError(400, pooling.problem);
  const Tokenizer& tokenizer = call.service.tokenizer();
  const auto format = JsonFind<std::string>(call.body, "encoding_format", "body").value_or("float");
  if (format != "float" && format != "base64") {
    BadField("encoding_format", "encoding_format must be float or base64");
  }
  const int64_t hidden = call.service.model().config().hidden_size;
  if (JsonFind<int64_t>(call.body, "dimensions", "body").value_or(hidden) != hidden) {
    BadField("dimensions", "this model's vectors have {} dimensions", hidden);
  }
  if (!call.body.contains("input")) BadField("input", "input is missing");
  const Json& input = call.body["input"];
  std::vector<GenerationRequest> requests;
  const auto add = [&](const Json& item) {
    const std::vector<int32_t> ids = item.is_string() ? tokenizer.Encode(item.get<std::string>())
                                                      : JsonAs<std::vector<int32_t>>(item, "input");
    if (ids.empty()) BadField("input", "an input has no token");
    requests.push_back({.prompt = ids, .max_tokens = 0, .pooling = pooling});
  };
  const bool list = input.is_array() && !input.empty() && !input[0].is_number();
  if (list && input.size() > kMaxInputs) BadField("input", "more than {} inputs", kMaxInputs);
  try {
    if (list) {
      for (const Json& item : input) add(item);
    } else {
      add(input);
    }
  } catch (const Error& error) {
    BadField("input", "{}", error.what());
  }
  std::make_shared<EmbeddingResponder>(call, requests.size(), format == "base64")
      ->Start(std::move(requests), "input");
}

}  // namespace nibble::serve
