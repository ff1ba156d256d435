// SPDX-License-Identifier: Apache-2.0
#include "schedule/scheduler.h"

#include <algorithm>
#include <iterator>

namespace nibble {
namespace {

double Seconds(Sequence::Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

Scheduler::Scheduler(Model& model, const Tokenizer& tokenizer, const VocabularyTrie* vocabulary,
                     const SchedulerOptions& options)
    : model_(model),
      tokenizer_(tokenizer),
      vocabulary_(vocabulary),
      options_(options),
      context_(LongestText()),
      pool_(model.kv_groups().page_bytes(), model.backend(), options.pages),
      tree_(model.kv_groups()) {
  NIBBLE_CHECK(options.max_batch > 0 && context_ > 0 && options.prompt_tokens > 0);
  stats_.pages = options.pages;
  published_ = stats_;
}

// The longest text that a sequence may come to and that fits into the pool.
int64_t Scheduler::LongestText() const {
  const int64_t wanted =
      options_.context > 0 ? std::min(options_.context, model_.context()) : model_.context();
  const auto fits = [&](int64_t pages) {
    return model_.kv_groups().MaxPages(pages, options_.MaxStep(model_)) <= options_.pages;
  };
  int64_t pages = PagesOf(wanted);
  while (pages > 0 && !fits(pages)) --pages;
  return std::min(wanted, pages * kPageTokens);
}

Scheduler::~Scheduler() {
  running_.clear();
}

std::optional<uint64_t> Scheduler::Submit(GenerationRequest request, DeltaSink sink) {
  const auto length = static_cast<int64_t>(request.prompt.size());
  if (length == 0) FailUsage("the prompt has no token");
  if (length > context_) {
    FailUsage("the prompt has {} tokens, the context is {}; shorten the prompt", length, context_);
  }
  const int64_t vocabulary = model_.config().vocab_size;
  for (const int32_t id : request.prompt) {
    if (id < 0 || id >= vocabulary) {
      FailUsage("token id {} is outside the vocabulary of {}", id, vocabulary);
    }
  }
  CheckSampling(request.sampling);
  // One token more than the context: the last one written need not be read.
  request.max_tokens = std::min(request.max_tokens, context_ + 1 - length);
  const auto submission = std::make_shared<Submission>();
  submission->request = std::move(request);
  submission->sink = std::move(sink);
  const GenerationRequest& r = submission->request;
  std::unique_ptr<Sequence> first;
  for (int i = 0; i < r.n; ++i) {
    auto sequence = std::make_unique<Sequence>(submission, i, tokenizer_, vocabulary_);
    sequence->reserved = r.max_tokens <= options_.reserved_tokens;
    (first ? first->followers.emplace_back() : first) = std::move(sequence);
  }
  const std::lock_guard lock(mutex_);
  if (stopping_ || waiting_ + r.n > options_.max_waiting) return std::nullopt;
  submission->number = ++submitted_;
  waiting_ += r.n;
  submissions_[submitted_] = submission;
  incoming_.push_back(std::move(first));
  wake_.notify_one();
  return submitted_;
}

bool Scheduler::stopping() const {
  const std::lock_guard lock(mutex_);
  return stopping_;
}

void Scheduler::Cancel(uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = submissions_.find(number);
  if (found == submissions_.end()) return;
  if (const auto submission = found->second.lock()) submission->cancelled = true;
  cancelled_ = true;
  wake_.notify_one();
}

void Scheduler::Stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  wake_.notify_one();
}

void Scheduler::Run() {
  while (true) {
    const bool worked = Step();
    std::unique_lock lock(mutex_);
    if (!worked) {
      wake_.wait(lock, [&] { return stopping_ || cancelled_ || !incoming_.empty(); });
    }
    if (stopping_) break;
  }
  Take();
  const auto stop = [&](Sequence& s) {
    Conclude(s, End::kError, "the server is stopping");
    return true;
  };
  for (const auto& sequence : running_) stop(*sequence);
  running_.clear();
  for (const auto& sequence : preempted_) stop(*sequence);
  preempted_.clear();
  queue_.RemoveIf(stop);
  Publish();
}

void Scheduler::Take() {
  std::vector<std::unique_ptr<Sequence>> incoming;
  bool cancelled = false;
  {
    const std::lock_guard lock(mutex_);
    incoming.swap(incoming_);
    cancelled = std::exchange(cancelled_, false);
    std::erase_if(submissions_, [](const auto& entry) { return entry.second.expired(); });
  }
  for (auto& sequence : incoming) {
    const std::string client = sequence->request().client;
    queue_.Push(client, std::move(sequence));
  }
  if (!cancelled) return;
  const auto gone = [&](Sequence& s) {
    if (!s.submission->cancelled) return false;
    Conclude(s, End::kCancelled, "");
    return true;
  };
  const auto remove = [&](const auto& sequence) { return gone(*sequence); };
  std::erase_if(running_, remove);
  std::erase_if(preempted_, remove);
  queue_.RemoveIf(gone);
}

void Scheduler::Admit() {
  while (static_cast<int64_t>(running_.size()) < options_.max_batch) {
    Sequence* next = preempted_.empty() ? queue_.Next() : preempted_.front().get();
    std::string problem;
    // An answer that does not fit waits, and all others behind it: small ones must not starve a
    // large one.
    if (next == nullptr || (!TryBegin(*next, problem) && problem.empty())) return;
    if (preempted_.empty()) {
      running_.push_back(queue_.Pop());
      const std::lock_guard lock(mutex_);
      --waiting_;
    } else {
      running_.push_back(std::move(preempted_.front()));
      preempted_.pop_front();
    }
    if (problem.empty()) continue;
    Sequence& failed = *running_.back();
    failed.began = Sequence::Clock::now();
    Conclude(failed, End::kError, problem);
    running_.pop_back();
  }
}

// If the machine has less memory than was thought, an answer that runs may give some back; if none
// runs, there is a problem.
bool Scheduler::TryBegin(Sequence& s, std::string& problem) {
  for (int tries = 0; tries < 2; ++tries) {
    try {
      const bool begun = Begin(s);
      problem.clear();
      return begun;
    } catch (const std::exception& error) {
      if (s.cache != nullptr) GiveBack(s);
      if (!running_.empty()) return false;
      tree_.Evict(pool_.capacity());
      pool_.Trim();
      problem = error.what();
    }
  }
  return false;
}

// The pages that a sequence would come to take beside those that it holds.
int64_t Scheduler::PagesToCome(const Sequence& s, std::span<const PageRow> held) const {
  const int64_t last = std::min(s.prompt_tokens() + s.request().max_tokens, context_);
  const int64_t sure = static_cast<int64_t>(s.ids.size()) + options_.reserved_tokens;
  const int64_t rows = PagesOf(s.reserved ? last : std::min(last, sure));
  const KvGroups& groups = model_.kv_groups();
  const int64_t unread = static_cast<int64_t>(s.ids.size()) - (s.cache ? s.cache->tokens() : 0);
  const int64_t step = std::min(unread, options_.MaxStep(model_));
  int64_t pages = 0;
  for (int64_t g = 0; g < groups.count(); ++g) {
    const int64_t has = std::ranges::count_if(
        held, [&](const PageRow& row) { return row[static_cast<size_t>(g)] != nullptr; });
    const int64_t max = groups.MaxPages(g, rows, step);
    pages += std::max<int64_t>(0, std::min(rows - static_cast<int64_t>(held.size()), max - has));
  }
  return pages;
}

// Replaces a row's pages by copies; returns false where there is no room.
bool Scheduler::CopyPages(PageRow& row) {
  PageRow own;
  for (const PagePool::Page& page : row) {
    if (page != nullptr && pool_.in_use() == pool_.capacity()) tree_.Evict(1);
    own.push_back(page == nullptr ? nullptr : pool_.CopyOf(page));
    if (page != nullptr && own.back() == nullptr) return false;
  }
  row = std::move(own);
  return true;
}

// Gives a sequence a cache that begins with what is known of its prompt, if all it is sure to need
// fits beside what all others are sure to need.
bool Scheduler::Begin(Sequence& s) {
  const std::span<const int32_t> ids(s.ids);
  PrefixTree::Match match;
  // The last token's logits are needed, and those of all where they are told.
  if (!s.reports_prompt() && !s.request().pooling) match = tree_.Find(ids.first(ids.size() - 1));
  int64_t promised = 0;
  for (const auto& other : running_) promised += PagesToCome(*other);
  const auto fits = [&] {
    const int64_t free = pool_.capacity() - pool_.in_use() + tree_.evictable();
    const auto whole = static_cast<size_t>(match.tokens / kPageTokens);
    return PagesToCome(s, std::span(match.rows).first(whole)) + promised <= free;
  };
  const auto drop_part = [&] {
    if (match.tokens % kPageTokens == 0) return;
    match.rows.pop_back();
    match.tokens -= match.tokens % kPageTokens;
  };
  if (!fits()) {
    drop_part();  // a page that is held only to be copied
    if (!fits()) return false;
  }
  if (match.tokens % kPageTokens != 0 && !CopyPages(match.rows.back())) drop_part();
  if (caches_.empty()) {
    caches_.push_back(
        std::make_unique<KvCache>(pool_, model_.kv_groups(), model_.backend(), context_));
  }
  s.cache = std::move(caches_.back());
  caches_.pop_back();
  s.cache->Begin(match.rows, match.tokens);
  if (s.began == Sequence::Clock::time_point()) {
    s.began = Sequence::Clock::now();
    s.cached_tokens = match.tokens;
    stats_.queued.Add(Seconds(s.began - s.arrived));
    stats_.prefix_queries += static_cast<uint64_t>(s.prompt_tokens());
    stats_.prefix_hits += static_cast<uint64_t>(match.tokens);
  }
  return true;
}

// Makes room for `tokens` more, at the cost of pages kept for their prefixes, then of the newest
// answers. Returns false where the sequence lost its own pages, or where there is no room left.
bool Scheduler::Reserve(Sequence& s, int64_t tokens) {
  while (true) {
    try {
      if (s.cache->TryReserve(tokens)) return true;
    } catch (const std::exception&) {  // the machine has less memory than was thought
    }
    const auto held = static_cast<int64_t>(s.cache->held().size());
    const int64_t missing = PagesOf(s.cache->tokens() + tokens) - held;
    if (tree_.Evict(missing * model_.kv_groups().count()) > 0) continue;
    const auto victim = std::find_if(running_.rbegin(), running_.rend(), [](const auto& other) {
      return !other->reserved && !other->delta.end.has_value();
    });
    if (victim == running_.rend()) return false;
    Sequence& newest = **victim;
    Preempt(newest);
    if (&newest == &s) return false;
  }
}

void Scheduler::Preempt(Sequence& s) {
  ++stats_.preemptions;
  s.reserved = true;
  ShareFullPages(s);
  GiveBack(s);
  const auto at =
      std::ranges::find_if(running_, [&](const auto& other) { return other.get() == &s; });
  preempted_.push_front(std::move(*at));
  running_.erase(at);
}

void Scheduler::ShareFullPages(Sequence& s) {
  const int64_t full = s.cache->tokens() / kPageTokens;
  const auto held = s.cache->held().first(static_cast<size_t>(full));
  std::vector<PageRow> rows(held.begin(), held.end());
  tree_.Insert(std::span(s.ids).first(static_cast<size_t>(full * kPageTokens)), rows);
  s.cache->Replace(rows);
}

void Scheduler::GiveBack(Sequence& s) {
  s.cache->Clear();
  caches_.push_back(std::move(s.cache));
}

void Scheduler::Deliver(Sequence& s) {
  Delta delta = std::exchange(s.delta, Delta{.index = s.index});
  delta.cached_tokens = s.cached_tokens;
  try {
    s.submission->sink(std::move(delta));
  } catch (const std::exception& error) {
    Note("nibble: an answer could not be delivered: {}\n", error.what());
    s.submission->cancelled = true;
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
  }
}

// Ends an answer; the caller takes it out of the list in which it stands.
void Scheduler::Conclude(Sequence& s, End end, const std::string& problem) {
  const bool ran = s.cache != nullptr;
  if (ran && end != End::kError) {
    const auto known = static_cast<size_t>(s.cache->tokens());
    std::vector<PageRow> rows(s.cache->held().begin(), s.cache->held().end());
    tree_.Insert(std::span(s.ids).first(known), rows);
  }
  const std::string client = s.request().client;
  const bool begun = s.began != Sequence::Clock::time_point();
  if (ran) GiveBack(s);
  if (begun) {
    CountEnd(s, end);
    queue_.Leave(client);
  } else {
    const std::lock_guard lock(mutex_);
    --waiting_;
  }
  ++stats_.ended[static_cast<size_t>(end)];
  // Answers that wait for this one's prompt compute it themselves, or end as this one does.
  for (auto& follower : s.followers) {
    if (end == End::kCancelled || (end == End::kError && !begun)) {
      Conclude(*follower, end, problem);
    } else {
      queue_.PushFront(client, std::move(follower));
    }
  }
  s.followers.clear();
  s.delta.end = end;
  s.delta.problem = problem;
  Deliver(s);
}

void Scheduler::CountEnd(const Sequence& s, End end) {
  const auto now = Sequence::Clock::now();
  stats_.request_prompt.Add(static_cast<double>(s.prompt_tokens()));
  stats_.request_written.Add(static_cast<double>(s.written()));
  if (end != End::kStop && end != End::kLength) return;
  stats_.whole.Add(Seconds(now - s.arrived));
  if (s.written() > 0) stats_.decode.Add(Seconds(now - s.first));
}

SchedulerStats Scheduler::stats() const {
  const std::lock_guard lock(mutex_);
  SchedulerStats stats = published_;
  stats.waiting += waiting_;
  return stats;
}

void Scheduler::Publish() {
  stats_.running = static_cast<int64_t>(running_.size());
  stats_.waiting = static_cast<int64_t>(preempted_.size());
  stats_.pages_kept = tree_.evictable();
  stats_.pages_in_use = pool_.in_use() - stats_.pages_kept;
  const std::lock_guard lock(mutex_);
  published_ = stats_;
}

}  // namespace nibble
