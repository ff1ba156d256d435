// SPDX-License-Identifier: Apache-2.0
// The QuaRot paper's speed measurements (appendix, tables 14, 16 and 17) on a GPU, beside cuBLASLt
// in the same process, turn by turn. The paper's "down" rows have the shape of the up projection;
// here down is down, with its own Hadamard.
#include <memory>

#include "apps/cli/bench.h"
#include "backends/cuda/cublas_peer.h"
#include "base/progress.h"
#include "quantize/random_network.h"

namespace nibble::cli {
namespace {

using cuda::CublasProduct;
using Type = CublasProduct::Type;

constexpr int64_t kSequence = 2048;
constexpr int kDecodeLayers = 4;  // one behind the other, so that no cache holds their weights
constexpr int64_t kCachedBytes = 200 << 20;  // weights in turn, so that no cache holds them

// Something whose time is taken; run enqueues.
struct Contender {
  std::string name;
  std::function<void()> run;
  double units = 1;  // what one run counts for
  std::vector<double> seconds{};

  double median() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2] / units;
  }
};

// All contenders in turn, `repeats` times; each turn takes some milliseconds.
void TakeTurns(std::vector<Contender*> contenders, int64_t repeats) {
  const auto seconds = [](const Contender& c, int64_t count) {
    CublasProduct::Wait();
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < count; ++i) c.run();
    CublasProduct::Wait();
    return Seconds(start);
  };
  std::vector<int64_t> counts;
  for (Contender* c : contenders) {
    for (int i = 0; i < 3; ++i) c->run();  // the first runs record
    counts.push_back(1 + static_cast<int64_t>(5e-3 / seconds(*c, 1)));
  }
  for (int64_t turn = 0; turn < repeats; ++turn) {
    for (size_t i = 0; i < contenders.size(); ++i) {
      const double time = seconds(*contenders[i], counts[i]);
      contenders[i]->seconds.push_back(time / static_cast<double>(counts[i]));
    }
  }
}

// `tokens` new tokens in each of `batch` sequences, behind `context` others.
struct Steps {
  int64_t batch, tokens, context;
};

// Copies of a layer, one behind the other, with all they need.
class LayerRun {
 public:
  LayerRun(Backend& backend, const Network& network, const RopeView& rope, const Steps& steps,
           int copies)
      : backend_(backend),
        scratch_(backend),
        decoder_{backend, network.config, network.kv, rope, scratch_},
        x_(RandomFloats(backend, steps.batch * steps.tokens * network.config.hidden_size)) {
    for (int i = 0; i < copies; ++i) layers_.push_back(UploadLayer(backend, network.layers[0]));
    for (int64_t i = 0; i < steps.batch; ++i) {
      caches_.emplace_back(network.kv, 1, backend).Reserve(steps.context + steps.tokens);
      slices_.push_back({.first_row = i * steps.tokens,
                         .tokens = steps.tokens,
                         .position = steps.context,
                         .pages = caches_.back().pages()});
    }
    scratch_.Reserve(network.config, steps.batch * steps.tokens);
  }
  LayerRun(const LayerRun&) = delete;
  ~LayerRun() {
    for (const Layer& layer : layers_) ReleaseLayer(backend_, layer);
  }

  void Run() {
    const void* const tensors[] = {x_.data(), scratch_.q.data()};
    backend_.Run(slices_, tensors, [&] {
      for (const Layer& layer : layers_) ForwardLayer(decoder_, layer, slices_, x_.data());
    });
  }

 private:
  Backend& backend_;
  Scratch scratch_;
  const Decoder decoder_;
  const Buffer<float> x_;
  std::vector<Layer> layers_;
  std::vector<KvCache> caches_;
  std::vector<SequenceSlice> slices_;
};

class PaperBench {
 public:
  PaperBench(const BenchArguments& a, const Common& common)
      : arguments_(a), device_(common.device), backend_(MakeBackend(device_, false)) {}

  void Run(const Common& common) {
    const auto shape = [&](const std::string& name, int64_t tokens) {
      BenchArguments one = arguments_;
      one.shape = name, one.layers = 1;
      const Network network = BenchNetwork(one);
      Linears(name, network, tokens);
      DecodeLinears(name, network);
      for (const int64_t batch : {1, 4, 16}) {
        Layers(name + " layer", fmt::format("{} x {} tokens", batch, kSequence), network,
               {batch, kSequence, 0}, 1);
      }
      for (const int64_t batch : {1, 16}) {
        Layers(name + " layer, decode", fmt::format("batch {}", batch), network, {batch, 1, 64},
               kDecodeLayers);
      }
      for (const int64_t batch : {1, 16}) {
        for (const int64_t context : {256, 1024, 4096}) Memory(name, network, batch, context);
      }
    };
    shape("llama2-7b", kSequence);
    shape("llama2-70b", 8 * kSequence);
    common.json ? PrintJson(json_) : fmt::print("{}", Table(table_));
  }

 private:
  // One line: Nibble's time beside that of the others.
  void Add(const std::string& what, const std::string& shape, double operations, double bytes,
           const Contender& nibble, const std::vector<const Contender*>& others) {
    const double time = nibble.median();
    std::vector<std::string> row = {
        what, shape, fmt::format("{:.1f}", time * 1e6),
        operations > 0 ? fmt::format("{:.0f}", operations / time / 1e12) : "",
        bytes > 0 ? fmt::format("{:.0f}", bytes / time / 1e9) : ""};
    Json json = {{"name", what}, {"shape", shape}, {"median_us", time * 1e6}};
    if (operations > 0) json["tops"] = operations / time / 1e12;
    if (bytes > 0) json["gbps"] = bytes / time / 1e9;
    std::string ratios;
    for (const Contender* other : others) {
      ratios += fmt::format("{}{:.2f} x {}", ratios.empty() ? "" : ", ", other->median() / time,
                            other->name);
      json[other->name + "_us"] = other->median() * 1e6;
      json["ratio_" + other->name] = other->median() / time;
    }
    row.push_back(ratios);
    table_.push_back(row);
    json_.push_back(json);
    fmt::print(stderr, "{:<24} {:<22} {:>9} us  {}\n", what, shape, row[2], ratios);
  }

  // q, gate and down of a prompt, and what preparing down's input costs on top.
  void Linears(const std::string& name, const Network& network, int64_t tokens) {
    const LayerWeights& layer = network.layers[0];
    for (Role role : {Role::kQ, Role::kGate, Role::kDown}) {
      const PackedLinear& linear = layer[role];
      const int64_t rows = linear.weights.rows, cols = linear.weights.cols;
      const LinearId id = backend_->Upload(linear);
      const bool down = role == Role::kDown;
      const Buffer<float> x = RandomFloats(*backend_, tokens * cols);
      const Buffer<float> y = RandomFloats(*backend_, tokens * rows);
      const auto gate = RandomIntermediates(*backend_, tokens * cols);
      const auto up = RandomIntermediates(*backend_, tokens * cols);
      const auto values = RandomIntermediates(*backend_, tokens * rows);
      const ActsSource source = {.x = x.data(),
                                 .op = down ? ActsSource::Op::kSiluMul : ActsSource::Op::kRmsNorm,
                                 .norm_eps = 1e-5f,
                                 .gate = gate.data(),
                                 .up = up.data()};
      const Activations acts = backend_->PrepareActs(source, tokens, linear.input);
      const Backend::Projection projection = {id, values.data()};
      Contender nibble{"Nibble", [&] {
                         down ? backend_->Gemm(acts, id, y.data(), rows, true)
                              : backend_->Project(acts, {&projection, 1});
                       }};
      Contender prepare{"prepare", [&] { backend_->PrepareActs(source, tokens, linear.input); }};
      const CublasProduct bf16(Type::kBf16, tokens, rows, cols, 1);
      const CublasProduct int8(Type::kInt8, tokens, rows, cols, 1);
      const CublasProduct fp8(Type::kFp8, tokens, rows, cols, 1);
      Contender a{"bf16", [&] { bf16.Run(); }}, b{"s8", [&] { int8.Run(); }};
      Contender c{"fp8", [&] { fp8.Run(); }};
      TakeTurns({&nibble, &a, &b, &c, &prepare}, arguments_.repeats);
      const std::string shape = fmt::format("{} x {} x {}", tokens, rows, cols);
      const double operations = 2.0 * static_cast<double>(tokens * rows * cols);
      Add(fmt::format("{} {}", name, RoleName(role)), shape, operations, 0, nibble, {&a, &b, &c});
      if (down) {
        Add(fmt::format("{} silu, transform, quantize", name), fmt::format("{} x {}", tokens, cols),
            0, static_cast<double>(5 * tokens * cols), prepare, {&nibble});
      }
      backend_->Release(id);
    }
  }

  // Copies of a linear, one after the other.
  void DecodeLinears(const std::string& name, const Network& network) {
    for (Role role : {Role::kQ, Role::kGate, Role::kDown}) {
      const PackedLinear& linear = network.layers[0][role];
      const int64_t rows = linear.weights.rows, cols = linear.weights.cols;
      const auto copies = static_cast<int>(1 + kCachedBytes / (rows * cols / 2));
      std::vector<LinearId> ids;
      for (int i = 0; i < copies; ++i) ids.push_back(backend_->Upload(linear));
      for (const int64_t tokens : {1, 16}) {
        const Buffer<float> x = RandomFloats(*backend_, tokens * cols);
        const Buffer<float> y = RandomFloats(*backend_, tokens * rows);
        const Activations acts = backend_->PrepareActs({.x = x.data()}, tokens, linear.input);
        const SequenceSlice step = {.tokens = 1};
        const void* const tensors[] = {x.data(), y.data()};
        const auto all = [&] {
          for (LinearId id : ids) backend_->Gemm(acts, id, y.data(), rows, false);
        };
        Contender nibble{"Nibble",
                         [&] {
                           backend_->Run({&step, 1}, tensors, all);
                         },
                         static_cast<double>(copies)};
        const CublasProduct product(Type::kBf16, tokens, rows, cols, copies);
        Contender bf16{"bf16", [&] { product.Run(); }, static_cast<double>(copies)};
        TakeTurns({&nibble, &bf16}, arguments_.repeats);
        Add(fmt::format("{} {}, decode", name, RoleName(role)),
            fmt::format("{} x {} x {}", tokens, rows, cols), 0,
            static_cast<double>(linear.weights.bytes()), nibble, {&bf16});
      }
      for (LinearId id : ids) backend_->Release(id);
    }
  }

  // The seven products of a layer in bf16, `copies` layers; what else a layer does is not counted.
  static std::vector<std::unique_ptr<CublasProduct>> Products(const Network& network,
                                                              int64_t tokens, int copies) {
    std::vector<std::unique_ptr<CublasProduct>> products;
    for (Role role : kLayerRoles) {
      const PackedWeights& w = network.layers[0][role].weights;
      products.push_back(
          std::make_unique<CublasProduct>(Type::kBf16, tokens, w.rows, w.cols, copies));
    }
    return products;
  }

  // `copies` of a whole decoder layer, and their products in bf16.
  void Layers(const std::string& what, const std::string& shape, const Network& network,
              const Steps& steps, int copies) {
    const BackendRope rope(*backend_, BuildRope(network.config.rope, steps.context + steps.tokens));
    LayerRun run(*backend_, network, rope.view(), steps, copies);
    const auto products = Products(network, steps.batch * steps.tokens, copies);
    const auto units = static_cast<double>(copies);
    Contender nibble{"Nibble", [&] { run.Run(); }, units};
    Contender bf16{"bf16 products",
                   [&] {
                     for (const auto& product : products) product->Run();
                   },
                   units};
    TakeTurns({&nibble, &bf16}, arguments_.repeats);
    double bytes = 0;
    for (const PackedLinear& linear : network.layers[0].linears) {
      bytes += static_cast<double>(linear.weights.bytes());
    }
    Add(what, shape, 0, steps.tokens == 1 ? bytes : 0, nibble, {&bf16});
  }

  // What a layer takes on the GPU to decode behind `context` tokens: weights, cache, working
  // memory. The bf16 layer is counted with weights and cache alone.
  void Memory(const std::string& name, const Network& network, int64_t batch, int64_t context) {
    const ModelConfig& config = network.config;
    const auto backend = MakeBackend(device_, false);
    const BackendRope rope(*backend, BuildRope(config.rope, context));  // of all layers
    const int64_t before = cuda::RequestedDeviceBytes();
    LayerRun(*backend, network, rope.view(), {batch, 1, context - 1}, 1).Run();
    CublasProduct::Wait();
    const auto bytes = static_cast<double>(cuda::RequestedDeviceBytes() - before);
    int64_t bf16 = 4 * batch * context * config.kv_heads * config.head_dim;
    for (const PackedLinear& linear : network.layers[0].linears) {
      bf16 += 2 * linear.weights.rows * linear.weights.cols;
    }
    const std::string shape = fmt::format("batch {}, {} tokens", batch, context);
    const double ratio = static_cast<double>(bf16) / bytes;
    table_.push_back({fmt::format("{} layer, memory", name), shape, "", "", "",
                      fmt::format("{:.1f} MB, {:.2f} x bf16 {:.1f} MB", bytes / 1e6, ratio,
                                  static_cast<double>(bf16) / 1e6)});
    json_.push_back({{"name", name + " layer, memory"},
                     {"shape", shape},
                     {"bytes", bytes},
                     {"bf16_bytes", bf16},
                     {"ratio_bf16", ratio}});
  }

  const BenchArguments& arguments_;
  const std::string device_;
  const std::unique_ptr<Backend> backend_;
  std::vector<std::vector<std::string>> table_ = {
      {"what", "shape", "us", "TOPS", "GB/s", "time of others / Nibble"}};
  Json json_ = Json::array();
};

}  // namespace

void RunPaper(const BenchArguments& a, const Common& common) {
  if (common.device == "cpu") FailUsage("bench paper measures a GPU: --device cuda:0");
  PaperBench(a, common).Run(common);
}

}  // namespace nibble::cli
