// SPDX-License-Identifier: Apache-2.0
// The fields, common to all APIs, that say how to sample, where to stop and what form the text must
// have.
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

// A request with the fields of a body, and those of its fields that GenerationRequest has no place
// for.
struct GenerationFields {
  GenerationRequest request;
  bool ignore_eos = false;
  std::vector<int32_t> more_stop_ids;
  std::string grammar_field;      // the field that `grammar` came from
  bool grammar_of_calls = false;  // `grammar` covers calls, too (guided_json)
  // {"json_object": true}, {"json_schema": ..}, {"strict_schema": ..}, {"regex": ..} or
  // {"grammar": ..}
  Json grammar;
};

// temperature, top_p, ..., stop, n, logit_bias, response_format. Fields that the body lacks are as
// GenerationConfig::ForAnswers has them.
GenerationFields ReadGenerationFields(const Json& body, const GenerationConfig& config,
                                      int64_t vocab_size);
// The texts that `grammar` allows. Keywords of a schema that cannot be enforced are left out and
// noted, unless it is strict.
grammar::Expr GrammarTexts(GrammarBuilder* builder, const Json& grammar, SchemaNotes* notes);
// Compiles `grammar`, with its notes in the log, or takes it from `known`; null if `grammar` is
// null.
std::shared_ptr<const Grammar> MakeGrammar(GrammarCache& known, const Json& grammar,
                                           const std::string& field);

// A text, or a list of at most 16, each of 1 to 256 bytes.
std::vector<std::string> StopTexts(const Json& value, const std::string& name);

// response_format, or the `format` of /v1/responses, as `grammar` above; null for text.
Json FormatGrammar(const Json& value, const std::string& name);

}  // namespace nibble::serve
