// SPDX-License-Identifier: Apache-2.0
// Many requests on one model: continuous batching (Yu et al. 2022, "Orca") over pages of a pool.
//
// A step runs a token of each answer that is being written and pieces of prompts. Requests begin in
// the order of FairQueue, as far as pages last for their prompts and for what all are about to
// write. Where they run out, the newest answer gives its own back; computed anew later, it has all
// it can need reserved.
//
// On a CPU an answer's tokens depend on its request alone. On a GPU products and attention of other
// batches round differently (compute/backend.h).
#pragma once

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "engine/model.h"
#include "schedule/fair_queue.h"
#include "schedule/prefix_tree.h"
#include "schedule/sequence.h"
#include "schedule/stats.h"

namespace nibble {

struct SchedulerOptions {
  int64_t max_batch = 16;      // answers written at once
  int64_t max_waiting = 1024;  // answers that wait at most
  int64_t pages = 0;           // of the pool
  int64_t prompt_tokens = 64;  // of prompts in a step, beside answers that are being written
  // The tokens that a new answer is sure to be able to write. More would leave pages idle that most
  // answers never come to need.
  int64_t reserved_tokens = 64;
  int64_t context = 0;  // longest text; 0: the model's

  // The most tokens of a text in a step.
  int64_t MaxStep(Model& model) const {
    return std::max(prompt_tokens, model.backend().ChunkTokens());
  }
};

class Scheduler {
 public:
  // All must outlive this; the vocabulary may be null where no request has a grammar.
  Scheduler(Model& model, const Tokenizer& tokenizer, const VocabularyTrie* vocabulary,
            const SchedulerOptions& options);
  ~Scheduler();

  // Thread-safe. Returns a number for Cancel, or nullopt where too many wait. Throws (usage) for
  // requests that can never run. `sink` sees deltas until one with an end for each of the n
  // answers.
  std::optional<uint64_t> Submit(GenerationRequest request, DeltaSink sink);
  // Thread-safe. No step runs for the request from the next one on.
  void Cancel(uint64_t number);
  bool stopping() const;

  // Steps until Stop, and waits where there is nothing to do.
  void Run();
  // Thread-safe. Answers that are not finished end with an error.
  void Stop();
  // One step on this thread; false where there is nothing to do.
  bool Step();

  // Thread-safe.
  SchedulerStats stats() const;
  int64_t context() const { return context_; }
  const SchedulerOptions& options() const { return options_; }

 private:
  struct Piece {  // of a batch
    Sequence* sequence;
    int64_t tokens;
  };
  // A row of logits: what it is for, and what was found in it.
  struct Row {
    Sequence* sequence;
    int32_t at;         // in the residual stream
    int64_t tells = 0;  // the prompt's token whose logprob it gives; 0: it chooses the next one
    int32_t token = 0;  // that token
    std::optional<LikelyQuery> query = {};  // what the choice needs; none: all logits
    TokenLogprob logprob = {};
    std::string problem = {};
  };

  // scheduler.cc: who runs
  void Take();  // what was submitted and cancelled
  void Admit();
  bool TryBegin(Sequence& sequence, std::string& problem);
  bool Begin(Sequence& sequence);
  int64_t LongestText() const;
  int64_t PagesToCome(const Sequence& sequence, std::span<const PageRow> held) const;
  int64_t PagesToCome(const Sequence& sequence) const {
    return PagesToCome(sequence,
                       sequence.cache ? sequence.cache->held() : std::span<const PageRow>());
  }
  bool CopyPages(PageRow& row);
  bool Reserve(Sequence& sequence, int64_t tokens);
  void Preempt(Sequence& sequence);
  void ShareFullPages(Sequence& sequence);
  void GiveBack(Sequence& sequence);
  void Deliver(Sequence& sequence);
  void Conclude(Sequence& sequence, End end, const std::string& problem);
  void CountEnd(const Sequence& sequence, End end);
  void Publish();  // stats

  // step.cc: what a step does
  std::vector<Piece> Plan();
  void RunPieces(std::span<const Piece> pieces, bool again = false);
  void TryPieces(std::span<const Piece> pieces);
  static std::vector<Row> RowsOf(std::span<const Piece> pieces);
  void AddStates(std::span<const Piece> pieces, const float* x);
  static void ForSomeRows(
      std::span<Row> rows,
      const std::function<void(std::span<Row>, std::span<const int32_t>)>& work);
  void UseLikely(std::span<Row> rows, const float* x, int64_t tokens);
  void UseLogits(std::span<Row> rows, const float* x, int64_t tokens);
  void UseRow(Row& row, bool finite, const std::function<void()>& use) const;
  void Write(Sequence& sequence, TokenLogprob choice) const;
  static void Fail(Sequence& sequence, const std::string& problem);
  void AfterStep(std::span<const Piece> pieces);
  void CountToken(Sequence& sequence, Sequence::Clock::time_point now);
  void AfterPrompt(Sequence& sequence);

  Model& model_;
  const Tokenizer& tokenizer_;
  const VocabularyTrie* vocabulary_;
  const SchedulerOptions options_;
  const int64_t context_;
  PagePool pool_;
  PrefixTree tree_;
  std::vector<std::unique_ptr<KvCache>> caches_;  // not in use; tables stay where they are
  FairQueue<Sequence> queue_;
  std::deque<std::unique_ptr<Sequence>> preempted_;  // come first
  std::vector<std::unique_ptr<Sequence>> running_;   // the oldest first
  SchedulerStats stats_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::vector<std::unique_ptr<Sequence>> incoming_;
  std::map<uint64_t, std::weak_ptr<Submission>> submissions_;
  int64_t waiting_ = 0;  // incoming_, followers and queue_
  uint64_t submitted_ = 0;
  bool cancelled_ = false, stopping_ = false;
  SchedulerStats published_;
};

}  // namespace nibble
