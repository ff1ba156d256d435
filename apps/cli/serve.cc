// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <filesystem>
#include <memory>
#include <thread>

#include "apps/cli/cli.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/progress.h"
#include "models/import/open_network.h"
#include "serve/service.h"

namespace nibble::cli {
namespace {

struct ServeArguments {
  std::string model;
  Loading loading;
  http::Options http;
  serve::ServiceOptions service;
  SchedulerOptions scheduling;
  std::string key_file;
  double kv_memory = 0;
  int drain_seconds = 30;
  bool insecure = false, quiet = false;
};

bool IsLoopback(const http::Options& o) {
  return !o.unix_socket.empty() || o.host == "127.0.0.1" || o.host == "::1" ||
         o.host == "localhost";
}

// Reads keys from a file, one a line, and from NIBBLE_API_KEY; not from options, since all users of
// a machine see command lines.
void ReadKeys(ServeArguments& a) {
  std::string text = a.key_file.empty() ? "" : ReadFile(a.key_file, 1 << 20);
  if (const char* key = std::getenv("NIBBLE_API_KEY")) text += std::string("\n") + key;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string key = text.substr(at, end - at);
    while (!key.empty() && (key.back() == '\r' || key.back() == ' ')) key.pop_back();
    if (!key.empty()) a.service.keys.push_back(std::move(key));
    at = end + 1;
  }
  if (!a.key_file.empty() && a.service.keys.empty()) Fail("{} holds no key", a.key_file);
  if (a.service.key_tokens > 0 && a.service.keys.empty()) {
    FailUsage("--key-tokens is of keys: pass --api-key-file");
  }
  if (!IsLoopback(a.http) && a.service.keys.empty() && !a.insecure) {
    FailUsage("{} is open to other machines: pass --api-key-file, or --insecure to serve everybody",
              a.http.host);
  }
}

std::string NameOf(const std::string& model) {
  const std::filesystem::path path(model);
  const std::string name = (path.has_filename() ? path : path.parent_path()).stem().string();
  return name.empty() ? "model" : name;
}

// The pages for all answers at full length, or as many as fit: a tenth of the free memory stays
// free.
int64_t Pages(Model& model, const SchedulerOptions& s, double kv_memory) {
  const auto page = static_cast<double>(model.kv_groups().page_bytes());
  const int64_t context = s.context > 0 ? s.context : model.context();
  const auto wanted = static_cast<double>(
      s.max_batch * model.kv_groups().MaxPages(PagesOf(context), s.MaxStep(model)));
  double room = kv_memory / page;
  if (kv_memory == 0) {
    const auto free = model.backend().FreeMemory();
    room = free ? static_cast<double>(*free) * 0.9 / page : wanted;
  }
  const auto pages = static_cast<int64_t>(std::min(room, wanted));
  const int64_t fewest = model.kv_groups().count();  // pages that a text needs
  if (pages < fewest) {
    FailUsage("the cache of a short text takes {}; give --kv-memory more",
              BytesText(page * static_cast<double>(fewest)));
  }
  return pages;
}

// Ends server and scheduler when a signal comes: new requests are refused, then, when those that
// run are answered or the time is over, everything stops.
class Drain {
 public:
  Drain(http::Server& server, std::chrono::seconds time)
      : thread_([this, &server, time] {
          while (!over_ && !Interrupted())
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
          if (over_) return;
          Note("nibble: stopping; answers that run have {} s\n", time.count());
          server.Stop(time);
        }) {}
  ~Drain() {
    over_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

void RunServe(ServeArguments& a, const Common& common) {
  std::signal(SIGHUP, SIG_IGN);
  ReadKeys(a);
  a.service.local = IsLoopback(a.http);
  a.service.log = !a.quiet;
  if (a.service.name.empty()) a.service.name = NameOf(a.model);
  Network network = OpenNetwork(a.model);
  if (a.scheduling.context > network.config.context) {
    FailUsage("--context {}: the model's context is {}", a.scheduling.context,
              network.config.context);
  }
  const auto model = Load(std::move(network), common, false, a.loading);
  // With fewer prompt tokens in a step a GPU is not busy.
  if (common.device != "cpu") a.scheduling.prompt_tokens = 1024;
  a.scheduling.pages = Pages(*model, a.scheduling, a.kv_memory);
  serve::Service service(*model, a.model, a.scheduling, a.service);
  http::Server server(
      a.http, [&](const auto& exchange) { service.Handle(exchange); }, serve::Service::ErrorBody);
  const std::string where = a.http.unix_socket.empty()
                                ? fmt::format("http://{}:{}", a.http.host, server.port())
                                : a.http.unix_socket;
  const auto page = static_cast<double>(model->kv_groups().page_bytes());
  Note("nibble: {} on {}, context {}, up to {} answers at once, {} of cache\n", a.service.name,
       model->backend().Name(), service.scheduler().context(), a.scheduling.max_batch,
       BytesText(page * static_cast<double>(a.scheduling.pages)));
  Note("nibble: serving on {}\n", where);
  std::thread connections([&] {
    server.Run();
    service.scheduler().Stop();
  });
  {
    const Drain drain(server, std::chrono::seconds(a.drain_seconds));
    service.scheduler().Run();  // here, where the model was loaded: a GPU belongs to a thread
  }
  connections.join();
}

}  // namespace

void AddServe(CLI::App& app, Common& common, Run& run) {
  const auto a = std::make_shared<ServeArguments>();
  CLI::App* verb = AddVerb(app, common, "serve",
                           "Answer over HTTP, as OpenAI's and Anthropic's servers do, with a chat "
                           "page at /",
                           "nibble serve llama.gguf\n"
                           "  nibble serve llama-w4a8kv4 --port 8000 --api-key-file keys.txt");
  AddModel(*verb, a->model)->required();
  verb->add_option("--host", a->http.host, "Address to listen on")->capture_default_str();
  verb->add_option("--port", a->http.port, "Port; 0 = any free one")->capture_default_str();
  verb->add_option("--unix-socket", a->http.unix_socket, "A path instead of host and port");
  verb->add_option("--name", a->service.name, "The model's name for clients; its file's without");
  verb->add_option(
      "--api-key-file", a->key_file,
      "Keys, one a line; each request must have one, as a Bearer token, x-api-key or a "
      "browser's password. NIBBLE_API_KEY is one, too");
  verb->add_option("--key-tokens", a->service.key_tokens,
                   "Tokens, read and written, that a key may use in a minute; then 429. 0 = any "
                   "number")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  verb->add_flag("--insecure", a->insecure, "Serve other machines without keys");
  verb->add_option("--max-batch", a->scheduling.max_batch, "Answers written at once")
      ->check(CLI::Range(int64_t{1}, int64_t{1024}))
      ->capture_default_str();
  verb->add_option("--max-waiting", a->scheduling.max_waiting, "Answers that may wait; then 429")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  verb->add_option("--kv-memory", a->kv_memory,
                   "Memory of the KV cache, as 2GB; without, what --max-batch texts of full length "
                   "take, and at most nine tenths of what is free")
      ->transform(CLI::AsSizeValue(true));
  verb->add_option("--context", a->scheduling.context,
                   "Longest text in tokens; without, the model's")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 32));
  verb->add_option("--drain", a->drain_seconds, "Seconds that answers have after SIGTERM or Ctrl-C")
      ->check(CLI::Range(0, 3600))
      ->capture_default_str();
  verb->add_flag("--vllm-reasoning", a->service.vllm_reasoning,
                 "Reasoning in `reasoning`, as vLLM has it, and not in `reasoning_content`");
  verb->add_flag("--quiet", a->quiet, "No line for each request");
  AddLoading(*verb, a->loading);
  verb->callback([a, &common, &run] { run = [a, &common] { RunServe(*a, common); }; });
}

}  // namespace nibble::cli
