// SPDX-License-Identifier: Apache-2.0
// POST /v1/chat/completions.
#include <ctime>

#include "chat/messages.h"
#include "serve/chat_responder.h"

namespace nibble::serve {
namespace {

struct ChatFields : ChatInput {
  std::optional<int64_t> max_tokens;
  bool logprobs = false, stream = false, usage = false;
  int top_logprobs = 0;
};

void ReadMessages(const Json& value, const std::string&, ChatFields& f) {
  f.messages = TemplateMessages(value);
}

void ReadTools(const Json& value, const std::string&, ChatFields& f) {
  f.tools = TemplateTools(value);
}

void ReadTemplateKwargs(const Json& value, const std::string& name, ChatFields& f) {
  f.template_kwargs = TemplateKwargs(value, name);
}

void RefuseTemplate(const Json&, const std::string& name, ChatFields&) {
  BadField(name, "templates come with the model, not with requests");
}

// Must follow "stream" in kFields, since it needs the value of "stream".
void ReadStreamOptions(const Json& value, const std::string& name, ChatFields& f) {
  if (!f.stream) BadField(name, "stream_options needs stream");
  f.usage = JsonFind<bool>(value, "include_usage", name).value_or(false);
}

constexpr Field<ChatFields> kFields[] = {
    {"messages", ReadMessages},
    {"tools", ReadTools},
    {"tool_choice", ReadToolChoice},
    {"parallel_tool_calls", Set<&ChatFields::parallel_calls>},
    {"reasoning_effort", Set<&ChatFields::reasoning_effort>},
    {"chat_template_kwargs", ReadTemplateKwargs},
    {"add_generation_prompt", Set<&ChatFields::add_generation_prompt>},
    {"continue_final_message", Set<&ChatFields::continue_final_message>},
    {"chat_template", RefuseTemplate},
    {"max_tokens", SetIn<&ChatFields::max_tokens, 1, kMaxTokens>},
    {"max_completion_tokens", SetIn<&ChatFields::max_tokens, 1, kMaxTokens>},  // wins
    {"logprobs", Set<&ChatFields::logprobs>},
    {"top_logprobs", SetIn<&ChatFields::top_logprobs, 0, kMaxLogprobs>},
    {"stream", Set<&ChatFields::stream>},
    {"stream_options", ReadStreamOptions},
};

class CompletionsResponder : public ChatResponder {
 public:
  CompletionsResponder(Call& call, const ChatTurn& turn, const ChatFields& fields)
      : ChatResponder(call, turn, fields.stream),
        logprobs_(fields.logprobs),
        usage_wanted_(fields.usage) {}

 private:
  const char* ReasoningName() const {
    return call_->service.options().vllm_reasoning ? "reasoning" : "reasoning_content";
  }

  Json Head() const {
    return {{"id", id_},
            {"object", stream_ ? "chat.completion.chunk" : "chat.completion"},
            {"created", created_},
            {"model", call_->service.options().name}};
  }

  void WriteChunk(int index, Json delta, Json finish = {}) {
    Json choice = {
        {"index", index}, {"delta", std::move(delta)}, {"finish_reason", std::move(finish)}};
    ChatAnswer& answer = answers_[static_cast<size_t>(index)];
    if (logprobs_) {
      choice["logprobs"] = answer.logprobs.empty() ? Json() : Logprobs(answer);
      answer.logprobs.clear();
    }
    Json chunk = Head();
    chunk["choices"] = Json::array({std::move(choice)});
    if (usage_wanted_) chunk["usage"] = nullptr;
    WriteEvent(chunk);
  }

  void OnStart() override {
    for (size_t i = 0; i < answers_.size(); ++i) {
      WriteChunk(static_cast<int>(i), {{"role", "assistant"}, {"content", ""}});
    }
  }

  void OnEvent(int index, ChatAnswer& answer, const AnswerEvent& event) override {
    const auto call = [&](Json function) {
      const size_t number = answer.calls.size() - 1;
      Json entry = {{"index", number}};
      if (event.kind == AnswerEvent::Kind::kCallBegin) {
        entry["id"] = answer.calls.back().id;
        entry["type"] = "function";
      }
      entry["function"] = std::move(function);
      return Json{{"tool_calls", Json::array({std::move(entry)})}};
    };
    switch (event.kind) {
      case AnswerEvent::Kind::kText:
        return WriteChunk(index, {{"content", event.text}});
      case AnswerEvent::Kind::kReasoning:
        return WriteChunk(index, {{ReasoningName(), event.text}});
      case AnswerEvent::Kind::kCallBegin:
        return WriteChunk(index, call({{"name", event.text}, {"arguments", ""}}));
      case AnswerEvent::Kind::kCallArguments:
        return WriteChunk(index, call({{"arguments", event.text}}));
      case AnswerEvent::Kind::kCallEnd:
        return;
    }
  }

  void OnStep(int index, ChatAnswer& answer) override {
    if (answer.end) WriteChunk(index, Json::object(), FinishReason(answer));
  }

  static const char* FinishReason(const ChatAnswer& answer) {
    if (answer.end == End::kLength) return "length";
    return answer.calls.empty() || answer.cut_call ? "stop" : "tool_calls";
  }

  Json Logprobs(const ChatAnswer& answer) const {
    const Tokenizer& tokenizer = call_->service.tokenizer();
    const auto entry = [&](int32_t id, double logprob) {
      std::string bytes = tokenizer.TokenBytes(id);
      if (bytes.empty()) bytes = tokenizer.TokenText(id);
      Json list = Json::array();
      for (const char b : bytes) list.push_back(static_cast<unsigned char>(b));
      return Json{{"token", TokenText(tokenizer, id)}, {"logprob", logprob}, {"bytes", list}};
    };
    Json content = Json::array();
    for (const TokenLogprob& l : answer.logprobs) {
      Json item = entry(l.id, l.logprob);
      item["top_logprobs"] = Json::array();
      for (const auto& [id, logprob] : l.top) item["top_logprobs"].push_back(entry(id, logprob));
      content.push_back(std::move(item));
    }
    return {{"content", std::move(content)}};
  }

  Json ChoiceJson(size_t index) const {
    const ChatAnswer& answer = answers_[index];
    Json message = {{"role", "assistant"}, {"content", answer.text}};
    if (answer.text.empty() && !answer.calls.empty()) message["content"] = nullptr;
    if (!answer.reasoning.empty()) message[ReasoningName()] = answer.reasoning;
    for (const ChatCall& call : answer.calls) {
      message["tool_calls"].push_back(
          {{"id", call.id},
           {"type", "function"},
           {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
    }
    Json choice = {{"index", index}, {"message", std::move(message)}, {"logprobs", nullptr}};
    if (logprobs_) choice["logprobs"] = Logprobs(answer);
    choice["finish_reason"] = FinishReason(answer);
    return choice;
  }

  Json UsageJson() const {
    return {{"prompt_tokens", usage_.prompt},
            {"completion_tokens", usage_.written},
            {"total_tokens", usage_.prompt + usage_.written},
            {"prompt_tokens_details", {{"cached_tokens", usage_.cached}}},
            {"completion_tokens_details", {{"reasoning_tokens", usage_.reasoning}}}};
  }

  void OnEnd() override {
    Json answer = Head();
    answer["choices"] = Json::array();
    if (stream_) {
      if (usage_wanted_) {
        answer["usage"] = UsageJson();
        WriteEvent(answer);
      }
      return Write("data: [DONE]\n\n");
    }
    for (size_t i = 0; i < answers_.size(); ++i) answer["choices"].push_back(ChoiceJson(i));
    answer["usage"] = UsageJson();
    Reply(answer);
  }

  const bool logprobs_, usage_wanted_;
  const std::string id_ = NewId("chatcmpl-");
  const int64_t created_ = std::time(nullptr);
};

}  // namespace

void ChatCompletions(Call& call) {
  RequireModel(call);
  const Service& service = call.service;
  ChatFields fields;
  ReadFields(call.body, kFields, fields);
  GenerationFields generation = ReadGenerationFields(call.body, service.generation_config(),
                                                     service.model().config().vocab_size);
  if (fields.logprobs) generation.request.logprobs = fields.top_logprobs;
  ChatTurn turn = PrepareChat(service, fields, std::move(generation), fields.max_tokens);
  std::make_shared<CompletionsResponder>(call, turn, fields)->Start(std::move(turn.request));
}

}  // namespace nibble::serve
