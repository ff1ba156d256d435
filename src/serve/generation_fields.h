// SPDX-License-Identifier: Apache-2.0
// How requests of all APIs say what to sample, where to stop and what the text must be.
#pragma once

#include "engine/generation_config.h"
#include "grammar/grammar.h"
#include "schedule/request.h"
#include "serve/fields.h"
#include "serve/grammar_cache.h"

namespace nibble::serve {

inline constexpr int kMaxAnswers = 16, kMaxLogprobs = 20;
inline constexpr int64_t kMaxTokens = int64_t{1}
                                      << 32;  // a request can ask for; the context ends it

// What one reads of a body into a request, beside what the request cannot say itself.
struct GenerationFields {
  GenerationRequest request;
  bool ignore_eos = false;
  std::vector<int32_t> more_stop_ids;
  std::string grammar_field;      // that `grammar` came from
  bool grammar_of_calls = false;  // whether it is about calls, too (guided_json)
  // {"json_object": true}, {"json_schema": ..}, {"strict_schema": ..}, {"regex": ..} or
  // {"grammar": ..}
  Json grammar;
};

// temperature, top_p, ..., stop, n, logit_bias, response_format. What a body does not say is as
// GenerationConfig::ForAnswers has it.
GenerationFields ReadGenerationFields(const Json& body, const GenerationConfig& config,
                                      int64_t vocab_size);
// The texts of `grammar`. What of a schema that is not strict cannot be held is left out and noted.
grammar::Expr GrammarTexts(GrammarBuilder* builder, const Json& grammar, SchemaNotes* notes);
// Compiles `grammar`, its notes in the log, unless it is known; null if there is none.
std::shared_ptr<const Grammar> MakeGrammar(GrammarCache& known, const Json& grammar,
                                           const std::string& field);

// A text, or a list of at most 16, each of 1 to 256 bytes.
std::vector<std::string> StopTexts(const Json& value, const std::string& name);

// response_format, or the `format` of /v1/responses, as `grammar` above; null for text.
Json FormatGrammar(const Json& value, const std::string& name);

}  // namespace nibble::serve
