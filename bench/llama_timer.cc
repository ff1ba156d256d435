// SPDX-License-Identifier: Apache-2.0
//
// Times llama.cpp through the public C interface of libllama, for bench/peers.
//
// Why a program and not the Python binding: the binding needs numpy and other packages built for
// one Python version, and a hand-written ctypes binding would repeat the layout of structures that
// change between releases. This needs the libraries of one build and the headers of the same build.
//
//   llama_timer MODEL prefill|decode THREADS KV TOKENS CONTEXT SEQUENCES
//   llama_timer MODEL requantize OUT      writes it in Q4_0
//
// It loads the model, runs once to warm up, prints lines "key<TAB>value" and the line "ready". Each
// line on standard input then starts a timed run, whose microseconds it prints, so that the caller
// can take turns with another program without loading the model again.
//
// prefill: TOKENS into an empty cache. decode: TOKENS steps behind CONTEXT tokens, each step one
// token for each of SEQUENCES sequences. KV is f16 or a name of a ggml type such as q4_0.
#include <ggml-cpu.h>
#include <llama.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace {

struct Arguments {
  std::string model, kv;
  bool decode = false;
  int32_t threads = 0, tokens = 0, context = 0, sequences = 1;
};

[[noreturn]] void Fail(const std::string& reason) {
  std::fprintf(stderr, "llama_timer: %s\n", reason.c_str());
  std::exit(1);
}

// The log goes to standard error only where it reports a failure; of the rest, the lines on buffers
// are kept: they tell which matrix code holds the weights (AMX, CPU_REPACK or plain CPU).
void KeepBuffers(ggml_log_level level, const char* text, void* buffers) {
  if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
  if (std::strstr(text, "model buffer size") == nullptr) return;
  std::string line(text);
  line.erase(std::remove(line.begin(), line.end(), '\n'), line.end());
  auto& kept = *static_cast<std::string*>(buffers);
  if (const size_t colon = line.find(": "); colon != std::string::npos) line.erase(0, colon + 2);
  line.erase(0, line.find_first_not_of(' '));
  kept += (kept.empty() ? "" : "; ") + line;
}

ggml_type TypeByName(const std::string& name) {
  for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
    const char* known = ggml_type_name(static_cast<ggml_type>(i));
    if (known != nullptr && name == known) return static_cast<ggml_type>(i);
  }
  Fail("no type " + name);
}

class Timer {
 public:
  explicit Timer(const Arguments& a) : a_(a) {
    model_ = llama_model_load_from_file(a.model.c_str(), llama_model_default_params());
    if (model_ == nullptr) Fail("cannot load " + a.model);
    vocabulary_ = llama_vocab_n_tokens(llama_model_get_vocab(model_));
    llama_context_params p = llama_context_default_params();
    const int32_t one = a.decode ? a.context + a.tokens : a.tokens;
    p.n_ctx = static_cast<uint32_t>((one + 255) / 256 * 256 * a.sequences);
    p.n_seq_max = static_cast<uint32_t>(a.sequences);
    p.n_threads = p.n_threads_batch = a.threads;
    p.type_k = p.type_v = TypeByName(a.kv);
    // A quantized V cache exists only with flash attention; elsewhere the library's own choice.
    if (ggml_is_quantized(p.type_v)) p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    chunk_ = static_cast<int32_t>(p.n_batch = std::min(p.n_batch, p.n_ctx));
    context_ = llama_init_from_model(model_, p);
    if (context_ == nullptr) Fail("cannot make a context");
    // As llama-bench does: without OpenMP the library would start threads anew for every graph.
    ggml_threadpool_params pool = ggml_threadpool_params_default(a.threads);
    pool_ = ggml_threadpool_new(&pool);
    llama_attach_threadpool(context_, pool_, pool_);
    batch_ = llama_batch_init(std::max(chunk_, a.sequences), 0, 1);
    if (a.decode) {
      for (int32_t s = 0; s < a.sequences; ++s) Prompt(s, a.context);
    }
  }

  ~Timer() {
    llama_batch_free(batch_);
    llama_free(context_);
    ggml_threadpool_free(pool_);
    llama_model_free(model_);
  }

  double RunMicroseconds() {
    llama_memory_t memory = llama_get_memory(context_);
    if (a_.decode) {
      for (int32_t s = 0; s < a_.sequences; ++s) llama_memory_seq_rm(memory, s, a_.context, -1);
    } else {
      llama_memory_clear(memory, false);
    }
    const auto start = std::chrono::steady_clock::now();
    if (a_.decode) {
      for (int32_t i = 0; i < a_.tokens; ++i) Step(a_.context + i);
    } else {
      Prompt(0, a_.tokens);
    }
    const std::chrono::duration<double, std::micro> t = std::chrono::steady_clock::now() - start;
    return t.count();
  }

 private:
  void Add(int32_t position, int32_t sequence, bool logits) {
    const int32_t i = batch_.n_tokens++;
    batch_.token[i] = static_cast<llama_token>(random_() % static_cast<uint32_t>(vocabulary_));
    batch_.pos[i] = position;
    batch_.n_seq_id[i] = 1;
    batch_.seq_id[i][0] = sequence;
    batch_.logits[i] = logits;
  }

  void Decode() {
    if (const int32_t rc = llama_decode(context_, batch_); rc != 0) {
      Fail("llama_decode returned " + std::to_string(rc));
    }
    llama_synchronize(context_);
    batch_.n_tokens = 0;
  }

  void Prompt(int32_t sequence, int32_t tokens) {
    for (int32_t i = 0; i < tokens; ++i) {
      Add(i, sequence, i + 1 == tokens);
      if (batch_.n_tokens == chunk_ || i + 1 == tokens) Decode();
    }
  }

  void Step(int32_t position) {
    for (int32_t s = 0; s < a_.sequences; ++s) Add(position, s, true);
    Decode();
  }

  Arguments a_;
  llama_model* model_ = nullptr;
  llama_context* context_ = nullptr;
  ggml_threadpool* pool_ = nullptr;
  llama_batch batch_{};
  int32_t vocabulary_ = 0, chunk_ = 0;
  std::mt19937 random_{1};
};

void Requantize(const char* model, const char* out) {
  llama_model_quantize_params p = llama_model_quantize_default_params();
  p.ftype = LLAMA_FTYPE_MOSTLY_Q4_0;
  p.allow_requantize = true;
  if (llama_model_quantize(model, out, &p) != 0) Fail(std::string("cannot requantize ") + model);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[2]) == "requantize") {
    Requantize(argv[1], argv[3]);
    return 0;
  }
  if (argc != 8)
    Fail("usage: llama_timer MODEL prefill|decode THREADS KV TOKENS CONTEXT SEQUENCES");
  const Arguments a{.model = argv[1],
                    .kv = argv[4],
                    .decode = std::string(argv[2]) == "decode",
                    .threads = std::atoi(argv[3]),
                    .tokens = std::atoi(argv[5]),
                    .context = std::atoi(argv[6]),
                    .sequences = std::atoi(argv[7])};
  std::string buffers;
  llama_log_set(KeepBuffers, &buffers);
  llama_backend_init();
  Timer timer(a);
  timer.RunMicroseconds();
  std::printf("llama.cpp\t%s\nggml\t%s\ncommit\t%s\nsystem\t%s\nbuffers\t%s\nready\n",
              llama_version(), ggml_version(), ggml_commit(), llama_print_system_info(),
              buffers.c_str());
  std::fflush(stdout);
  char line[16];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    std::printf("%.1f\n", timer.RunMicroseconds());
    std::fflush(stdout);
  }
}
