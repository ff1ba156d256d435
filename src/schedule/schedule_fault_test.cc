// SPDX-License-Identifier: Apache-2.0
// Steps that fail: one request can end for it, others go on with the tokens that they have without,
// and no page is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <new>

#include "models/import/open_network.h"
#include "schedule/schedule_testing.h"

namespace nibble {
namespace {

constexpr int32_t kPoison = 777;

// A backend that does what another one does, unless told to fail. Calls of one kind are counted
// from 1; a fault sees the count.
class FaultyBackend : public Backend {
 public:
  explicit FaultyBackend(std::unique_ptr<Backend> real) : real_(std::move(real)) {}

  // Each returns whether a call fails; `ids` are those of Embed, `bytes` the size of Allocate.
  std::function<bool(int64_t count)> prepare_fails, logits_fail, logits_break;
  std::function<bool(std::span<const int32_t> ids)> embed_fails;
  std::function<bool(int64_t count, size_t bytes)> allocation_fails;
  void Heal() {
    prepare_fails = logits_fail = logits_break = nullptr;
    embed_fails = nullptr;
    allocation_fails = nullptr;
    prepared_ = logits_ = broken_ = allocated_ = 0;
  }

  std::string Name() const override { return real_->Name(); }
  int64_t ChunkTokens() const override { return real_->ChunkTokens(); }
  std::optional<uint64_t> FreeMemory() const override { return real_->FreeMemory(); }
  AlignedBytes Allocate(size_t bytes) override {
    if (allocation_fails && allocation_fails(++allocated_, bytes)) throw std::bad_alloc();
    return real_->Allocate(bytes);
  }
  void Write(const void* source, size_t bytes, void* target) override {
    real_->Write(source, bytes, target);
  }
  void Copy(const float* source, int64_t count, float* target) override {
    real_->Copy(source, count, target);
  }
  void Clear(float* x, int64_t count) override { real_->Clear(x, count); }
  const float* Read(const float* values, int64_t count) override {
    return real_->Read(values, count);
  }
  std::vector<Likely> FindLikelyRows(const float* logits, int64_t width, float cap,
                                     std::span<const LikelyQuery> queries) override {
    return real_->FindLikelyRows(logits, width, cap, queries);
  }
  PackedWeights Share(const PackedWeights& table, AlignedBytes& owner) override {
    return real_->Share(table, owner);
  }
  LinearId Upload(const PackedLinear& linear) override { return real_->Upload(linear); }
  void Release(LinearId id) override { real_->Release(id); }
  KernelUse KernelFor(const ProductFormat& product, int64_t tokens) const override {
    return real_->KernelFor(product, tokens);
  }
  void Embed(const PackedWeights& table, std::span<const int32_t> ids, float scale,
             float* x) override {
    // Only calls for the model's table may fail, not those that pick rows out of a batch.
    if (embed_fails && table.rows == 4096 && embed_fails(ids)) throw std::bad_alloc();
    real_->Embed(table, ids, scale, x);
  }
  void AddRows(const float* y, std::span<const int32_t> rows, std::span<const float> weights,
               int64_t width, float* x) override {
    real_->AddRows(y, rows, weights, width, x);
  }
  void AddNormed(const float* y, int64_t tokens, int64_t width, const float* weight, float eps,
                 const float* scale, float* x) override {
    real_->AddNormed(y, tokens, width, weight, eps, scale, x);
  }
  void NormRows(Intermediate* x, int64_t tokens, int64_t width, const float* weight,
                float eps) override {
    real_->NormRows(x, tokens, width, weight, eps);
  }
  Activations PrepareActs(const ActsSource& source, int64_t tokens,
                          const InputSpec& spec) override {
    if (prepare_fails && prepare_fails(++prepared_)) throw std::bad_alloc();
    return real_->PrepareActs(source, tokens, spec);
  }
  const float* Decode(const Activations& acts) override { return real_->Decode(acts); }
  void Gemm(const Activations& acts, LinearId id, float* y, int64_t y_stride,
            bool accumulate) override {
    if (logits_fail && y_stride == 4096 && logits_fail(++logits_)) throw std::bad_alloc();
    real_->Gemm(acts, id, y, y_stride, accumulate);
    // The likeliest logit stays as it is, so that only a look at all of them finds the infinite
    // one.
    if (logits_break && y_stride == 4096 && logits_break(++broken_)) y[kPoison] = -INFINITY;
  }
  void Project(const Activations& acts, std::span<const Projection> outputs) override {
    real_->Project(acts, outputs);
  }
  int64_t IntermediateBytes() const override { return real_->IntermediateBytes(); }
  ActsSource ProjectGated(const Activations& acts, Projection gate, Projection up,
                          const GateSpec& gating) override {
    return real_->ProjectGated(acts, gate, up, gating);
  }
  std::optional<ExpertsId> JoinExperts(const ExpertsSpec& spec) override {
    return real_->JoinExperts(spec);
  }
  void ReleaseExperts(ExpertsId id) override { real_->ReleaseExperts(id); }
  void RunExperts(ExpertsId id, const ActsSource& routed, const ActsSource& source, int64_t tokens,
                  float* x) override {
    real_->RunExperts(id, routed, source, tokens, x);
  }
  MathServices& services() override { return real_->services(); }
  void RopeAndAppend(Intermediate* q, Intermediate* k, const Intermediate* v,
                     const AttentionSpec& attention, const RopeView& rope, const KvSpec& kv,
                     std::span<const SequenceSlice> batch) override {
    real_->RopeAndAppend(q, k, v, attention, rope, kv, batch);
  }
  void Run(const OpsId& id, std::span<const SequenceSlice> batch,
           const std::function<void()>& ops) override {
    real_->Run(id, batch, ops);
  }
  void Attention(const Intermediate* q, const AttentionSpec& attention, const KvSpec& kv,
                 std::span<const SequenceSlice> batch, Intermediate* out) override {
    real_->Attention(q, attention, kv, batch, out);
  }

 private:
  const std::unique_ptr<Backend> real_;
  int64_t prepared_ = 0, logits_ = 0, broken_ = 0, allocated_ = 0;
};

class ScheduleFaultTest : public SchedulerTest {
 protected:
  static void SetUpTestSuite() {
    for (const GenerationRequest& r : Requests()) {
      Scheduler scheduler(Sample(), tokenizer(), nullptr, {.max_batch = 8, .pages = 200});
      const Answers answers = Ask(scheduler, r);
      while (scheduler.Step()) {
      }
      expected_.push_back(*answers);
    }
  }
  static void TearDownTestSuite() {
    expected_.clear();
    faulty_.reset();
  }
  void TearDown() override {
    if (faulty_) backend_->Heal();
  }

  static Model& faulty() {
    if (!faulty_) {
      auto backend = std::make_unique<FaultyBackend>(MakeBackend("cpu", false));
      backend_ = backend.get();
      faulty_ = std::make_unique<Model>(OpenNetwork(kTinyModel), std::move(backend));
    }
    return *faulty_;
  }
  static FaultyBackend& backend() {
    faulty();
    return *backend_;
  }

  // Requests of all kinds, with beginnings that are shared; none has kPoison in it.
  static std::vector<GenerationRequest> Requests() {
    std::vector<int32_t> common = Ids(80, 1), longer = common;
    std::ranges::replace(common, kPoison, kPoison + 1);
    longer = common;
    longer.resize(150, 9);
    return {{.prompt = common, .max_tokens = 12},
            {.prompt = longer, .max_tokens = 8, .sampling = {.temperature = 1}, .seed = 3},
            {.prompt = longer, .max_tokens = 4, .logprobs = 1, .prompt_logprobs = 1},
            {.prompt = common, .max_tokens = 10, .n = 2, .sampling = {.temperature = 1}},
            {.prompt = {5, 6, 7}, .max_tokens = 14, .sampling = {.presence = 1}},
            {.prompt = longer, .max_tokens = 3, .prompt_logprobs = 0},
            {.prompt = common, .max_tokens = 0, .pooling = Pooling{}}};
  }

  struct Crowd {
    std::vector<Answers> answers;
    int steps = 0;
  };
  static Crowd Serve(Scheduler& scheduler, const std::vector<GenerationRequest>& requests) {
    Crowd crowd;
    for (const GenerationRequest& r : requests) crowd.answers.push_back(Ask(scheduler, r));
    while (scheduler.Step() && ++crowd.steps < 1000) {
    }
    EXPECT_LT(crowd.steps, 1000) << "no end";
    const SchedulerStats stats = scheduler.stats();
    EXPECT_EQ(stats.running, 0);
    EXPECT_EQ(stats.waiting, 0);
    EXPECT_EQ(stats.pages_in_use, 0);
    return crowd;
  }

  // Expects answers of the request at `index` in Requests() that are whole and as without faults,
  // or, if `may_fail`, a part of that with an error behind. Returns how many are whole.
  static int ExpectAsAlone(const std::map<int, CollectedAnswer>& answers, size_t index,
                           bool may_fail) {
    const std::map<int, CollectedAnswer>& expected = expected_.at(index);
    EXPECT_EQ(answers.size(), expected.size()) << index;
    int whole = 0;
    for (const auto& [i, alone] : expected) {
      if (!answers.contains(i)) continue;
      const CollectedAnswer& answer = answers.at(i);
      EXPECT_EQ(answer.ends, 1) << index;
      if (answer.end == End::kError) {
        EXPECT_TRUE(may_fail) << index << ": " << answer.problem;
        EXPECT_NE(answer.problem, "");
        EXPECT_LE(answer.ids.size(), alone.ids.size());
        EXPECT_TRUE(std::equal(answer.ids.begin(), answer.ids.end(), alone.ids.begin()));
        continue;
      }
      ++whole;
      EXPECT_EQ(answer.ids, alone.ids) << index;
      EXPECT_EQ(answer.text, alone.text) << index;
      EXPECT_EQ(answer.end, alone.end) << index;
      EXPECT_EQ(answer.embedding, alone.embedding) << index;
      const auto same = [&](const auto& a, const auto& b) {
        EXPECT_EQ(a.size(), b.size()) << index;
        for (size_t t = 0; t < std::min(a.size(), b.size()); ++t) {
          EXPECT_EQ(a[t].id, b[t].id);
          EXPECT_EQ(a[t].logprob, b[t].logprob);
        }
      };
      same(answer.logprobs, alone.logprobs);
      same(answer.prompt_logprobs, alone.prompt_logprobs);
    }
    return whole;
  }
  static int ExpectAllAsAlone(const Crowd& crowd, bool may_fail) {
    int whole = 0;
    for (size_t i = 0; i < crowd.answers.size(); ++i) {
      whole += ExpectAsAlone(*crowd.answers[i], i, may_fail);
    }
    return whole;
  }

  static inline std::vector<std::map<int, CollectedAnswer>> expected_;
  static inline std::unique_ptr<Model> faulty_;
  static inline FaultyBackend* backend_ = nullptr;
};

TEST_F(ScheduleFaultTest, OneFailureEndsNobody) {
  for (const int64_t at : {1, 7, 60, 200, 333}) {
    backend().Heal();
    bool failed = false;
    backend().prepare_fails = [&](int64_t count) { return count == at && (failed = true); };
    Scheduler scheduler(faulty(), tokenizer(), nullptr, {.max_batch = 8, .pages = 60});
    ExpectAllAsAlone(Serve(scheduler, Requests()), false);
    EXPECT_TRUE(failed) << at;
  }
}

TEST_F(ScheduleFaultTest, ABatchThatAlwaysFailsIsRunOneByOne) {
  // Only batches fail: alone, each request can be served.
  bool failed = false;
  backend().embed_fails = [&](std::span<const int32_t> ids) {
    return ids.size() != 1 && ids.size() < 40 && (failed = true);
  };
  std::vector<GenerationRequest> requests = {Requests()[0], Requests()[0], Requests()[0]};
  Scheduler scheduler(faulty(), tokenizer(), nullptr, {.max_batch = 8, .pages = 60});
  const Crowd crowd = Serve(scheduler, requests);
  for (const Answers& answers : crowd.answers) ExpectAsAlone(*answers, 0, false);
  EXPECT_TRUE(failed);
}

TEST_F(ScheduleFaultTest, WhatAlwaysFailsEndsAlone) {
  backend().embed_fails = [](std::span<const int32_t> ids) {
    return std::ranges::find(ids, kPoison) != ids.end();
  };
  for (const bool in_prompt : {true, false}) {
    std::vector<GenerationRequest> requests = Requests();
    GenerationRequest bad = {.prompt = Ids(30, 9), .max_tokens = 5};
    std::ranges::replace(bad.prompt, kPoison, kPoison + 1);
    if (in_prompt) bad.prompt[20] = kPoison;
    bad.logit_bias = {{kPoison, 1e6f}};  // written first and read in the next step
    bad.n = 2;
    requests.push_back(bad);
    Scheduler scheduler(faulty(), tokenizer(), nullptr, {.max_batch = 9, .pages = 60});
    Crowd crowd = Serve(scheduler, requests);
    for (const auto& [index, answer] : *crowd.answers.back()) {
      EXPECT_EQ(answer.ends, 1);
      EXPECT_EQ(answer.end, End::kError);
      EXPECT_EQ(answer.problem, std::bad_alloc().what());
      EXPECT_EQ(answer.ids, std::vector<int32_t>(in_prompt ? 0 : 1, kPoison));
    }
    EXPECT_EQ(crowd.answers.back()->size(), 2u);
    crowd.answers.pop_back();
    ExpectAllAsAlone(crowd, false);
    EXPECT_EQ(scheduler.stats().ended[static_cast<size_t>(End::kError)], 2u);
  }
}

TEST_F(ScheduleFaultTest, LogitsThatFailOnceEndNobody) {
  // Some of these are the second rows of a step, when the first ones have had their effect.
  for (const int64_t at : {1, 2, 3, 4, 5, 8}) {
    backend().Heal();
    bool failed = false;
    backend().logits_fail = [&](int64_t count) { return count == at && (failed = true); };
    Scheduler scheduler(faulty(), tokenizer(), nullptr,
                        {.max_batch = 8, .pages = 60, .prompt_tokens = 400});
    ExpectAllAsAlone(Serve(scheduler, Requests()), false);
    EXPECT_TRUE(failed) << at;
  }
}

TEST_F(ScheduleFaultTest, LogitsThatAlwaysFailEndAllAndTheNextOnesAreServed) {
  backend().logits_fail = [](int64_t) { return true; };
  Scheduler scheduler(faulty(), tokenizer(), nullptr, {.max_batch = 8, .pages = 60});
  const Crowd crowd = Serve(scheduler, Requests());
  EXPECT_EQ(ExpectAllAsAlone(crowd, true), 1) << "embeddings have no logits";
  backend().Heal();
  ExpectAllAsAlone(Serve(scheduler, Requests()), false);
}

// This holds if the likeliest token is taken and if one is drawn.
TEST_F(ScheduleFaultTest, LogitsThatAreNotFiniteEndTheirAnswer) {
  for (const double temperature : {0.0, 1.0}) {
    backend().Heal();
    backend().logits_break = [](int64_t count) { return count == 3; };
    Scheduler scheduler(faulty(), tokenizer(), nullptr, {.max_batch = 8, .pages = 60});
    const std::vector<GenerationRequest> requests = {
        {.prompt = {5, 6, 7}, .max_tokens = 9, .sampling = {.temperature = temperature}}};
    const Crowd crowd = Serve(scheduler, requests);
    const CollectedAnswer& answer = crowd.answers[0]->at(0);
    EXPECT_EQ(answer.end, End::kError);
    EXPECT_EQ(answer.ids.size(), 2u);
    EXPECT_THAT(answer.problem, testing::HasSubstr("after 5 tokens: the logits are NaN"));
    EXPECT_EQ(Serve(scheduler, requests).answers[0]->at(0).cached, 0) << "nobody goes on from it";
  }
}

TEST_F(ScheduleFaultTest, LessMemoryThanWasThought) {
  const auto page_bytes = static_cast<size_t>(model().kv_groups().page_bytes());
  for (const int64_t max : {12, 6, 4, 3, 2, 1, 0}) {
    backend().Heal();
    int64_t pages = 0;
    backend().allocation_fails = [&](int64_t, size_t bytes) {
      return bytes == page_bytes && ++pages > max;
    };
    Scheduler scheduler(faulty(), tokenizer(), nullptr,
                        {.max_batch = 8, .pages = 60, .reserved_tokens = 2});
    const int whole = ExpectAllAsAlone(Serve(scheduler, Requests()), true);
    EXPECT_GE(whole, max >= 3 ? 1 : 0) << max << " pages";
    EXPECT_GT(pages, max) << "memory did not run out";
  }
}

// Whatever allocation fails, once or from then on: each request has an end.
TEST_F(ScheduleFaultTest, AnyAllocationMayFail) {
  for (const bool forever : {false, true}) {
    for (const int64_t at : {1, 2, 3, 4, 6, 9, 14}) {
      backend().Heal();
      backend().allocation_fails = [&](int64_t count, size_t) {
        return forever ? count >= at : count == at;
      };
      Scheduler scheduler(faulty(), tokenizer(), nullptr,
                          {.max_batch = 3, .pages = 8, .prompt_tokens = 32, .reserved_tokens = 2});
      ExpectAllAsAlone(Serve(scheduler, Requests()), true);
      if (!forever) continue;
      backend().Heal();
      ExpectAllAsAlone(Serve(scheduler, Requests()), false);
    }
  }
}

}  // namespace
}  // namespace nibble
