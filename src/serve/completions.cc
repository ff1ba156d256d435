// SPDX-License-Identifier: Apache-2.0
// POST /v1/completions: texts behind prompts, with the logprobs that evaluations ask for.
#include <algorithm>

#include "base/utf8.h"
#include "serve/generation_fields.h"
#include "serve/responder.h"

namespace nibble::serve {
namespace {

constexpr size_t kMaxPrompts = 1024;

struct CompletionFields {
  std::vector<std::vector<int32_t>> prompts;
  Json prompt;
  int64_t max_tokens = 16;
  bool echo = false, stream = false, usage = false, continuous = false, add_special = true;
  bool return_ids = false;
  std::optional<int> logprobs, prompt_logprobs;
  int64_t truncate = -1;
};

// Must follow "stream" in kFields, since it needs the value of "stream".
void ReadStreamOptions(const Json& value, const std::string& name, CompletionFields& f) {
  if (!f.stream) BadField(name, "stream_options needs stream");
  f.usage = JsonFind<bool>(value, "include_usage", name).value_or(false);
  f.continuous = JsonFind<bool>(value, "continuous_usage_stats", name).value_or(false);
}

void ReadSuffix(const Json& value, const std::string& name, CompletionFields&) {
  if (!JsonAs<std::string>(value, name).empty()) BadField(name, "suffix is not supported");
}

constexpr Field<CompletionFields> kFields[] = {
    {"prompt", Set<&CompletionFields::prompt>},
    {"max_tokens", SetIn<&CompletionFields::max_tokens, 0, kMaxTokens>},
    {"echo", Set<&CompletionFields::echo>},
    {"stream", Set<&CompletionFields::stream>},
    {"add_special_tokens", Set<&CompletionFields::add_special>},
    {"return_token_ids", Set<&CompletionFields::return_ids>},
    {"logprobs", SetIn<&CompletionFields::logprobs, 0, kMaxLogprobs>},
    {"prompt_logprobs", SetIn<&CompletionFields::prompt_logprobs, 0, kMaxLogprobs>},
    {"truncate_prompt_tokens", SetIn<&CompletionFields::truncate, 1, kMaxTokens>},
    {"stream_options", ReadStreamOptions},
    {"suffix", ReadSuffix},
};

// The prompt may be a text, a list of texts, token ids or a list of lists of ids.
void ReadPrompts(const Tokenizer& tokenizer, CompletionFields& f) {
  const auto encode = [&](const Json& text) {
    f.prompts.push_back(tokenizer.Encode(JsonAs<std::string>(text, "prompt"), f.add_special));
  };
  const Json& p = f.prompt;
  if (p.is_string()) {
    encode(p);
  } else if (!p.is_array() || p.empty()) {
    BadField("prompt", "prompt must be a text, a list of texts, token ids or a list of those");
  } else if (p[0].is_number()) {
    f.prompts.push_back(JsonAs<std::vector<int32_t>>(p, "prompt"));
  } else {
    if (p.size() > kMaxPrompts) BadField("prompt", "more than {} prompts", kMaxPrompts);
    for (const Json& item : p) {
      if (item.is_string()) {
        encode(item);
      } else {
        f.prompts.push_back(JsonAs<std::vector<int32_t>>(item, "prompt[]"));
      }
    }
  }
  for (std::vector<int32_t>& ids : f.prompts) {
    const auto keep = static_cast<size_t>(f.truncate);
    if (f.truncate > 0 && ids.size() > keep) {
      ids.erase(ids.begin(), ids.end() - f.truncate);
    }
    if (ids.empty()) BadField("prompt", "a prompt has no token");
  }
}

class CompletionResponder : public Responder {
 public:
  CompletionResponder(Call& call, CompletionFields fields, int n)
      : Responder(call, fields.stream), fields_(std::move(fields)), n_(static_cast<size_t>(n)) {
    choices_.resize(fields_.prompts.size() * n_);
    prompt_logprobs_.resize(fields_.prompts.size());
  }

 private:
  struct Choice {
    std::string text;
    Json tokens = Json::array(), token_logprobs = Json::array(), top = Json::array(),
         offsets = Json::array();
    std::vector<int32_t> ids;
    int64_t characters = 0;  // in the tokens so far
    bool begun = false;
    Json finish, stop;
  };

  const Tokenizer& tokenizer() const { return call_->service.tokenizer(); }

  void AddLogprob(Choice& c, const TokenLogprob& l, bool known) const {
    const std::string text = TokenText(tokenizer(), l.id);
    c.tokens.push_back(text);
    c.offsets.push_back(c.characters);
    c.characters += std::ranges::count_if(text, [](char b) { return !IsUtf8Continuation(b); });
    c.token_logprobs.push_back(known ? Json(l.logprob) : Json());
    if (!known || fields_.logprobs.value_or(0) == 0) {
      c.top.push_back(nullptr);
      return;
    }
    Json top = Json::object();
    const auto add = [&](int32_t id, double logprob) {  // of equal texts the likeliest stays
      const std::string key = TokenText(tokenizer(), id);
      if (!top.contains(key)) top[key] = logprob;
    };
    for (const auto& [id, logprob] : l.top) add(id, logprob);
    add(l.id, l.logprob);
    c.top.push_back(std::move(top));
  }

  // Writes the prompt in front of the first token that follows it.
  void Echo(size_t prompt, Choice& c) {
    c.begun = true;
    if (!fields_.echo) return;
    const std::vector<int32_t>& ids = fields_.prompts[prompt];
    c.text += tokenizer().Decode(ids, true);
    if (!fields_.logprobs) return;
    AddLogprob(c, {.id = ids[0]}, false);
    for (const TokenLogprob& l : prompt_logprobs_[prompt]) AddLogprob(c, l, true);
  }

  void OnDelta(size_t prompt, Delta& d) override {
    auto& reported = prompt_logprobs_[prompt];
    for (TokenLogprob& l : d.prompt_logprobs) reported.push_back(std::move(l));
    if (d.ids.empty() && !d.end) return;  // the prompt goes on
    const size_t index = prompt * n_ + static_cast<size_t>(d.index);
    Choice& c = choices_[index];
    if (!c.begun) Echo(prompt, c);
    c.text += d.text;
    c.ids.insert(c.ids.end(), d.ids.begin(), d.ids.end());
    if (fields_.logprobs) {
      for (const TokenLogprob& l : d.logprobs) AddLogprob(c, l, true);
    }
    if (d.end) {
      c.finish = d.end == End::kStop ? "stop" : "length";
      if (!d.stop.empty()) c.stop = d.stop;
    }
    if (!stream_ || (c.text.empty() && c.tokens.empty() && !d.end)) return;
    Json chunk = Head();
    chunk["choices"] = Json::array({ChoiceJson(index, prompt, c)});
    if (fields_.usage) chunk["usage"] = fields_.continuous ? UsageJson() : Json();
    WriteEvent(chunk);
    c.text.clear();
    c.ids.clear();
    for (Json* list : {&c.tokens, &c.token_logprobs, &c.top, &c.offsets}) list->clear();
  }

  Json ChoiceJson(size_t index, size_t prompt, const Choice& c) const {
    Json choice = {{"index", index}, {"text", c.text}, {"logprobs", nullptr}};
    if (fields_.logprobs) {
      choice["logprobs"] = {{"tokens", c.tokens},
                            {"token_logprobs", c.token_logprobs},
                            {"top_logprobs", c.top},
                            {"text_offset", c.offsets}};
    }
    choice["finish_reason"] = c.finish;
    choice["stop_reason"] = c.stop;
    if (fields_.return_ids) choice["token_ids"] = c.ids;
    if (!stream_ && fields_.prompt_logprobs) choice["prompt_logprobs"] = PromptLogprobs(prompt);
    return choice;
  }

  // The prompt's logprobs in vLLM's form: null, then for each token {"id": {"logprob",
  // "decoded_token"}} of itself and of the likeliest ones.
  Json PromptLogprobs(size_t prompt) const {
    Json list = Json::array({nullptr});
    for (const TokenLogprob& l : prompt_logprobs_[prompt]) {
      Json entry = Json::object();
      const auto add = [&](int32_t id, double logprob) {
        entry[std::to_string(id)] = {{"logprob", logprob},
                                     {"decoded_token", TokenText(tokenizer(), id)}};
      };
      add(l.id, l.logprob);
      for (const auto& [id, logprob] : l.top) add(id, logprob);
      list.push_back(std::move(entry));
    }
    return list;
  }

  Json Head() const {
    return {{"id", id_},
            {"object", "text_completion"},
            {"created", created_},
            {"model", call_->service.options().name}};
  }

  Json UsageJson() const {
    return {{"prompt_tokens", usage_.prompt},
            {"completion_tokens", usage_.written},
            {"total_tokens", usage_.prompt + usage_.written},
            {"prompt_tokens_details", {{"cached_tokens", usage_.cached}}}};
  }

  void OnEnd() override {
    Json answer = Head();
    if (stream_) {
      if (fields_.usage) {
        answer["choices"] = Json::array();
        answer["usage"] = UsageJson();
        WriteEvent(answer);
      }
      return Write("data: [DONE]\n\n");
    }
    answer["choices"] = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      answer["choices"].push_back(ChoiceJson(i, i / n_, choices_[i]));
    }
    answer["usage"] = UsageJson();
    Reply(answer);
  }

  const CompletionFields fields_;
  const size_t n_;
  const std::string id_ = NewId("cmpl-");
  const int64_t created_ = std::time(nullptr);
  std::vector<Choice> choices_;
  std::vector<std::vector<TokenLogprob>> prompt_logprobs_;
};

}  // namespace

void Completions(Call& call) {
  RequireModel(call);
  Service& service = call.service;
  CompletionFields fields;
  ReadFields(call.body, kFields, fields);
  try {
    ReadPrompts(service.tokenizer(), fields);
  } catch (const Error& error) {
    BadField("prompt", "{}", error.what());
  }
  if (fields.stream && fields.prompt_logprobs) {
    BadField("prompt_logprobs", "prompt_logprobs cannot be streamed");
  }
  GenerationFields generation = ReadGenerationFields(call.body, service.generation_config(),
                                                     service.model().config().vocab_size);
  GenerationRequest& request = generation.request;
  request.grammar = MakeGrammar(service.grammars(), generation.grammar, generation.grammar_field);
  request.max_tokens = fields.max_tokens;
  request.logprobs = fields.logprobs;
  request.prompt_logprobs = fields.prompt_logprobs;
  if (fields.echo && fields.logprobs) {
    request.prompt_logprobs = std::max(*fields.logprobs, fields.prompt_logprobs.value_or(0));
  }
  std::vector<GenerationRequest> requests;
  for (const std::vector<int32_t>& prompt : fields.prompts) {
    requests.push_back(request);
    requests.back().prompt = prompt;
  }
  std::make_shared<CompletionResponder>(call, std::move(fields), request.n)
      ->Start(std::move(requests), "prompt");
}

}  // namespace nibble::serve
