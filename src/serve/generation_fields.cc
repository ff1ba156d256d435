// SPDX-License-Identifier: Apache-2.0
#include "serve/generation_fields.h"

#include <charconv>
#include <random>

#include "grammar/grammar.h"

namespace nibble::serve {
namespace {

constexpr size_t kMaxStops = 16, kMaxStopBytes = 256, kMaxStopIds = 1024, kMaxBiases = 1024;
constexpr double kMaxBias = 100;

template <double Sampling::*Member>
void ReadNumber(const Json& value, const std::string& name, GenerationFields& f) {
  f.request.sampling.*Member = JsonAs<double>(value, name);
  try {
    CheckSampling(f.request.sampling);  // has the ranges
  } catch (const Error& error) {
    BadField(name, "{}: {}", name, error.what());
  }
}

// OpenAI's range begins with 0: the likeliest token alone.
void ReadTopP(const Json& value, const std::string& name, GenerationFields& f) {
  const double number = JsonAs<double>(value, name);
  const bool min = number >= 0 && number < Sampling::kMinTopP;
  ReadNumber<&Sampling::top_p>(min ? Json(Sampling::kMinTopP) : value, name, f);
}

// Clients write both 0 and -1 for "all".
void ReadTopK(const Json& value, const std::string& name, GenerationFields& f) {
  f.request.sampling.top_k =
      std::max<int64_t>(0, ValueIn(value, name, int64_t{-1}, Sampling::kMaxTopK));
}

void ReadSeed(const Json& value, const std::string& name, GenerationFields& f) {
  const bool positive = value.is_number_unsigned();
  f.request.seed = positive ? JsonAs<uint64_t>(value, name)
                            : static_cast<uint64_t>(JsonAs<int64_t>(value, name));
}

void ReadStopIds(const Json& value, const std::string& name, GenerationFields& f) {
  f.more_stop_ids = JsonAs<std::vector<int32_t>>(value, name);
  if (f.more_stop_ids.size() > kMaxStopIds) BadField(name, "more than {} stop ids", kMaxStopIds);
}

void ReadBias(const Json& value, const std::string& name, GenerationFields& f) {
  if (!value.is_object()) BadField(name, "{} must be an object of token ids", name);
  if (value.size() > kMaxBiases) BadField(name, "more than {} biases", kMaxBiases);
  for (const auto& [key, bias] : value.items()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0) {
      BadField(name, "{}: \"{}\" is no token id", name, Printable(key));
    }
    const std::string what = name + "." + key;
    f.request.logit_bias.emplace_back(id,
                                      static_cast<float>(ValueIn(bias, what, -kMaxBias, kMaxBias)));
  }
}

// Makes a reader of GenerationRequest one of GenerationFields.
template <void (*kRead)(const Json&, const std::string&, GenerationRequest&)>
void OfRequest(const Json& value, const std::string& name, GenerationFields& f) {
  kRead(value, name, f.request);
}

void ReadBestOf(const Json& value, const std::string& name, GenerationFields& f) {
  if (ValueIn(value, name, 1, kMaxAnswers) != f.request.n) {
    BadField(name, "best_of other than n is not supported");
  }
}

void ReadStops(const Json& value, const std::string& name, GenerationFields& f) {
  f.request.stops = StopTexts(value, name);
}

void ReadSkipSpecial(const Json& value, const std::string& name, GenerationFields& f) {
  f.request.special_text = !JsonAs<bool>(value, name);
}

void ReadFormat(const Json& value, const std::string& name, GenerationFields& f) {
  f.grammar = FormatGrammar(value, name);
  f.grammar_field = name;
}

// kStrictSchema: keywords of a schema that cannot be enforced are refused.
constexpr char kJsonObject[] = "json_object", kJsonSchema[] = "json_schema",
               kStrictSchema[] = "strict_schema", kRegex[] = "regex", kGrammar[] = "grammar";

template <const auto& kKind>
void ReadGuide(const Json& value, const std::string& name, GenerationFields& f) {
  if (std::string_view(kKind) != kStrictSchema) JsonAs<std::string>(value, name);
  f.grammar = {{kKind, value}};
  f.grammar_field = name;
  f.grammar_of_calls = true;
}

constexpr Field<GenerationFields> kFields[] = {
    {"temperature", ReadNumber<&Sampling::temperature>},
    {"top_p", ReadTopP},
    {"min_p", ReadNumber<&Sampling::min_p>},
    {"typical_p", ReadNumber<&Sampling::typical>},
    {"presence_penalty", ReadNumber<&Sampling::presence>},
    {"frequency_penalty", ReadNumber<&Sampling::frequency>},
    {"repetition_penalty", ReadNumber<&Sampling::repetition>},
    {"top_k", ReadTopK},
    {"seed", ReadSeed},
    {"n", OfRequest<SetIn<&GenerationRequest::n, 1, kMaxAnswers, GenerationRequest>>},
    {"best_of", ReadBestOf},
    {"min_tokens",
     OfRequest<SetIn<&GenerationRequest::min_tokens, 0, kMaxTokens, GenerationRequest>>},
    {"stop", ReadStops},
    {"stop_token_ids", ReadStopIds},
    {"include_stop_str_in_output",
     OfRequest<Set<&GenerationRequest::include_stop, GenerationRequest>>},
    {"ignore_eos", Set<&GenerationFields::ignore_eos>},
    {"skip_special_tokens", ReadSkipSpecial},
    {"logit_bias", ReadBias},
    {"response_format", ReadFormat},
    {"guided_regex", ReadGuide<kRegex>},
    {"guided_grammar", ReadGuide<kGrammar>},
    {"guided_json", ReadGuide<kStrictSchema>},
};

}  // namespace

GenerationFields ReadGenerationFields(const Json& body, const GenerationConfig& config,
                                      int64_t vocab_size) {
  GenerationFields f;
  f.request.sampling = config.ForAnswers();
  f.request.seed = std::random_device()();
  ReadFields(body, kFields, f);
  if (f.ignore_eos && !f.grammar.is_null()) {
    BadField("ignore_eos", "ignore_eos: beside {} an answer ends where its text may",
             f.grammar_field);
  }
  if (!f.ignore_eos) f.request.stop_ids = config.stop_ids;
  auto& stop_ids = f.request.stop_ids;
  stop_ids.insert(stop_ids.end(), f.more_stop_ids.begin(), f.more_stop_ids.end());
  for (const int32_t id : stop_ids) {
    if (id < 0 || id >= vocab_size) BadField("stop_token_ids", "there is no token {}", id);
  }
  for (const auto& [id, unused] : f.request.logit_bias) {
    if (id >= vocab_size) BadField("logit_bias", "there is no token {}", id);
  }
  return f;
}

grammar::Expr GrammarTexts(GrammarBuilder* builder, const Json& grammar, SchemaNotes* notes) {
  const std::string& kind = grammar.begin().key();
  const Json& value = grammar.begin().value();
  if (kind == kRegex) return grammar::Regex(builder, value.get<std::string>(), kRegex);
  if (kind == kGrammar) return grammar::TextRules(builder, value.get<std::string>());
  if (kind == kJsonObject) return grammar::SpacedJson(builder, grammar::JsonObject(builder));
  return grammar::SpacedJson(
      builder, grammar::JsonSchema(builder, value, kind == kStrictSchema ? nullptr : notes));
}

std::shared_ptr<const Grammar> MakeGrammar(GrammarCache& known, const Json& grammar,
                                           const std::string& field) {
  if (grammar.is_null()) return nullptr;
  const std::string& kind = grammar.begin().key();
  const bool is_schema = kind == kJsonSchema || kind == kStrictSchema;
  const auto make = [&] {
    GrammarBuilder builder(is_schema ? "schema" : kind);
    SchemaNotes notes;
    const grammar::Expr texts = GrammarTexts(&builder, grammar, &notes);
    for (const std::string& note : notes) {
      Note("nibble: an answer is not held to this part of its schema: {}\n", Printable(note));
    }
    return builder.Compile(texts);
  };
  try {
    return known.Get(grammar.dump(), make);
  } catch (const Error& error) {
    throw ApiError(400, error.what(), field);
  }
}

std::vector<std::string> StopTexts(const Json& value, const std::string& name) {
  std::vector<std::string> stops;
  if (value.is_string()) {
    stops.push_back(value.get<std::string>());
  } else {
    stops = JsonAs<std::vector<std::string>>(value, name);
  }
  if (stops.size() > kMaxStops) BadField(name, "more than {} stop texts", kMaxStops);
  for (const std::string& stop : stops) {
    if (stop.empty()) BadField(name, "a stop text is empty");
    if (stop.size() > kMaxStopBytes) BadField(name, "a stop text of over {} bytes", kMaxStopBytes);
  }
  return stops;
}

Json FormatGrammar(const Json& value, const std::string& name) {
  const auto type = JsonGet<std::string>(value, "type", name);
  if (type == "text") return {};
  if (type == kJsonObject) return {{kJsonObject, true}};
  if (type == kRegex) return {{kRegex, JsonGet<std::string>(value, "pattern", name)}};
  if (type == kGrammar) return {{kGrammar, JsonGet<std::string>(value, "grammar", name)}};
  if (type != kJsonSchema) {
    BadField(name, "{}.type = \"{}\"; there are text, json_object, json_schema, regex and grammar",
             name, Printable(type));
  }
  // The chat API nests the schema once more than /v1/responses.
  const Json& holder = value.contains("json_schema") ? value["json_schema"] : value;
  const std::string at = name + ".json_schema";
  const bool strict = JsonFind<bool>(holder, "strict", at).value_or(false);
  return {{strict ? kStrictSchema : kJsonSchema, JsonGet<Json>(holder, "schema", at)}};
}

}  // namespace nibble::serve
