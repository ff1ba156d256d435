// SPDX-License-Identifier: Apache-2.0
// The service of `nibble serve`: the APIs of OpenAI and Anthropic, as their clients and those of
// vLLM and llama-server use them, over one model and its scheduler.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chat/answer_format.h"
#include "engine/generation_config.h"
#include "engine/pooling.h"
#include "grammar/token_bytes.h"
#include "http/server.h"
#include "schedule/scheduler.h"
#include "serve/api_error.h"
#include "serve/grammar_cache.h"
#include "serve/token_budget.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace nibble::serve {

struct ServiceOptions {
  std::string name;               // of the model, as clients say it
  std::vector<std::string> keys;  // one of these opens every route; empty: no key is asked for
  int64_t key_tokens = 0;         // that a key may use in a minute (TokenBudget); 0: any
  // Only names of this machine are taken for a Host, so that a page of another name in the user's
  // browser cannot read answers (DNS rebinding).
  bool local = true;
  bool log = true;              // a line of JSON for each request, on standard error
  bool vllm_reasoning = false;  // `reasoning` instead of `reasoning_content`
};

struct Call;

class Service {
 public:
  // `directory` has the model's documents. The model must outlive the service.
  Service(Model& model, const std::string& directory, const SchedulerOptions& scheduling,
          ServiceOptions options);

  // Answers a request now or, from the scheduler's steps, later (http::Handler).
  void Handle(const std::shared_ptr<http::Exchange>& exchange);
  // The body of an error of the HTTP layer, which knows no API: in OpenAI's form.
  static std::string ErrorBody(int status, std::string_view message);

  Scheduler& scheduler() { return scheduler_; }
  Model& model() const { return model_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  const std::optional<ChatTemplate>& chat_template() const { return template_; }
  const AnswerFormat& answer_format() const { return answer_format_; }
  const GenerationConfig& generation_config() const { return generation_config_; }
  const Pooling& pooling() const { return pooling_; }
  const ServiceOptions& options() const { return options_; }
  const std::string& directory() const { return directory_; }
  int64_t created() const { return created_; }
  GrammarCache& grammars() const { return grammars_; }
  TokenBudget& budget() { return budget_; }

 private:
  void Answer(Call& call);
  void Identify(Call& call) const;  // throws where no key fits

  Model& model_;
  const std::string directory_;
  const ServiceOptions options_;
  const Tokenizer tokenizer_;
  const std::optional<ChatTemplate> template_;
  const AnswerFormat answer_format_;
  const GenerationConfig generation_config_;
  const Pooling pooling_;
  const VocabularyTrie vocabulary_;
  const int64_t created_;
  mutable GrammarCache grammars_;
  TokenBudget budget_;
  Scheduler scheduler_;
};

}  // namespace nibble::serve
