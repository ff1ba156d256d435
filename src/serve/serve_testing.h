// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of this folder: a service over the sample model with its scheduler and its
// server, a client for it, and comparisons of JSON with its shape.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/engine_testing.h"
#include "http/http_testing.h"
#include "serve/service.h"

namespace nibble::serve {

// ChatML with tools as Hermes has them, and reasoning for those who ask for it.
inline constexpr const char* kChatTemplate =
    R"({{- bos_token }}
{%- if tools %}{{ '<|im_start|>system\n<tools>\n' }}
{%- for tool in tools %}{{ tool | tojson }}{{ '\n' }}{% endfor %}
{{- '</tools>\nCall as <tool_call>\n{"name": .., "arguments": ..}\n</tool_call><|im_end|>\n' }}
{%- endif %}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}
{{- m.content.split('</think>')[-1] }}
{%- for c in m.tool_calls or [] %}{{ '<tool_call>\n{"name": "' + c.function.name + '", "arguments": ' }}
{{- c.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}
{{- '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}
{%- if enable_thinking %}{{ '<think>\n' }}{% endif %}{% endif %})";

// The sample model's documents with the given chat template, or with none.
class ModelDocuments {
 public:
  // Tokens among `renamed` get the names that they are mapped to. files: texts by their paths,
  // which are added or replace the sample's.
  explicit ModelDocuments(const std::string& chat_template,
                          const std::map<std::string, std::string>& renamed = {},
                          const std::map<std::string, std::string>& files = {}) {
    path_ = (std::filesystem::temp_directory_path() / "nibble_serve_XXXXXX").string();
    if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error("mkdtemp");
    for (const char* name :
         {"config.json", "generation_config.json", "special_tokens_map.json", "tokenizer.json"}) {
      std::filesystem::copy_file(std::filesystem::path(kTinyModel) / name,
                                 std::filesystem::path(path_) / name);
    }
    std::ofstream(path_ + "/tokenizer_config.json")
        << R"({"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>",
               "add_bos_token": true})";
    if (!renamed.empty()) {
      const std::string file = path_ + "/tokenizer.json";
      Json tokenizer = Json::parse(std::ifstream(file));
      for (Json& token : tokenizer["added_tokens"]) {
        const auto tag = renamed.find(token["content"]);
        if (tag == renamed.end()) continue;
        Json& vocabulary = tokenizer["model"]["vocab"];
        vocabulary[tag->second] = vocabulary[tag->first];
        vocabulary.erase(tag->first);
        token["content"] = tag->second;
      }
      std::ofstream(file) << tokenizer;
    }
    if (!chat_template.empty()) std::ofstream(path_ + "/chat_template.jinja") << chat_template;
    for (const auto& [name, text] : files) {
      const std::filesystem::path file = std::filesystem::path(path_) / name;
      std::filesystem::create_directories(file.parent_path());
      std::ofstream(file) << text;
    }
  }
  ModelDocuments(const ModelDocuments&) = delete;
  ModelDocuments& operator=(const ModelDocuments&) = delete;
  ~ModelDocuments() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct Event {
  std::string name;  // of the `event:` line
  Json data;         // "[DONE]" is a string
};

struct Reply {
  http::ReadAnswer http;
  Json json;                  // of a whole answer
  std::vector<Event> events;  // of a stream
  int status() const { return http.status; }
  // The field that an error in OpenAI's shape names; "" if none.
  std::string param() const {
    return json.at("error").at("param").is_null() ? "" : json["error"]["param"];
  }
};

inline std::vector<Event> EventsOf(std::string_view body) {
  std::vector<Event> events;
  while (!body.empty()) {
    const size_t end = body.find("\n\n");
    if (end == body.npos) ADD_FAILURE() << "an event without end: " << body;
    std::string_view lines = body.substr(0, end);
    body.remove_prefix(end == body.npos ? body.size() : end + 2);
    Event event;
    while (!lines.empty()) {
      const std::string_view line = lines.substr(0, lines.find('\n'));
      lines.remove_prefix(std::min(lines.size(), line.size() + 1));
      if (line.starts_with("event: ")) event.name = line.substr(7);
      if (line.starts_with("data: [DONE]")) {
        event.data = "[DONE]";
      } else if (line.starts_with("data: ")) {
        event.data = Json::parse(line.substr(6));
      } else if (!line.starts_with("event: ")) {
        EXPECT_TRUE(line.starts_with(":")) << line;
      }
    }
    if (!event.data.is_null()) events.push_back(std::move(event));
  }
  return events;
}

struct TestSetup {
  std::string chat_template = kChatTemplate;
  ServiceOptions service = {.name = "tiny", .log = false};
  SchedulerOptions scheduling = {.max_batch = 8, .pages = 200};
  http::Options http = {};
  bool runs = true;  // steps are taken; else requests wait
  // Arguments of ModelDocuments.
  std::map<std::string, std::string> renamed = {}, files = {};
};

class TestService {
 public:
  explicit TestService(const TestSetup& setup = {})
      : documents_(setup.chat_template, setup.renamed, setup.files),
        model_(LoadModel(kTinyModel, "cpu", false)),
        service_(*model_, documents_.path(), setup.scheduling, setup.service),
        server_([this](const auto& exchange) { service_.Handle(exchange); }, setup.http,
                Service::ErrorBody) {
    if (setup.runs) engine_ = std::thread([this] { service_.scheduler().Run(); });
  }
  ~TestService() {
    server_.Stop(std::chrono::milliseconds(0));
    service_.scheduler().Stop();
    if (engine_.joinable()) engine_.join();
  }

  Service& operator*() { return service_; }
  Service* operator->() { return &service_; }
  http::TestServer& server() { return server_; }
  const Tokenizer& tokenizer() const { return service_.tokenizer(); }
  SchedulerStats stats() { return service_.scheduler().stats(); }
  // Waits until no request runs or waits and no page is in use; cached beginnings may keep theirs.
  bool Quiet() {
    return http::Eventually([&] {
      const SchedulerStats s = stats();
      return s.running == 0 && s.waiting == 0 && s.pages_in_use == 0;
    });
  }

  // The bytes of a request.
  static std::string Request(std::string_view method, std::string_view path, std::string_view body,
                             std::string_view fields = "Content-Type: application/json\r\n") {
    std::string head = fmt::format("{} {} HTTP/1.1\r\n{}", method, path, fields);
    if (fields.find("Host:") == fields.npos) head += "Host: localhost\r\n";
    if (method != "GET" && method != "HEAD")
      head += fmt::format("Content-Length: {}\r\n", body.size());
    return head + "\r\n" + std::string(body);
  }
  Reply Send(const std::string& request) {
    http::Client client(server_);
    client.Send(request);
    const auto answer = client.Answer(request.starts_with("HEAD"));
    Reply reply;
    if (!answer) {
      ADD_FAILURE() << "no answer to " << request.substr(0, 200);
      return reply;
    }
    reply.http = *answer;
    const std::string type = answer->Field("content-type");
    if (type == "application/json" && !answer->body.empty()) reply.json = Json::parse(answer->body);
    if (type == "text/event-stream") reply.events = EventsOf(answer->body);
    return reply;
  }
  Reply Get(std::string_view path) { return Send(Request("GET", path, "")); }
  Reply Post(std::string_view path, const Json& body) {
    return Send(Request("POST", path, body.dump()));
  }
  // Posts a request that must be answered with 200.
  Reply Ok(std::string_view path, const Json& body) {
    Reply reply = Post(path, body);
    EXPECT_EQ(reply.status(), 200) << path << " " << body << " " << reply.http.body;
    return reply;
  }

 private:
  const ModelDocuments documents_;
  const std::unique_ptr<Model> model_;
  Service service_;
  http::TestServer server_;
  std::thread engine_;
};

// Tests that change nothing of the service share one.
class ServeTest : public testing::Test {
 protected:
  static void TearDownTestSuite() { shared_.reset(); }
  static TestService& service() {
    if (!shared_) shared_ = std::make_unique<TestService>();
    return *shared_;
  }

 private:
  static inline std::unique_ptr<TestService> shared_;
};

inline Json With(Json body, const Json& more) {
  if (!more.is_null()) body.update(more);
  return body;
}

// Fields that make the model say `text` and nothing else.
inline Json Saying(const std::string& text) {
  std::string pattern;
  for (const char c : text) {
    if (std::string_view("\\^$.|?*+()[]{}").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return {{"guided_regex", pattern}, {"temperature", 0}};  // texts can be written in several ways
}

// Says where a value differs from its shape; "" if nowhere. In shapes "<string>", "<string|null>",
// "<integer>" and "<number>" stand for values of these types and other values for themselves.
// Objects have exactly the shape's fields; a list of a shape and "..." has one item or more of it.
inline std::string Mismatch(const Json& value, const Json& shape, const std::string& path = "$") {
  const std::string wrong = path + " is " + value.dump() + " and not " + shape.dump();
  static const std::map<std::string, std::function<bool(const Json&)>> kTypes = {
      {"<string>", [](const Json& v) { return v.is_string(); }},
      {"<string|null>", [](const Json& v) { return v.is_string() || v.is_null(); }},
      {"<integer>", [](const Json& v) { return v.is_number_integer(); }},
      {"<number>", [](const Json& v) { return v.is_number(); }}};
  const auto type = kTypes.find(shape.is_string() ? shape.get<std::string>() : "");
  if (type != kTypes.end()) return type->second(value) ? "" : wrong;
  if (shape.is_object() && value.is_object()) {
    for (const auto& [key, item] : value.items()) {
      if (!shape.contains(key)) return path + "." + key + " is not in the shape";
    }
    for (const auto& [key, item] : shape.items()) {
      if (!value.contains(key)) return path + "." + key + " is missing";
      const std::string inner = Mismatch(value[key], item, path + "." + key);
      if (!inner.empty()) return inner;
    }
    return "";
  }
  if (shape.is_array() && value.is_array()) {
    const bool repeats = shape.size() == 2 && shape[1] == "...";
    if (repeats ? value.empty() : value.size() != shape.size()) return wrong;
    for (size_t i = 0; i < value.size(); ++i) {
      const std::string inner =
          Mismatch(value[i], shape[repeats ? 0 : i], fmt::format("{}[{}]", path, i));
      if (!inner.empty()) return inner;
    }
    return "";
  }
  return value == shape ? "" : wrong;
}

}  // namespace nibble::serve
