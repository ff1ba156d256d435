// SPDX-License-Identifier: Apache-2.0
// POST /v1/responses: OpenAI's newer API, as far as clients such as Codex act on it. Nothing is
// stored: each request brings its whole conversation.
#include <ctime>

#include "chat/messages.h"
#include "serve/response_items.h"

namespace nibble::serve {
namespace {

struct ResponseFields : ChatInput {
  std::optional<int64_t> max_tokens;
  bool stream = false;
  Json format;                                            // as GenerationFields::grammar
  Json told_tools = Json::array(), told_choice = "auto";  // from the request, to be told again
  ResponsesTools known_tools;
};

void ReadTools(const Json& value, const std::string&, ResponseFields& f) {
  f.told_tools = value;
  f.tools = TemplateTools(ToolsFromResponses(value, &f.known_tools));
}

void ReadChoice(const Json& value, const std::string& name, ResponseFields& f) {
  f.told_choice = value;
  ReadToolChoice(value, name, f);
  if (!value.is_object()) return;
  if (const auto space = JsonFind<std::string>(value, "namespace", name)) {
    f.tool_choice = "function:" + FunctionName(*space, JsonGet<std::string>(value, "name", name));
  }
}

void ReadReasoning(const Json& value, const std::string& name, ResponseFields& f) {
  f.reasoning_effort = JsonFind<std::string>(value, "effort", name).value_or("");
}

void ReadText(const Json& value, const std::string& name, ResponseFields& f) {
  const auto format = JsonFind<Json>(value, "format", name);
  if (format) f.format = FormatGrammar(*format, "text.format");
}

void RefusePrevious(const Json&, const std::string& name, ResponseFields&) {
  BadField(name, "responses are not stored: send the whole conversation");
}

constexpr Field<ResponseFields> kFields[] = {
    {"tools", ReadTools},
    {"tool_choice", ReadChoice},
    {"parallel_tool_calls", Set<&ResponseFields::parallel_calls>},
    {"max_output_tokens", SetIn<&ResponseFields::max_tokens, 1, kMaxTokens>},
    {"stream", Set<&ResponseFields::stream>},
    {"reasoning", ReadReasoning},
    {"text", ReadText},
    {"previous_response_id", RefusePrevious},
};

class ResponsesResponder : public ChatResponder {
 public:
  ResponsesResponder(Call& call, const ChatTurn& turn, ResponseFields fields)
      : ChatResponder(call, turn, fields.stream), fields_(std::move(fields)) {}

 private:
  enum class Open { kNone, kReasoning, kMessage, kCall };

  std::string EventText(const std::string& type, const Json& event) {
    Json named = {{"type", type}, {"sequence_number", sequence_++}};
    named.update(event);
    return "event: " + type + "\ndata: " + Dump(named) + "\n\n";
  }
  void Event(const char* type, const Json& event) {
    Write(EventText(std::string("response.") + type, event));
  }
  // An event of the item that is open.
  void ItemEvent(const char* type, Json event) {
    event["item_id"] = item_["id"];
    event["output_index"] = output_.size();
    if (open_ != Open::kCall) event["content_index"] = 0;
    Event(type, event);
  }

  void OnStart() override {
    Event("created", {{"response", ResponseJson("in_progress")}});
    Event("in_progress", {{"response", ResponseJson("in_progress")}});
  }

  void Begin(Open open, Json item) {
    Close();
    open_ = open;
    item_ = std::move(item);
    Event("output_item.added", {{"output_index", output_.size()}, {"item", item_}});
    if (open != Open::kCall) ItemEvent("content_part.added", {{"part", Part("")}});
  }

  Json Part(const std::string& text) const {
    if (open_ == Open::kReasoning) return {{"type", "reasoning_text"}, {"text", text}};
    return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}};
  }

  // The final status of the item that is open.
  const char* ItemStatus() const {
    const ChatAnswer& answer = answers_[0];
    const bool cut = open_ == Open::kCall ? answer.cut_call : answer.end == End::kLength;
    return cut ? "incomplete" : "completed";
  }

  void Close() {
    if (open_ == Open::kNone) return;
    if (open_ == Open::kCall) {
      CloseCall();
    } else {
      if (open_ == Open::kReasoning) {
        ItemEvent("reasoning_text.done", {{"text", text_}});
      } else {
        ItemEvent("output_text.done", {{"text", text_}, {"logprobs", Json::array()}});
      }
      ItemEvent("content_part.done", {{"part", Part(text_)}});
      item_["content"] = Json::array({Part(text_)});
    }
    item_["status"] = ItemStatus();
    Event("output_item.done", {{"output_index", output_.size()}, {"item", item_}});
    output_.push_back(std::move(item_));
    text_.clear();
    open_ = Open::kNone;
  }

  void CloseCall() {
    FinishCall(text_, &item_);
    const CallField field = FieldOf(item_);
    if (field.event == nullptr) return;
    const Json& value = item_[field.name];
    if (!field.is_streamed) CallEvent(field, "delta", {{"delta", value}});
    CallEvent(field, "done", {{field.name, value}});
  }
  void CallEvent(const CallField& field, const char* what, Json event) {
    ItemEvent(fmt::format("{}.{}", field.event, what).c_str(), std::move(event));
  }

  void OnEvent(int, ChatAnswer& answer, const AnswerEvent& event) override {
    switch (event.kind) {
      case AnswerEvent::Kind::kReasoning:
        if (open_ != Open::kReasoning) Begin(Open::kReasoning, ReasoningItem());
        ItemEvent("reasoning_text.delta", {{"delta", event.text}});
        break;
      case AnswerEvent::Kind::kText:
        if (open_ != Open::kMessage) Begin(Open::kMessage, MessageItem());
        ItemEvent("output_text.delta", {{"delta", event.text}, {"logprobs", Json::array()}});
        break;
      case AnswerEvent::Kind::kCallBegin:
        return Begin(Open::kCall, CallItem(answer.calls.back(), fields_.known_tools));
      case AnswerEvent::Kind::kCallArguments:
        if (const CallField field = FieldOf(item_); field.is_streamed) {
          CallEvent(field, "delta", {{"delta", event.text}});
        }
        break;
      case AnswerEvent::Kind::kCallEnd:
        return Close();
    }
    text_ += event.text;
  }

  // Fills output_ at once with the items that a stream tells one by one.
  void CollectOutput() {
    const ChatAnswer& answer = answers_[0];
    const auto add = [&](Open open, Json item, const std::string& text) {
      open_ = open;
      if (open == Open::kCall) {
        FinishCall(text, &item);
      } else {
        item["content"] = Json::array({Part(text)});
      }
      item["status"] = "completed";
      output_.push_back(std::move(item));
    };
    if (!answer.reasoning.empty()) add(Open::kReasoning, ReasoningItem(), answer.reasoning);
    if (!answer.text.empty()) add(Open::kMessage, MessageItem(), answer.text);
    for (const ChatCall& call : answer.calls) {
      add(Open::kCall, CallItem(call, fields_.known_tools), call.arguments);
    }
    if (!output_.empty()) output_.back()["status"] = ItemStatus();
  }

  Json ResponseJson(const char* status) const {
    Json response = {{"id", id_},
                     {"object", "response"},
                     {"created_at", created_},
                     {"status", status},
                     {"model", call_->service.options().name},
                     {"output", output_},
                     {"error", nullptr},
                     {"incomplete_details", nullptr},
                     {"tools", fields_.told_tools},
                     {"tool_choice", fields_.told_choice},
                     {"parallel_tool_calls", fields_.parallel_calls}};
    if (std::string_view(status) == "in_progress") return response;
    if (std::string_view(status) == "incomplete") {
      response["incomplete_details"] = {{"reason", "max_output_tokens"}};
    }
    response["usage"] = {
        {"input_tokens", usage_.prompt},
        {"input_tokens_details", {{"cached_tokens", usage_.cached}, {"cache_write_tokens", 0}}},
        {"output_tokens", usage_.written},
        {"output_tokens_details", {{"reasoning_tokens", usage_.reasoning}}},
        {"total_tokens", usage_.prompt + usage_.written}};
    return response;
  }

  void OnEnd() override {
    const char* status = answers_[0].end == End::kLength ? "incomplete" : "completed";
    if (!stream_) {
      CollectOutput();
      return Reply(ResponseJson(status));
    }
    Close();
    Event(status, {{"response", ResponseJson(status)}});
  }

  // Codex counts events alone, not comments, and asks again when none has come for five minutes.
  std::string SignOfLife() override {
    const bool is_begun = open_ != Open::kNone || !output_.empty();
    if (is_begun) return Responder::SignOfLife();
    return EventText("response.in_progress", {{"response", ResponseJson("in_progress")}});
  }

  // Codex shortens a history that a stream says is too long, and gives up where a status says so.
  bool TellsInStream(const ApiError& error) const override {
    return error.code == "context_length_exceeded";
  }

  // Tells the error twice: some clients read the one event, some the other.
  std::string ErrorEvent(const ApiError& error) override {
    const std::string code = error.code.empty() ? "server_error" : error.code;
    Json reported = ErrorJson(Dialect::kOpenAi, error.status, error.what(), error.param, code);
    Json response = ResponseJson("failed");
    response["error"] = {{"code", code}, {"message", error.what()}};
    const std::string first = EventText("error", {{"error", std::move(reported["error"])}});
    return first + EventText("response.failed", {{"response", std::move(response)}});
  }

  const ResponseFields fields_;
  const std::string id_ = NewId("resp_");
  const int64_t created_ = std::time(nullptr);
  int64_t sequence_ = 0;
  Json output_ = Json::array();  // items that are complete
  Open open_ = Open::kNone;
  Json item_;         // the item that is open
  std::string text_;  // its text or arguments
};

}  // namespace

void Responses(Call& call) {
  RequireModel(call);
  const Service& service = call.service;
  ResponseFields fields;
  ReadFields(call.body, kFields, fields);
  try {
    fields.messages = TemplateMessages(MessagesFromResponses(call.body));
    for (Json& tool : TemplateTools(ToolsFromItems(call.body["input"], &fields.known_tools))) {
      fields.tools.push_back(std::move(tool));
    }
  } catch (const Error& error) {
    throw ApiError(400, error.what(), "input");
  }
  GenerationFields generation = ReadGenerationFields(call.body, service.generation_config(),
                                                     service.model().config().vocab_size);
  generation.request.n = 1;
  if (!fields.format.is_null()) {
    generation.grammar = fields.format;
    generation.grammar_field = "text";
  }
  ChatTurn turn = PrepareChat(service, fields, std::move(generation), fields.max_tokens);
  std::make_shared<ResponsesResponder>(call, turn, std::move(fields))
      ->Start(std::move(turn.request));
}

}  // namespace nibble::serve
