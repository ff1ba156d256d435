// SPDX-License-Identifier: Apache-2.0
// GET /metrics: Prometheus' text format, with the names and labels of vLLM.
#include "serve/call.h"

namespace nibble::serve {
namespace {

class Exposition {
 public:
  explicit Exposition(const std::string& model)
      : labels_(fmt::format("engine=\"0\",model_name=\"{}\"", Escaped(model))) {}

  void Gauge(const char* name, double value) { Single(name, "gauge", value); }
  void Counter(const char* name, double value) { Single(name, "counter", value); }
  void Line(const std::string& name, const std::string& more, double value) {
    text_ += fmt::format("vllm:{}{{{}{}}} {}\n", name, labels_, more, value);
  }
  void Type(const std::string& name, const char* type) {
    text_ += fmt::format("# TYPE vllm:{} {}\n", name, type);
  }
  void Distribution(const std::string& name, const Histogram& h) {
    Type(name, "histogram");
    uint64_t count = 0;
    for (size_t i = 0; i < h.counts().size(); ++i) {
      count += h.counts()[i];
      const bool last = i == h.bounds().size();
      Line(name + "_bucket", last ? ",le=\"+Inf\"" : fmt::format(",le=\"{}\"", h.bounds()[i]),
           static_cast<double>(count));
    }
    Line(name + "_count", "", static_cast<double>(count));
    Line(name + "_sum", "", h.sum());
  }
  std::string Take() { return std::move(text_); }

 private:
  static std::string Escaped(const std::string& value) {
    std::string out;
    for (const char c : value) {
      if (c == '"' || c == '\\') out += '\\';
      out += c == '\n' ? ' ' : c;
    }
    return out;
  }
  void Single(const char* name, const char* type, double value) {
    Type(name, type);
    Line(name, "", value);
  }

  const std::string labels_;
  std::string text_;
};

}  // namespace

void Metrics(Call& call) {
  const SchedulerStats s = call.service.scheduler().stats();
  Exposition e(call.service.options().name);
  e.Gauge("num_requests_running", static_cast<double>(s.running));
  e.Gauge("num_requests_waiting", static_cast<double>(s.waiting));
  e.Gauge("kv_cache_usage_perc",
          static_cast<double>(s.pages_in_use) / static_cast<double>(s.pages));
  e.Counter("prompt_tokens_total", static_cast<double>(s.prompt_tokens));
  e.Counter("generation_tokens_total", static_cast<double>(s.written_tokens));
  e.Counter("prefix_cache_queries_total", static_cast<double>(s.prefix_queries));
  e.Counter("prefix_cache_hits_total", static_cast<double>(s.prefix_hits));
  e.Counter("num_preemptions_total", static_cast<double>(s.preemptions));
  e.Type("request_success_total", "counter");
  constexpr const char* kReasons[] = {"stop", "length", "abort", "error"};  // by End
  for (size_t i = 0; i < s.ended.size(); ++i) {
    e.Line("request_success_total", fmt::format(",finished_reason=\"{}\"", kReasons[i]),
           static_cast<double>(s.ended[i]));
  }
  e.Distribution("time_to_first_token_seconds", s.first_token);
  e.Distribution("inter_token_latency_seconds", s.between_tokens);
  e.Distribution("e2e_request_latency_seconds", s.whole);
  e.Distribution("request_queue_time_seconds", s.queued);
  e.Distribution("request_prefill_time_seconds", s.prefill);
  e.Distribution("request_decode_time_seconds", s.decode);
  e.Distribution("request_prompt_tokens", s.request_prompt);
  e.Distribution("request_generation_tokens", s.request_written);
  call.ReplyText(200, "text/plain; version=0.0.4; charset=utf-8", e.Take());
}

}  // namespace nibble::serve
