// SPDX-License-Identifier: Apache-2.0
// The QuaRot paper's speed measurements (appendix, tables 14, 16 and 17) on a GPU, beside cuBLASLt
// in the same process, turn by turn. The paper's "down" rows have the shape of the up projection;
// here down is down, with its own Hadamard.
#include <memory>

#include "apps/cli/bench.h"
#include "backends/cuda/cublas_peer.h"
#include "base/progress.h"
#include "base/rng.h"
#include "quantize/random_network.h"

namespace nibble::cli {
namespace {

using cuda::CublasProduct;
using Type = CublasProduct::Type;

constexpr int64_t kSequence = 2048;
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

class PaperBench {
 public:
  PaperBench(const BenchArguments& a, const Common& common)
      : arguments_(a), backend_(MakeBackend(common.device, false)) {}

  void Run(const Common& common) {
    const auto shape = [&](const std::string& name, int64_t tokens) {
      BenchArguments one = arguments_;
      one.shape = name, one.layers = 1;
      const Network network = BenchNetwork(one);
      Linears(name, network, tokens);
      DecodeLinears(name, network);
      for (const int64_t batch : {1, 4, 16}) Block(name, network, batch * kSequence, batch);
      DecodeBlock(name, network, 1);
      DecodeBlock(name, network, 16);
      for (const int64_t batch : {1, 16}) {
        for (const int64_t context : {256, 1024, 4096}) Memory(name, network, batch, context);
      }
    };
    shape("llama2-7b", kSequence);
    shape("llama2-70b", 8 * kSequence);
    common.json ? PrintJson(json_) : fmt::print("{}", Table(table_));
  }

 private:
  Buffer<float> Floats(int64_t count) {
    Rng rng(2);
    std::vector<float> piece(static_cast<size_t>(std::min<int64_t>(count, 1 << 22)));
    for (float& v : piece) v = static_cast<float>((rng.Uniform() - 0.5) * std::sqrt(12.0));
    Buffer<float> values = ToBackend(*backend_, {});
    values.Grow(count);
    for (int64_t at = 0; at < count; at += static_cast<int64_t>(piece.size())) {
      const int64_t length = std::min<int64_t>(static_cast<int64_t>(piece.size()), count - at);
      backend_->Write(piece.data(), static_cast<size_t>(length) * sizeof(float),
                      values.data() + at);
    }
    return values;
  }

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
      const Buffer<float> x = Floats(tokens * cols), y = Floats(tokens * rows);
      // Any bits do as bf16: none of these is large enough to be no number.
      const auto* gate = reinterpret_cast<const Intermediate*>(x.data());
      const ActsSource source =
          down ? ActsSource{.op = ActsSource::Op::kSiluMul, .gate = gate, .up = gate}
               : ActsSource{.x = x.data(), .op = ActsSource::Op::kRmsNorm, .norm_eps = 1e-5f};
      const Activations acts = backend_->PrepareActs(source, tokens, linear.input);
      const Backend::Projection projection = {id, reinterpret_cast<Intermediate*>(y.data())};
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
        const Buffer<float> x = Floats(tokens * cols), y = Floats(tokens * rows);
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

  // A whole decoder layer over prompts of 2048 tokens.
  void Block(const std::string& name, const Network& network, int64_t tokens, int64_t batch) {
    const ModelConfig& config = network.config;
    const Layer layer = UploadLayer(*backend_, network.layers[0]);
    const BackendRope rope(*backend_, BuildRope(config.rope, kSequence));
    Scratch scratch(*backend_);
    const Decoder decoder = {*backend_, config, network.kv, rope.view(), scratch};
    const Buffer<float> x = Floats(tokens * config.hidden_size);
    std::vector<KvCache> caches;
    std::vector<SequenceSlice> slices;
    for (int64_t i = 0; i < batch; ++i) {
      caches.emplace_back(network.kv, 1, *backend_).Reserve(kSequence);
      slices.push_back(
          {.first_row = i * kSequence, .tokens = kSequence, .pages = caches.back().pages()});
    }
    Contender nibble{"Nibble", [&] { ForwardLayer(decoder, layer, slices, x.data()); }};
    const auto products = Products(network, tokens, 1);
    Contender bf16{"bf16 products", [&] {
                     for (const auto& product : products) product->Run();
                   }};
    TakeTurns({&nibble, &bf16}, arguments_.repeats);
    Add(fmt::format("{} layer", name), fmt::format("{} x {} tokens", batch, kSequence), 0, 0,
        nibble, {&bf16});
    ReleaseLayer(*backend_, layer);
  }

  // Layers of a decode step behind 64 tokens.
  void DecodeBlock(const std::string& name, const Network& network, int64_t batch) {
    constexpr int kLayers = 4;
    constexpr int64_t kContext = 64;
    const ModelConfig& config = network.config;
    std::vector<Layer> layers;
    for (int i = 0; i < kLayers; ++i) {
      layers.push_back(UploadLayer(*backend_, network.layers[0]));
    }
    const BackendRope rope(*backend_, BuildRope(config.rope, kContext + 1));
    Scratch scratch(*backend_);
    const Decoder decoder = {*backend_, config, network.kv, rope.view(), scratch};
    const Buffer<float> x = Floats(batch * config.hidden_size);
    std::vector<KvCache> caches;
    std::vector<SequenceSlice> slices;
    for (int64_t i = 0; i < batch; ++i) {
      caches.emplace_back(network.kv, 1, *backend_).Reserve(kContext + 1);
      slices.push_back(
          {.first_row = i, .tokens = 1, .position = kContext, .pages = caches.back().pages()});
    }
    const void* const tensors[] = {x.data(), scratch.q.data()};
    const auto step = [&] {
      for (const Layer& layer : layers) ForwardLayer(decoder, layer, slices, x.data());
    };
    Contender nibble{"Nibble", [&] { backend_->Run(slices, tensors, step); }, kLayers};
    const auto products = Products(network, batch, kLayers);
    Contender bf16{"bf16 products",
                   [&] {
                     for (const auto& product : products) product->Run();
                   },
                   kLayers};
    TakeTurns({&nibble, &bf16}, arguments_.repeats);
    double bytes = 0;
    for (const PackedLinear& linear : network.layers[0].linears) {
      bytes += static_cast<double>(linear.weights.bytes());
    }
    Add(fmt::format("{} layer, decode", name), fmt::format("batch {}", batch), 0, bytes, nibble,
        {&bf16});
    for (const Layer& layer : layers) ReleaseLayer(*backend_, layer);
  }

  // What a layer takes on the GPU to decode behind `context` tokens: weights, cache, working
  // memory. The bf16 layer is counted with weights and cache alone.
  void Memory(const std::string& name, const Network& network, int64_t batch, int64_t context) {
    const ModelConfig& config = network.config;
    const auto backend = MakeBackend("cuda", false);
    const int64_t before = cuda::RequestedDeviceBytes();
    const Layer layer = UploadLayer(*backend, network.layers[0]);
    const BackendRope rope(*backend, BuildRope(config.rope, 1));
    Scratch scratch(*backend);
    const Decoder decoder = {*backend, config, network.kv, rope.view(), scratch};
    Buffer<float> x = ToBackend(*backend, {});
    x.Grow(batch * config.hidden_size);
    std::vector<KvCache> caches;
    std::vector<SequenceSlice> slices;
    for (int64_t i = 0; i < batch; ++i) {
      caches.emplace_back(network.kv, 1, *backend).Reserve(context);
      slices.push_back({.first_row = i, .tokens = 1, .pages = caches.back().pages()});
    }
    ForwardLayer(decoder, layer, slices, x.data());
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
