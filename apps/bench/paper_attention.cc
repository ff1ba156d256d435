// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/paper.h"
#include "measure/bf16_peer.h"

namespace nibble::cli {
namespace {

// `copies` caches of `batch` sequences with `keys` random keys and values each: the layers of one.
class AttentionRun {
 public:
  AttentionRun(Backend& backend, const Network& network, int64_t batch, int64_t keys, int copies)
      : backend_(backend),
        kv_(network.caches[0]),
        spec_{.heads = network.config.heads,
              .scale = 1 / std::sqrt(static_cast<float>(kv_.head_dim))},
        copies_(copies),
        ropes_(backend, network.config.ropes, keys),
        q_(RandomIntermediates(backend, batch * spec_.heads * kv_.head_dim)),
        k_(RandomIntermediates(backend, batch * kv_.kv_heads * kv_.head_dim)),
        v_(RandomIntermediates(backend, batch * kv_.kv_heads * kv_.head_dim)),
        out_(RandomIntermediates(backend, batch * spec_.heads * kv_.head_dim)) {
    auto q = RandomIntermediates(backend, keys * spec_.heads * kv_.head_dim);
    auto k = RandomIntermediates(backend, keys * kv_.kv_heads * kv_.head_dim);
    const auto v = RandomIntermediates(backend, keys * kv_.kv_heads * kv_.head_dim);
    for (int64_t i = 0; i < batch; ++i) {
      KvCache& cache = caches_.emplace_back(kv_, copies, backend);
      cache.Reserve(keys);
      SequenceSlice all = cache.Slice(0, keys);
      for (int copy = 0; copy < copies; ++copy, Next(all)) {
        backend.RopeAndAppend(q.data(), k.data(), v.data(), spec_, ropes_.view(0), kv_, {&all, 1});
      }
      cache.Advance(keys - 1);
      slices_.push_back(cache.Slice(i, 1));
    }
  }

  void Run(bool appends) {
    backend_.Run(appends ? appending_ : ops_, slices_, [&] {
      std::vector<SequenceSlice> layer = slices_;
      for (int copy = 0; copy < copies_; ++copy) {
        if (appends) {
          backend_.RopeAndAppend(q_.data(), k_.data(), v_.data(), spec_, ropes_.view(0), kv_,
                                 layer);
        }
        backend_.Attention(q_.data(), spec_, kv_, layer, out_.data());
        for (SequenceSlice& s : layer) Next(s);
      }
    });
  }

 private:
  // Moves the slice to the layer behind this one.
  void Next(SequenceSlice& slice) const {
    slice.offset += kv_.page_bytes();
    slice.recent_offset += kv_.Recent().page_bytes();
  }

  Backend& backend_;
  const KvSpec kv_;
  const AttentionSpec spec_;
  const int copies_;
  const BackendRopes ropes_;
  Buffer<Intermediate> q_, k_, v_, out_;
  std::vector<KvCache> caches_;
  std::vector<SequenceSlice> slices_;
  const OpsId ops_, appending_;
};

}  // namespace

void BenchDecodeAttention(const PaperBench& bench, const Network& network, int64_t batch,
                          int64_t keys) {
  const ModelConfig& config = network.config;
  const auto copies = [](int64_t bytes) { return static_cast<int>(1 + kCachedBytes / bytes); };
  const int64_t bytes = batch * BytesRead(network.caches[0], keys);
  const int64_t bf16_bytes = 4 * batch * keys * config.kv_heads * config.head_dim;
  AttentionRun run(bench.backend, network, batch, keys, copies(bytes));
  const auto units = static_cast<double>(copies(bytes));
  Contender nibble{"Nibble", [&] { run.Run(false); }, units};
  Contender whole{"Nibble", [&] { run.Run(true); }, units};
  std::vector<Contender*> all = {&nibble, &whole};
  std::unique_ptr<cuda::Bf16Attention> peer;
  Contender bf16{"bf16", [&] { peer->Run(); }, static_cast<double>(copies(bf16_bytes))};
  try {
    peer = std::make_unique<cuda::Bf16Attention>(
        cuda::Bf16Shape{.heads = static_cast<int>(config.heads),
                        .kv_heads = static_cast<int>(config.kv_heads),
                        .head_dim = static_cast<int>(config.head_dim)},
        cuda::Bf16Steps{.sequences = static_cast<int>(batch),
                        .context = static_cast<int>(keys) - 1},
        copies(bf16_bytes));
    all.push_back(&bf16);
  } catch (const Error& error) {
    Note("no bf16 attention: {}\n", error.what());
  }
  TakeTurns(all, bench.arguments.repeats);
  const std::string what =
      fmt::format("attention, decode, {}/{} heads", config.heads, config.kv_heads);
  const std::string shape = fmt::format("batch {}, {} keys", batch, keys);
  const PaperTable::Work work = {.bytes = static_cast<double>(bytes)};
  bench.table.Add(what, shape, work, nibble, {all.begin() + 2, all.end()});
  bench.table.Add("append, " + what, shape, work, whole, {all.begin() + 2, all.end()});
}

}  // namespace nibble::cli
