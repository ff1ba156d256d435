// SPDX-License-Identifier: Apache-2.0
// POST /v1/messages and /v1/messages/count_tokens: Anthropic's API.
#include "chat/messages.h"

#include "serve/chat_responder.h"

namespace nibble::serve {
namespace {

struct MessageFields : ChatInput {
  std::optional<int64_t> max_tokens;
  std::vector<std::string> stops;
  bool stream = false;
  Json format;  // as GenerationFields::grammar
};

void ReadTools(const Json& value, const std::string&, MessageFields& f) {
  f.tools = TemplateTools(ToolsFromAnthropic(value));
}

void ReadChoice(const Json& value, const std::string& name, MessageFields& f) {
  const auto type = JsonGet<std::string>(value, "type", name);
  if (type == "tool") {
    ReadToolChoice(value, name, f);
  } else if (type == "any" || type == "auto" || type == "none") {
    f.tool_choice = type == "any" ? "required" : type;
  } else {
    BadField(name, "tool_choice.type = \"{}\"; there are auto, any, tool and none",
             Printable(type));
  }
  f.parallel_calls = !JsonFind<bool>(value, "disable_parallel_tool_use", name).value_or(false);
}

void ReadStops(const Json& value, const std::string& name, MessageFields& f) {
  f.stops = StopTexts(value, name);
}

void ReadOutput(const Json& value, const std::string& name, MessageFields& f) {
  const auto format = JsonFind<Json>(value, "format", name);
  if (format) f.format = FormatGrammar(*format, name + ".format");
}

void ReadThinking(const Json& value, const std::string& name, MessageFields& f) {
  f.template_kwargs["enable_thinking"] = JsonGet<std::string>(value, "type", name) != "disabled";
}

constexpr Field<MessageFields> kFields[] = {
    {"tools", ReadTools},
    {"tool_choice", ReadChoice},
    {"max_tokens", SetIn<&MessageFields::max_tokens, 1, kMaxTokens>},
    {"stop_sequences", ReadStops},
    {"stream", Set<&MessageFields::stream>},
    {"output_config", ReadOutput},
    {"thinking", ReadThinking},
};

MessageFields ReadMessageFields(const Json& body) {
  MessageFields fields;
  ReadFields(body, kFields, fields);
  try {
    fields.messages = TemplateMessages(MessagesFromAnthropic(body));
    const Json& last = fields.messages.back();
    fields.continue_final_message =
        last["role"] == "assistant" && last["content"] != "" && !last.contains("tool_calls");
  } catch (const Error& error) {
    throw ApiError(400, error.what(), "messages");
  }
  return fields;
}

class MessagesResponder : public ChatResponder {
 public:
  using ChatResponder::ChatResponder;

 private:
  enum class Open { kNone, kThinking, kText, kCall };

  // Clients act on the `event:` line.
  void Event(const char* type, Json event) {
    Json named = {{"type", type}};
    named.update(event);
    Write(std::string("event: ") + type + "\ndata: " + Dump(named) + "\n\n");
  }

  void OnStart() override {
    Json message = MessageJson();
    message["content"] = Json::array();
    message["usage"] = UsageJson();
    Event("message_start", {{"message", std::move(message)}});
  }

  void Begin(Open open, Json block) {
    Close();
    open_ = open;
    Event("content_block_start", {{"index", index_}, {"content_block", std::move(block)}});
  }
  void Close() {
    if (open_ == Open::kThinking) Deliver("signature_delta", "signature", "");
    if (open_ != Open::kNone) Event("content_block_stop", {{"index", index_++}});
    open_ = Open::kNone;
  }
  void Deliver(const char* type, const char* field, const std::string& text) {
    Event("content_block_delta", {{"index", index_}, {"delta", {{"type", type}, {field, text}}}});
  }

  void OnEvent(int, ChatAnswer& answer, const AnswerEvent& event) override {
    switch (event.kind) {
      case AnswerEvent::Kind::kReasoning:
        if (open_ != Open::kThinking) {
          Begin(Open::kThinking, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
        }
        return Deliver("thinking_delta", "thinking", event.text);
      case AnswerEvent::Kind::kText:
        if (open_ != Open::kText) Begin(Open::kText, {{"type", "text"}, {"text", ""}});
        return Deliver("text_delta", "text", event.text);
      case AnswerEvent::Kind::kCallBegin:
        return Begin(Open::kCall, {{"type", "tool_use"},
                                   {"id", answer.calls.back().id},
                                   {"name", event.text},
                                   {"input", Json::object()}});
      case AnswerEvent::Kind::kCallArguments:
        return Deliver("input_json_delta", "partial_json", event.text);
      case AnswerEvent::Kind::kCallEnd:
        return Close();
    }
  }

  Json StopJson() const {
    const ChatAnswer& answer = answers_[0];
    const bool calls = !answer.calls.empty() && !answer.cut_call;
    const char* reason = answer.end == End::kLength ? "max_tokens"
                         : calls                    ? "tool_use"
                         : !answer.stop.empty()     ? "stop_sequence"
                                                    : "end_turn";
    return {{"stop_reason", reason},
            {"stop_sequence", answer.stop.empty() ? Json() : Json(answer.stop)}};
  }

  Json MessageJson() const {
    return {{"id", id_},
            {"type", "message"},
            {"role", "assistant"},
            {"model", call_->service.options().name},
            {"stop_reason", nullptr},
            {"stop_sequence", nullptr}};
  }

  Json ContentJson() const {
    const ChatAnswer& answer = answers_[0];
    Json content = Json::array();
    if (!answer.reasoning.empty()) {
      content.push_back({{"type", "thinking"}, {"thinking", answer.reasoning}, {"signature", ""}});
    }
    if (!answer.text.empty()) content.push_back({{"type", "text"}, {"text", answer.text}});
    for (const ChatCall& call : answer.calls) {
      // Arguments of an answer that was cut are no JSON.
      Json input = Json::parse(call.arguments, nullptr, false);
      if (!input.is_object()) input = Json::object();
      content.push_back({{"type", "tool_use"},
                         {"id", call.id},
                         {"name", call.name},
                         {"input", std::move(input)}});
    }
    return content;
  }

  // input_tokens does not count the prompt's tokens that came out of the cache.
  Json UsageJson() const {
    return {{"input_tokens", usage_.prompt - usage_.cached},
            {"output_tokens", usage_.written},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", usage_.cached}};
  }

  void OnEnd() override {
    if (stream_) {
      Close();
      Event("message_delta", {{"delta", StopJson()}, {"usage", UsageJson()}});
      return Event("message_stop", Json::object());
    }
    Json message = MessageJson();
    message["content"] = ContentJson();
    message.update(StopJson());
    message["usage"] = UsageJson();
    Reply(message);
  }

  std::string SignOfLife() override { return "event: ping\ndata: {\"type\": \"ping\"}\n\n"; }

  std::string ErrorEvent(const ApiError& error) override {
    return "event: error\n" + Responder::ErrorEvent(error);
  }

  const std::string id_ = NewId("msg_");
  Open open_ = Open::kNone;
  int64_t index_ = 0;  // of the block that is open or comes next
};

}  // namespace

void Messages(Call& call) {
  RequireModel(call);
  const Service& service = call.service;
  const MessageFields fields = ReadMessageFields(call.body);
  if (!fields.max_tokens) BadField("max_tokens", "max_tokens is missing");
  GenerationFields generation = ReadGenerationFields(call.body, service.generation_config(),
                                                     service.model().config().vocab_size);
  generation.request.n = 1;
  generation.request.stops = fields.stops;
  if (!fields.format.is_null()) {
    generation.grammar = fields.format;
    generation.grammar_field = "output_config";
  }
  ChatTurn turn = PrepareChat(service, fields, std::move(generation), fields.max_tokens);
  std::make_shared<MessagesResponder>(call, turn, fields.stream)->Start(std::move(turn.request));
}

void CountTokens(Call& call) {
  RequireModel(call);
  const Service& service = call.service;
  const std::string prompt = RenderChat(service, ReadMessageFields(call.body));
  call.Reply(200, {{"input_tokens", service.tokenizer().Encode(prompt, false).size()}});
}

}  // namespace nibble::serve
