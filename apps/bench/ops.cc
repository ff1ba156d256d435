// SPDX-License-Identifier: Apache-2.0
// Single ops, through the same Backend the engine uses.
#include <deque>
#include <memory>

#include "apps/bench/bench.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "measure/peak.h"
#include "models/families/family.h"
#ifdef NIBBLE_HAS_CUDA
#include "apps/bench/paper.h"
#endif

namespace nibble::cli {
namespace {

std::vector<cpu::Peak> PeaksOfGpu([[maybe_unused]] const std::string& device) {
#ifdef NIBBLE_HAS_CUDA
  MakeBackend(device, false);  // throws if the device cannot be used
  return MeasureGpuPeaks(9);
#else
  FailUsage("peaks of a GPU need a program that was built with CUDA");
#endif
}

// A GPU works behind the program's back: there an op is called many times before it is waited for.
template <typename Work>
Timing MeasureOp(Backend& backend, bool on_cpu, int64_t repeats, Work&& work) {
  const int64_t count = on_cpu ? 1 : 50;
  const Buffer<float> any = ToBackend(backend, std::vector<float>(1));
  Timing t = Measure(repeats, [&] {
    for (int64_t i = 0; i < count; ++i) work();
    backend.Read(any.data(), 1);
  });
  for (double* seconds : {&t.median, &t.min, &t.max}) *seconds /= static_cast<double>(count);
  return t;
}

// Attention of the first layer over all keys.
AttentionSpec SpecOf(const ModelConfig& config) {
  return {.heads = config.head_shape(0).heads,
          .scale = 0.1f,
          .softcap = static_cast<float>(config.attention_softcap)};
}

std::string_view SourceName(const ActsSource& source) {
  return source.op == ActsSource::Op::kRmsNorm ? "norm, " : source.up != nullptr ? "silu, " : "";
}

// One layer's ops with everything they read and write.
class OpBench {
 public:
  OpBench(const BenchArguments& a, const Common& common)
      : arguments_(a),
        network_(BenchNetwork(a)),
        config_(network_.config),
        backend_(MakeBackend(common.device, false)),
        on_cpu_(common.device == "cpu"),
        int_peak_(on_cpu_ ? cpu::MeasureIntPeak(ActiveIsa()).median : 0) {}

  std::vector<BenchRow> Run() {
    if (config_.router.experts > 0) {
      FailUsage("the ops of a mixture of experts are not measured one by one; use bench prefill");
    }
    const int64_t tokens = arguments_.tokens;
    const LayerWeights& layer = network_.layers[0];
    const ActsSource norm = {.op = ActsSource::Op::kRmsNorm};
    const Activations h = Prepare(layer[Role::kQ].input, norm);
    for (const Role role : {Role::kQ, Role::kK, Role::kV}) Product(layer, role, h);
    Product(layer, Role::kO, Prepare(layer[Role::kO].input, RopeAndAttention(tokens)));
    const ActsSource gated = GateAndUp(layer, Prepare(layer[Role::kGate].input, norm));
    Product(layer, Role::kDown, Prepare(layer[Role::kDown].input, gated));
    double sum = 0;
    for (const BenchRow& row : rows_) sum += row.time.median;
    for (BenchRow& row : rows_) row.share = row.time.median / sum;
    return rows_;
  }

 private:
  template <typename Work>
  void Add(BenchRow row, Work&& work) {
    row.time = MeasureOp(*backend_, on_cpu_, arguments_.repeats, work);
    rows_.push_back(std::move(row));
  }

  // Times preparing the input of some linears.
  Activations Prepare(const InputSpec& input, ActsSource source) {
    const int64_t tokens = arguments_.tokens;
    x_ = RandomFloats(*backend_, tokens * input.width);
    source.x = x_.data(), source.norm_eps = 1e-5f;
    const int64_t values = source.op == ActsSource::Op::kGated ? 2 : 1;
    const int64_t bytes = source.op == ActsSource::Op::kRmsNorm ? int64_t{sizeof(float)}
                                                                : backend_->IntermediateBytes();
    Activations acts;
    Add({.name = fmt::format("{}{}quantize", SourceName(source),
                             input.transform.identity() ? "" : "transform, "),
         .shape = fmt::format("{} x {} {}", tokens, input.width, TransformText(input.transform)),
         .bytes = static_cast<double>((bytes * values + 1) * tokens * input.width)},
        [&] { acts = backend_->PrepareActs(source, tokens, input); });
    return acts;
  }

  // Times a product, or several at once, of linears alike.
  template <typename Work>
  void AddProduct(std::string_view name, const PackedLinear& linear, int64_t count, Work&& work) {
    const PackedWeights& w = linear.weights;
    const int64_t tokens = arguments_.tokens;
    const bool integers = w.format.quantized() && linear.input.activations.quantized();
    Add({.name = fmt::format("{} {}", name, backend_->KernelFor(MainProduct(linear), tokens).name),
         .shape = fmt::format("{} x {} x {}", tokens, count * w.rows, w.cols),
         .operations = 2.0 * static_cast<double>(tokens * count * w.rows * w.cols),
         .bytes = static_cast<double>(count) * static_cast<double>(w.bytes()),
         .peak = integers ? int_peak_ : 0},
        work);
  }

  void Product(const LayerWeights& layer, Role role, const Activations& acts) {
    const int64_t rows = layer[role].weights.rows;
    const LinearId id = backend_->Upload(layer[role]);
    const Buffer<float> y = RandomFloats(*backend_, acts.tokens * rows);
    const auto values = RandomIntermediates(*backend_, acts.tokens * rows);
    const Backend::Projection projection = {id, values.data()};
    const bool residual = role == Role::kO || role == Role::kDown;  // added to x, as in a layer
    AddProduct(RoleName(role), layer[role], 1, [&] {
      residual ? backend_->Gemm(acts, id, y.data(), rows, true)
               : backend_->Project(acts, {&projection, 1});
    });
    backend_->Release(id);
  }

  // The source of down's input.
  ActsSource GateAndUp(const LayerWeights& layer, const Activations& acts) {
    const int64_t rows = layer[Role::kGate].weights.rows;
    gate_ = RandomIntermediates(*backend_, acts.tokens * rows);
    up_ = RandomIntermediates(*backend_, acts.tokens * rows);
    const Backend::Projection gate = {backend_->Upload(layer[Role::kGate]), gate_.data()};
    const Backend::Projection up = {backend_->Upload(layer[Role::kUp]), up_.data()};
    ActsSource gated;
    AddProduct("gate, up", layer[Role::kGate], 2,
               [&] { gated = backend_->ProjectGated(acts, gate, up, config_.gating); });
    backend_->Release(gate.id);
    backend_->Release(up.id);
    return gated;
  }

  // The source of o's input.
  ActsSource RopeAndAttention(int64_t tokens) {
    const HeadShape shape = config_.head_shape(0);
    const int64_t q_size = tokens * shape.q_width(), k_size = tokens * shape.kv_width();
    a_ = RandomIntermediates(*backend_, q_size);
    const auto q = RandomIntermediates(*backend_, q_size);
    const auto k = RandomIntermediates(*backend_, k_size);
    const auto v = RandomIntermediates(*backend_, k_size);
    KvCache cache(network_.caches[0], 1, *backend_);
    cache.Reserve(tokens);
    const BackendRopes ropes(*backend_, config_.ropes, tokens);
    const SequenceSlice slice = cache.Slice(0, tokens);
    const AttentionSpec spec = SpecOf(config_);
    const RopeView rope = ropes.view(config_.spec(0).rope);
    Add({.name = "rope + append", .shape = fmt::format("{} tokens", tokens)}, [&] {
      backend_->RopeAndAppend(q.data(), k.data(), v.data(), spec, rope, network_.caches[0],
                              {&slice, 1});
    });
    Add({.name = "attention",
         .shape = fmt::format("{} tokens", tokens),
         .operations = 2.0 * static_cast<double>(tokens * (tokens + 1) * shape.q_width())},
        [&] {
          backend_->Attention(q.data(), spec, network_.caches[0], {&slice, 1}, a_.data());
        });
    return {.op = ActsSource::Op::kIntermediate, .values = a_.data()};
  }

  const BenchArguments& arguments_;
  const Network network_;
  const ModelConfig& config_;
  const std::unique_ptr<Backend> backend_;
  const bool on_cpu_;
  const double int_peak_;  // operations per second
  std::vector<BenchRow> rows_;
  Buffer<float> x_;  // of the last Prepare
  Buffer<Intermediate> a_, gate_, up_;
};

// The last `tokens` tokens of `context` attend in each of `batch` sequences; before that the whole
// context enters their caches.
BenchRow AttentionRow(const BenchArguments& a, const ModelConfig& config, KvSpec kv, Backend& b,
                      bool on_cpu, int64_t context, int64_t tokens) {
  const HeadShape shape = config.head_shape(0);
  const int64_t q_size = std::max(context, a.batch * tokens) * shape.q_width();
  const int64_t k_size = context * shape.kv_width();
  const auto out = RandomIntermediates(b, q_size);
  const auto q = RandomIntermediates(b, q_size);
  const auto k = RandomIntermediates(b, k_size), v = RandomIntermediates(b, k_size);
  const BackendRopes ropes(b, config.ropes, context);
  const RopeView rope = ropes.view(config.spec(0).rope);
  const AttentionSpec spec = SpecOf(config);
  std::deque<KvCache> caches;
  std::vector<SequenceSlice> slices;
  for (int64_t i = 0; i < a.batch; ++i) {
    KvCache& cache = caches.emplace_back(kv, 1, b);
    cache.Reserve(context);
    const SequenceSlice all = cache.Slice(0, context);
    b.RopeAndAppend(q.data(), k.data(), v.data(), spec, rope, kv, {&all, 1});
    cache.Advance(context - tokens);
    slices.push_back(cache.Slice(i * tokens, tokens));
  }
  const double keys = static_cast<double>(tokens) * static_cast<double>(context) -
                      static_cast<double>(tokens * (tokens - 1)) / 2;
  return {
      .name = tokens == 1 ? "decode" : "prefill",
      .shape = fmt::format("{}, KV{}, {} x {} tokens of {}", a.model.empty() ? a.shape : a.model,
                           kv.k.bits, a.batch, tokens, context),
      .time = MeasureOp(b, on_cpu, a.repeats,
                        [&] { b.Attention(q.data(), spec, kv, slices, out.data()); }),
      .operations = 4 * keys * static_cast<double>(a.batch * shape.q_width()),
      .bytes = static_cast<double>(a.batch * BytesRead(kv, context))};
}

}  // namespace

std::vector<cpu::Peak> MeasurePeaks(const Common& common) {
  return common.device == "cpu" ? cpu::MeasurePeaks(ActiveIsa()) : PeaksOfGpu(common.device);
}

void RunPeak(const BenchArguments&, const Common& common) {
  const bool on_cpu = common.device == "cpu";
  const std::vector<cpu::Peak> peaks = MeasurePeaks(common);
  const std::string where =
      on_cpu ? fmt::format("{} threads, {}", Threads(), IsaName(ActiveIsa())) : common.device;
  std::vector<std::vector<std::string>> table = {{"peak", "median", "min", "max", "unit"}};
  Json json = Json::array();
  for (const cpu::Peak& p : peaks) {
    const bool bytes = p.name == "memory read";
    const double unit = bytes ? 1e9 : 1e12;
    table.push_back({std::string(p.name), fmt::format("{:.2f}", p.median / unit),
                     fmt::format("{:.2f}", p.min / unit), fmt::format("{:.2f}", p.max / unit),
                     bytes ? "GB/s" : "TOPS"});
    json.push_back({{"name", p.name},
                    {"shape", where},
                    {bytes ? "gbps" : "tops", p.median / unit},
                    {"min", p.min / unit},
                    {"max", p.max / unit}});
  }
  if (common.json) return PrintJson(json);
  fmt::print("{}{}\n", Table(table), where);
}

void RunKernels(const BenchArguments& a, const Common& common) {
  PrintRows(OpBench(a, common).Run(), common);
}

void RunAttention(const BenchArguments& a, const Common& common) {
  BenchArguments one = a;
  one.layers = 1;
  const Network network = BenchNetwork(one);
  const auto backend = MakeBackend(common.device, false);
  std::vector<KvSpec> caches = {network.caches[0]};
  if (caches[0].k.bits != 16 || caches[0].v.bits != 16) {
    KvSpec& wide = caches.emplace_back(caches[0]);
    wide.k = wide.v = {.bits = 16};
    wide.recent_bits = 0;
  }
  std::vector<BenchRow> rows;
  std::vector<int64_t> contexts = {512, 2048, 4096};
  if (a.context > 0) contexts = {a.context};
  for (const int64_t context : contexts) {
    std::vector<int64_t> counts = {std::min(a.tokens, context)};
    if (counts[0] > 1) counts.push_back(1);
    for (const int64_t tokens : counts) {
      for (const KvSpec& kv : caches) {
        rows.push_back(
            AttentionRow(a, network.config, kv, *backend, common.device == "cpu", context, tokens));
      }
    }
  }
  PrintRows(rows, common);
}

}  // namespace nibble::cli
