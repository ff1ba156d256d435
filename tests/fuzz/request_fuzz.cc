// SPDX-License-Identifier: Apache-2.0
// A byte for the route, then the body of a request. It is refused in the shape of its API, or
// waits to be run: no step is, since no backend is there.
#include "compute/backend.h"
#include "fuzz_input.h"
#include "http/answer.h"
#include "models/import/open_network.h"
#include "serve/service.h"

namespace nibble {

// Stands in for the real function: this target has no backends.
std::unique_ptr<Backend> MakeBackend(const std::string&, bool) {
  Fail("there are no backends");
}

namespace {

class NoBackend : public Backend {
 public:
  std::string Name() const override { return "none"; }
  LinearId Upload(const PackedLinear&) override { return 0; }
  void Release(LinearId) override {}
  KernelUse KernelFor(const ProductFormat&, int64_t) const override { Fail("no kernels"); }
  Activations PrepareActs(const ActsSource&, int64_t, const InputSpec&) override {
    Fail("no step");
  }
  const float* Decode(const Activations&) override { Fail("no step"); }
  void Gemm(const Activations&, LinearId, float*, int64_t, bool) override { Fail("no step"); }
  void Project(const Activations&, std::span<const Projection>) override { Fail("no step"); }
  void RopeAndAppend(Intermediate*, Intermediate*, const Intermediate*, const AttentionSpec&,
                     const RopeView&, const KvSpec&, std::span<const SequenceSlice>) override {
    Fail("no step");
  }
  void Attention(const Intermediate*, const AttentionSpec&, const KvSpec&,
                 std::span<const SequenceSlice>, Intermediate*) override {
    Fail("no step");
  }
};

// ChatML, tools as Hermes has them, reasoning.
constexpr const char* kTemplate =
    R"({{ bos_token }}{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content.split('</think>')[-1] }}
{%- for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}
{{- '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
{%- if enable_thinking %}{{ '<think>\n' }}{% endif %})";

struct Fixture {
  Fixture() : network(OpenNetwork(NIBBLE_SOURCE_DIR "/samples/tiny")) {
    for (const char* name : {"config.json", "generation_config.json", "tokenizer.json"}) {
      std::filesystem::copy_file(std::string(NIBBLE_SOURCE_DIR "/samples/tiny/") + name,
                                 documents.path() + "/" + name);
    }
    documents.Write("tokenizer_config.json",
                    R"({"bos_token": "<|begin_of_text|>", "add_bos_token": true})");
    documents.Write("chat_template.jinja", kTemplate);
    model = std::make_unique<Model>(std::move(network), std::make_unique<NoBackend>());
    service = std::make_unique<serve::Service>(*model, documents.path(),
                                               SchedulerOptions{.max_waiting = 64, .pages = 16},
                                               serve::ServiceOptions{.name = "tiny", .log = false});
  }
  ScratchDirectory documents;
  Network network;
  std::unique_ptr<Model> model;
  std::unique_ptr<serve::Service> service;
};

void CheckAnswer(const std::string& answer, bool anthropic) {
  if (answer.empty()) return;  // it waits
  NIBBLE_CHECK(answer.starts_with("HTTP/1.1 "), "{}", answer);
  const int status = std::stoi(answer.substr(9, 3));
  NIBBLE_CHECK(status == 200 || (status >= 400 && status < 500), "{}", answer);
  const std::string body = answer.substr(answer.find("\r\n\r\n") + 4);
  if (answer.find("text/event-stream") != answer.npos) return;
  const Json json = Json::parse(body, nullptr, false);
  NIBBLE_CHECK(json.is_object(), "{}", body);
  if (status == 200) return;
  const Json& error = json.at("error");
  NIBBLE_CHECK(!error.at("message").get<std::string>().empty());
  NIBBLE_CHECK(anthropic == (json.value("type", "") == "error"), "{}", body);
}

void Use(std::string_view input) {
  static Fixture fixture;
  constexpr const char* kPaths[] = {
      "/v1/completions", "/v1/chat/completions",      "/v1/responses", "/v1/messages",
      "/tokenize",       "/v1/messages/count_tokens", "/detokenize",   "/v1/embeddings"};
  if (input.empty()) return;
  const auto answer = std::make_shared<http::Answer>();
  answer->request.method = "POST";
  answer->request.path = kPaths[static_cast<uint8_t>(input[0]) % std::size(kPaths)];
  answer->request.body = input.substr(1);
  answer->request.peer = "fuzz";
  answer->request.fields = {{"host", "localhost"}};
  answer->error_body = std::make_shared<http::ErrorBody>(serve::Service::ErrorBody);
  std::vector<std::function<void()>> posted;
  answer->post = [&](std::function<void()> call) { posted.push_back(std::move(call)); };
  fixture.service->Handle(std::make_shared<http::Exchange>(answer));
  const auto run = [&] {
    for (size_t i = 0; i < posted.size(); ++i) {
      const auto call = std::move(posted[i]);
      call();
    }
    posted.clear();
  };
  run();
  // Nobody who waits holds what it would be told to.
  CheckAnswer(answer->out, answer->request.path.starts_with("/v1/messages"));
  answer->Gone();
  Scheduler& scheduler = fixture.service->scheduler();
  NIBBLE_CHECK(!scheduler.Step());
  run();
  NIBBLE_CHECK(scheduler.stats().waiting == 0, "{} wait", scheduler.stats().waiting);
}

}  // namespace
}  // namespace nibble

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return nibble::FuzzOne(data, size, nibble::Use);
}
