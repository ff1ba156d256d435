// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/bench/bench.h"

#include <cmath>
#include <deque>
#include <memory>
#include <numeric>

#include "base/half.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "measure/random_network.h"
#include "models/families/family.h"
#include "models/families/shapes.h"
#include "models/import/open_network.h"
#include "quantize/recipes/recipe_fields.h"

namespace nibble::cli {
namespace {

// Appends ids to every cache, one prompt after the other, as Session does.
void Fill(Model& model, std::deque<KvCache>& caches, int64_t tokens) {
  const std::vector<int32_t> ids = RandomIds(model.config(), tokens);
  const auto chunk_tokens = static_cast<size_t>(model.backend().ChunkTokens());
  for (KvCache& cache : caches) {
    for (auto rest = std::span(ids).subspan(static_cast<size_t>(cache.tokens())); !rest.empty();) {
      const auto chunk = rest.first(std::min(rest.size(), chunk_tokens));
      const Model::Sequence sequence = {chunk, &cache};
      model.Forward({&sequence, 1});
      rest = rest.subspan(chunk.size());
    }
  }
}

void RunPrefill(const BenchArguments& a, const Common& common) {
  Model model(BenchNetwork(a), MakeBackend(common.device, false));
  const std::string name = BenchName(a, model.network());
  if (a.tokens > model.context()) {
    FailUsage("{} tokens: the model's context is {}", a.tokens, model.context());
  }
  std::deque<KvCache> caches;
  caches.push_back(model.MakeCache());
  const Timing t = Measure(a.repeats, [&] {
    caches[0].Clear();
    const int64_t last = (a.tokens - 1) % model.backend().ChunkTokens();
    Fill(model, caches, a.tokens - last - 1);
    const std::vector<int32_t> ids = RandomIds(model.config(), last + 1);
    const Model::Sequence sequence = {ids, &caches[0]};
    const float* x = model.Forward({&sequence, 1});
    model.Logits(x + last * model.config().hidden_size, 1);
  });
  PrintRows({{.name = "prefill",
              .shape = fmt::format("{}, {} tokens", name, a.tokens),
              .time = t,
              .tokens = static_cast<double>(a.tokens)}},
            common);
}

// The share of a mixture's experts that `tokens` tokens are expected to need if routers treat them
// alike and independently; exact for one token.
double ExpertsRead(const ModelConfig& c, int64_t tokens) {
  if (c.router.experts == 0) return 1;
  const double missed =
      1 - static_cast<double>(c.router.experts_per_token) / static_cast<double>(c.router.experts);
  return 1 - std::pow(missed, static_cast<double>(tokens));
}

// Tokens written one by one behind `context` tokens, in `batch` sequences at once; every run begins
// there again.
void RunDecode(const BenchArguments& a, const Common& common) {
  Model model(BenchNetwork(a), MakeBackend(common.device, false));
  const std::string name = BenchName(a, model.network());
  const int64_t context = std::max<int64_t>(a.context, 1);
  if (context + a.tokens > model.context()) {
    FailUsage("{} tokens behind a context of {}: the model's context is {}", a.tokens, context,
              model.context());
  }
  std::deque<KvCache> caches;
  for (int64_t i = 0; i < a.batch; ++i) caches.push_back(model.MakeCache());
  const std::vector<int32_t> ids = RandomIds(model.config(), a.batch);
  std::vector<Model::Sequence> sequences;
  for (size_t i = 0; i < caches.size(); ++i) sequences.push_back({{&ids[i], 1}, &caches[i]});
  const auto write = [&] {
    for (int64_t i = 0; i < a.tokens; ++i) WriteTokens(model, sequences);
  };
  const Timing t = Measure(a.repeats, write, [&] {
    for (KvCache& cache : caches) cache.Truncate(std::min(cache.tokens(), context));
    Fill(model, caches, context);  // computes pages that a window gave back again
  });
  PrintRows({{.name = "decode",
              .shape = fmt::format("{}, {} x {} tokens after {}", name, a.batch, a.tokens, context),
              .time = t,
              .tokens = static_cast<double>(a.tokens * a.batch),
              .bytes = static_cast<double>(a.tokens) *
                       WeightBytes(model.network(), ExpertsRead(model.config(), a.batch))}},
            common);
}

void AddRecipe(CLI::App& verb, BenchArguments& a) {
  verb.add_option("--recipe", a.recipe,
                  "--shape: whose formats and transforms (default: " + std::string(a.usual.name) +
                      "); its fields below change it");
  AddFields(verb, a.changes);
}

CLI::Option* AddShape(CLI::App& verb, BenchArguments& a) {
  CLI::Option* shape = verb.add_option(
      "--shape", a.shape, "Random weights of a known shape, as llama2-7b; another name lists them");
  verb.add_option("--layers", a.layers, "--shape: layers; 0 = all (llama2-70b: 1)")
      ->check(CLI::Range(0, 1000));
  AddRecipe(verb, a);
  return shape;
}

void AddModel(CLI::App& verb, BenchArguments& a) {
  CLI::Option* model = cli::AddModel(verb, a.model);
  AddShape(verb, a)->excludes(model);
}

void AddCounts(CLI::App& verb, BenchArguments& a, const std::string& tokens) {
  verb.add_option("--tokens", a.tokens, tokens)
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb.add_option("--repeats", a.repeats, "Timed runs; the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
}

void AddBatch(CLI::App& verb, BenchArguments& a, const std::string& sequences) {
  verb.add_option("--batch", a.batch, sequences)->check(CLI::Range(1, 1024))->capture_default_str();
}

}  // namespace

#ifndef NIBBLE_HAS_CUDA
void RunPaper(const BenchArguments&, const Common&) {
  FailUsage("bench paper needs a program that was built with CUDA");
}
#endif

Json BenchConfig(const BenchArguments& a) {
  if (a.shape.empty()) FailUsage("name a model directory, or --shape llama2-7b");
  const bool whole = a.layers == 0 && a.shape == "llama2-70b";  // 35 GB
  return ShapeConfig(a.shape, whole ? 1 : a.layers);
}

ModelConfig BenchShape(const BenchArguments& a) {
  return ParseConfig(BenchConfig(a), a.shape);
}

Recipe BenchRecipe(const BenchArguments& a) {
  return a.changes.Of(a.recipe.empty() ? a.usual : FindRecipe(a.recipe));
}

Network BenchNetwork(const BenchArguments& a) {
  if (!a.model.empty()) return OpenNetwork(a.model);
  return RandomNetwork(BenchShape(a), BenchRecipe(a), 1);
}

std::string BenchName(const BenchArguments& a, const Network& network) {
  if (!a.model.empty()) return a.model;
  const Recipe recipe = BenchRecipe(a);
  return fmt::format("{}, {} layers, {} W{}A{}KV{}, head W{}A{}", a.shape, network.config.layers,
                     recipe.name, FormatText(recipe.weights), recipe.activations.bits,
                     recipe.k.bits, network.head.weights.format.bits,
                     network.head.input.activation.bits);
}

void WriteTokens(Model& model, std::span<const Model::Sequence> sequences) {
  std::vector<int32_t> rows(sequences.size());
  std::iota(rows.begin(), rows.end(), 0);
  model.ArgMax(model.Forward(sequences), static_cast<int64_t>(rows.size()), rows);
}

std::vector<int32_t> RandomIds(const ModelConfig& config, int64_t count) {
  Rng rng(1);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<int32_t>(rng.Below(static_cast<uint64_t>(config.vocab_size))));
  }
  return ids;
}

namespace {

// Fills `bytes` bytes from `target` on with repetitions of `values`.
template <typename T>
void Repeat(Backend& backend, const std::vector<T>& values, std::byte* target, int64_t bytes) {
  const auto length = static_cast<int64_t>(values.size() * sizeof(T));
  for (int64_t at = 0; at < bytes; at += length) {
    backend.Write(values.data(), static_cast<size_t>(std::min(length, bytes - at)), target + at);
  }
}

std::vector<float> RandomPiece(int64_t count) {
  Rng rng(2);
  std::vector<float> values(static_cast<size_t>(std::min<int64_t>(count, 1 << 22)));
  for (float& v : values) v = static_cast<float>((rng.Uniform() - 0.5) * std::sqrt(12.0));
  return values;
}

}  // namespace

Buffer<float> RandomFloats(Backend& backend, int64_t count) {
  Buffer<float> buffer(backend.allocator());
  auto* target = reinterpret_cast<std::byte*>(buffer.Grow(count));
  Repeat(backend, RandomPiece(count), target, count * static_cast<int64_t>(sizeof(float)));
  return buffer;
}

Buffer<Intermediate> RandomIntermediates(Backend& backend, int64_t count) {
  const std::vector<float> values = RandomPiece(count);
  Buffer<Intermediate> buffer(backend.allocator());
  const int64_t bytes = count * backend.IntermediateBytes();
  Intermediate* target = buffer.Grow(bytes);
  if (backend.IntermediateBytes() == sizeof(float)) {
    Repeat(backend, values, target, bytes);
    return buffer;
  }
  std::vector<uint16_t> halves;
  for (float v : values) halves.push_back(Bf16FromF32(v));
  Repeat(backend, halves, target, bytes);
  return buffer;
}

double WeightBytes(const Network& network, double experts_read) {
  double bytes = static_cast<double>(network.head.weights.bytes());
  for (const LayerWeights& layer : network.layers) {
    for (const auto& [role, linear] : layer.linears) {
      const double share = ExpertOf(role) < 0 ? 1 : experts_read;
      bytes += share * static_cast<double>(linear.weights.bytes());
    }
  }
  return bytes;
}

void PrintRows(const std::vector<BenchRow>& rows, const Common& common) {
  if (common.json) {
    Json json = Json::array();
    for (const BenchRow& r : rows) {
      json.push_back({{"name", r.name},
                      {"shape", r.shape},
                      {"median_us", r.time.median * 1e6},
                      {"min_us", r.time.min * 1e6},
                      {"max_us", r.time.max * 1e6}});
      Json& row = json.back();
      if (r.tokens > 0) row["tokens_per_second"] = r.tokens / r.time.median;
      if (r.operations > 0) row["tops"] = r.operations / r.time.median / 1e12;
      if (r.bytes > 0) row["gbps"] = r.bytes / r.time.median / 1e9;
      if (r.peak > 0) row["peak_share"] = r.operations / r.time.median / r.peak;
      if (r.share > 0) row["share"] = r.share;
    }
    return PrintJson(json);
  }
  std::vector<std::vector<std::string>> table = {{"bench", "shape", "median us", "min", "max",
                                                  "tokens/s", "TOPS", "% of peak", "GB/s",
                                                  "% of time"}};
  const auto cell = [](double value, int digits) {
    return value > 0 ? fmt::format("{:.{}f}", value, digits) : std::string();
  };
  for (const BenchRow& r : rows) {
    const double s = r.time.median;
    table.push_back({r.name, r.shape, cell(s * 1e6, 0), cell(r.time.min * 1e6, 0),
                     cell(r.time.max * 1e6, 0), cell(r.tokens / s, 1),
                     cell(r.operations / s / 1e12, 3),
                     r.peak > 0 ? cell(100 * r.operations / s / r.peak, 1) : "",
                     cell(r.bytes / s / 1e9, 1), cell(100 * r.share, 1)});
  }
  fmt::print("{}", Table(table));
}

void AddBench(CLI::App& app, Common& common, Run& run) {
  CLI::App* bench = app.add_subcommand("bench", "Measure speed and quality");
  bench->require_subcommand(1);
  const auto verb = [&](const std::string& name, const std::string& description,
                        const std::string& example, const auto& work) {
    const auto a = std::make_shared<BenchArguments>();
    CLI::App* added = AddVerb(*bench, common, name, description, example);
    added->callback([a, &common, &run, work] { run = [a, &common, work] { work(*a, common); }; });
    return std::pair(added, a);
  };
  verb("peak", "What this CPU or GPU multiplies and reads at most", "nibble bench peak", RunPeak);
  const auto [kernels, k] =
      verb("kernels", "Every op of one layer, and its share of the layer's time",
           "nibble bench kernels --shape llama2-7b --tokens 512", RunKernels);
  k->shape = "llama2-7b";
  AddModel(*kernels, *k);
  AddCounts(*kernels, *k, "Tokens of a batch");
  const auto [attention, t] =
      verb("attention", "Attention of one layer over caches of --kv-bits and of 16 bits",
           "nibble bench attention --shape llama3-8b --kv-bits 4", RunAttention);
  t->shape = "llama2-7b";
  AddModel(*attention, *t);
  AddCounts(*attention, *t, "Tokens of a prompt's last chunk");
  attention->add_option("--context", t->context, "Tokens of a sequence (default: 512, 2048, 4096)")
      ->check(CLI::Range(1, 1 << 20));
  AddBatch(*attention, *t, "Sequences that attend at once");
  const auto [prefill, p] =
      verb("prefill", "A prompt", "nibble bench prefill llama-w4a4kv4 --tokens 512", RunPrefill);
  AddModel(*prefill, *p);
  AddCounts(*prefill, *p, "Tokens of the prompt");
  const auto [decode, d] =
      verb("decode", "Tokens one by one",
           "nibble bench decode llama-w4a4kv4 --context 1024 --batch 8", RunDecode);
  d->tokens = 32;
  AddModel(*decode, *d);
  AddCounts(*decode, *d, "Tokens to write in a run");
  decode->add_option("--context", d->context, "Tokens in the cache before each run")
      ->check(CLI::Range(0, 1 << 20));
  AddBatch(*decode, *d, "Sequences written at once");
  const auto [serve, l] =
      verb("serve", "A mixed load on the scheduler of `nibble serve`, beside its parts alone",
           "nibble bench serve --shape llama2-7b --device cuda:0 --batch 256", RunServeBench);
  AddModel(*serve, *l);
  AddCounts(*serve, *l, "Tokens of prompts in a step, beside answers");
  AddBatch(*serve, *l, "Streams: requests that are under way");
  serve->add_option("--pages", l->pages, "Pages, in percent of what all streams could come to need")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  const auto [startup, s] =
      verb("startup", "From the program's start to the first token, and the memory it takes",
           "nibble bench startup /tmp/7b --shape llama2-7b", RunStartup);
  startup->add_option("model", s->model, "Checkpoint; with --shape written first if absent")
      ->required();
  AddShape(*startup, *s);
  startup->add_option("--repeats", s->repeats, "Timed runs; the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  const auto [tokenizer, z] =
      verb("tokenizer", "A text to ids and back, on one thread",
           "nibble bench tokenizer llama --text test.raw", RunTokenizerBench);
  tokenizer->add_option("model", z->model, "Model whose tokenizer runs")->required();
  tokenizer->add_option("--text", z->text, "Text file")->required();
  tokenizer->add_option("--repeats", z->repeats, "Timed runs; the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  const auto [quantizing, q] =
      verb("quantize", "Quantizing one layer, by stage",
           "nibble bench quantize --shape llama2-7b --device cuda:0", RunQuantizing);
  q->recipe = "quarot", q->context = 2048;
  AddShape(*quantizing, *q)->required();
  quantizing->add_option("--calib-windows", q->windows, "Windows of calibration")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  quantizing->add_option("--context", q->context, "Tokens of a window")
      ->check(CLI::Range(1, 8192))
      ->capture_default_str();
  const auto [paper, r] = verb("paper", "The QuaRot paper's speed tables on a GPU, beside cuBLASLt",
                               "nibble bench paper --device cuda:0", RunPaper);
  paper->add_option("--shape", r->shape,
                    "Products and layers of this shape alone; else of llama2-7b and llama2-70b");
  r->usual = kQuarotRecipe;
  r->usual.activations.bits = 8;
  AddRecipe(*paper, *r);
  paper->add_option("--repeats", r->repeats, "Turns; the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  AddQuality(*bench, common, run);
}

}  // namespace nibble::cli
