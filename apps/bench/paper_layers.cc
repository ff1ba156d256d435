// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "apps/bench/paper.h"
#include "backends/cuda/runtime/device_info.h"
#include "measure/bf16_peer.h"
#include "measure/cublas_peer.h"

namespace nibble::cli {
namespace {

using cuda::CublasProduct;

constexpr int64_t kSequence = 2048;
constexpr int64_t kContext = 1024;  // of a decode step, its own token included
constexpr int kDecodeLayers = 4;    // one behind the other, so that no cache holds their weights
constexpr int64_t kDecodedTokens = 50;  // of a measurement of memory

// `tokens` new tokens in each of `batch` sequences, behind `context` others.
struct Steps {
  int64_t batch, tokens, context;
};

// Copies of a layer, one behind the other, with all they need.
class LayerRun {
 public:
  LayerRun(Backend& backend, const Network& network, const BackendRopes& ropes, const Steps& steps,
           int copies)
      : backend_(backend),
        scratch_(backend),
        decoder_{backend, network.config, ropes, scratch_},
        x_(RandomFloats(backend, steps.batch * steps.tokens * network.config.hidden_size)) {
    for (int i = 0; i < copies; ++i) {
      layers_.push_back(
          UploadLayer(backend, network.config, 0, network.layers[0], network.caches[0]));
    }
    for (int64_t i = 0; i < steps.batch; ++i) {
      KvCache& cache = caches_.emplace_back(network.caches[0], 1, backend);
      cache.Reserve(steps.context + steps.tokens);
      cache.Advance(steps.context);
      slices_.push_back(cache.Slice(i * steps.tokens, steps.tokens));
    }
    scratch_.Reserve(network.config, steps.batch * steps.tokens);
  }
  LayerRun(const LayerRun&) = delete;
  ~LayerRun() {
    for (const Layer& layer : layers_) ReleaseLayer(backend_, layer);
  }

  void Run() {
    backend_.Run(ops_, slices_, [&] {
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
  const OpsId ops_;
};

// The seven products of a layer in bf16, for `copies` layers, without the rest of a layer.
std::vector<std::unique_ptr<CublasProduct>> Products(const Network& network, int64_t tokens,
                                                     int copies) {
  std::vector<std::unique_ptr<CublasProduct>> products;
  for (Role role : kLayerRoles) {
    const PackedWeights& w = network.layers[0][role].weights;
    products.push_back(std::make_unique<CublasProduct>(CublasProduct::Type::kBf16, tokens, w.rows,
                                                       w.cols, copies));
  }
  return products;
}

// A bf16 layer; without the libraries null, and a line that says why.
std::unique_ptr<cuda::Bf16Layer> Bf16LayerOf(const ModelConfig& c, const Steps& steps, int copies) {
  try {
    return std::make_unique<cuda::Bf16Layer>(
        cuda::Bf16Shape{.hidden = static_cast<int>(c.hidden_size),
                        .intermediate = static_cast<int>(c.intermediate_size),
                        .heads = static_cast<int>(c.heads),
                        .kv_heads = static_cast<int>(c.kv_heads),
                        .head_dim = static_cast<int>(c.head_dim)},
        cuda::Bf16Steps{.sequences = static_cast<int>(steps.batch),
                        .tokens = static_cast<int>(steps.tokens),
                        .context = static_cast<int>(steps.context)},
        copies);
  } catch (const Error& error) {
    Note("no bf16 layer: {}\n", error.what());
    return nullptr;
  }
}

// `copies` of a whole decoder layer beside as many in bf16, and beside their products alone.
void Layers(const PaperBench& bench, const std::string& what, const std::string& shape,
            const Network& network, const Steps& steps, int copies) {
  const BackendRopes ropes(bench.backend, network.config.ropes, steps.context + steps.tokens);
  LayerRun run(bench.backend, network, ropes, steps, copies);
  const auto layer = Bf16LayerOf(network.config, steps, copies);
  const auto products = Products(network, steps.batch * steps.tokens, copies);
  const auto units = static_cast<double>(copies);
  Contender nibble{"Nibble", [&] { run.Run(); }, units};
  Contender peer{"bf16 layer", [&] { layer->Run(); }, units};
  Contender bf16{"bf16 products",
                 [&] {
                   for (const auto& product : products) product->Run();
                 },
                 units};
  std::vector<Contender*> all = {&nibble, &bf16};
  if (layer != nullptr) all.insert(all.begin() + 1, &peer);
  TakeTurns(all, bench.arguments.repeats);
  const bool decodes = steps.tokens == 1;
  PaperTable::Work work;
  if (decodes) {
    work.bytes = static_cast<double>(steps.batch * BytesRead(network.caches[0], steps.context + 1));
  }
  for (const auto& [role, linear] : network.layers[0].linears) {
    if (decodes) {
      work.bytes += static_cast<double>(linear.weights.bytes());
    } else {
      work.operations += 2.0 * static_cast<double>(steps.batch * steps.tokens *
                                                   linear.weights.rows * linear.weights.cols);
    }
  }
  bench.table.Add(what, shape, work, nibble, {all.begin() + 1, all.end()});
}

// The memory that a layer takes on the GPU to decode kDecodedTokens behind a prompt of `context`
// tokens, as in QuaRot's table 17, beside that of a layer in bf16: weights, cache, working memory.
void Memory(const PaperBench& bench, const std::string& name, const Network& network, int64_t batch,
            int64_t context) {
  const ModelConfig& config = network.config;
  const auto backend = MakeBackend(bench.device, false);
  const int64_t tokens = context + kDecodedTokens;
  const BackendRopes ropes(*backend, config.ropes, tokens);  // of all layers
  const Steps steps = {batch, 1, tokens - 1};
  const auto requested = [](const auto& run) {
    const int64_t before = cuda::RequestedDeviceBytes();
    run();
    CublasProduct::Wait();
    return static_cast<double>(cuda::RequestedDeviceBytes() - before);
  };
  const double bytes = requested([&] { LayerRun(*backend, network, ropes, steps, 1).Run(); });
  const double bf16 = requested([&] {
    if (const auto layer = Bf16LayerOf(config, steps, 1)) layer->Run();
  });
  if (bf16 == 0) return;
  bench.table.AddMemory(name + " layer, memory", fmt::format("batch {}, {} tokens", batch, context),
                        bytes, bf16);
}

}  // namespace

void BenchLayers(const PaperBench& bench, const std::string& name, const Network& network) {
  const bool full = bench.arguments.full;
  std::vector<int64_t> batches = {1, 4, 16}, contexts = {256, 1024, 4096};
  if (full) batches.insert(batches.end(), {32, 64});
  if (full) contexts = {256, 512, 1024, 2048, 4096};
  for (const int64_t batch : batches) {
    Layers(bench, name + " layer", fmt::format("{} x {} tokens", batch, kSequence), network,
           {batch, kSequence, 0}, 1);
  }
  for (const int64_t batch : {1, 16, 64, 128, 256}) {
    Layers(bench, name + " layer, decode", fmt::format("batch {}", batch), network,
           {batch, 1, kContext - 1}, kDecodeLayers);
  }
  for (const int64_t batch : {1, 16}) {
    for (const int64_t context : contexts) Memory(bench, name, network, batch, context);
  }
}

}  // namespace nibble::cli
