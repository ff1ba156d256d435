// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/thread_pool.h"
#include "engine/log_sum_exp.h"
#include "schedule/scheduler.h"
#include "tensor/finite.h"

namespace nibble {

bool Scheduler::Step() {
  Take();
  Admit();
  const std::vector<Piece> pieces = Plan();
  if (!pieces.empty()) {
    RunPieces(pieces);
    AfterStep(pieces);
  }
  Publish();
  return !pieces.empty() || !preempted_.empty();  // all may have lost their pages
}

// One token of each answer, and pieces of prompts that share what a step may take besides.
std::vector<Scheduler::Piece> Scheduler::Plan() {
  std::vector<Piece> pieces, prompts;
  for (const auto& s : running_) {
    if (s->pending() == 1) {
      pieces.push_back({s.get(), 1});
    } else {
      prompts.push_back({s.get(), 0});
    }
  }
  int64_t budget = pieces.empty() ? model_.backend().ChunkTokens() : options_.prompt_tokens;
  const auto grant = [&](Piece& piece, int64_t max) {
    const int64_t tokens = std::min({piece.sequence->pending() - piece.tokens, max, budget});
    piece.tokens += tokens;
    budget -= tokens;
  };
  // Prompts that are soonest done come first, which makes the mean wait the shortest; the oldest
  // one has its share all the same, so that it ends.
  if (!prompts.empty()) grant(prompts.front(), budget / 4);
  std::ranges::stable_sort(prompts, {}, [](const Piece& p) { return p.sequence->pending(); });
  for (Piece& piece : prompts) {
    grant(piece, budget);
    if (piece.tokens > 0) pieces.push_back(piece);
  }
  std::vector<Sequence*> lost;
  for (const Piece& piece : pieces) {
    Sequence& s = *piece.sequence;
    s.stepped = false;
    // The sequence may have lost its pages to one before it.
    if (s.cache == nullptr || Reserve(s, piece.tokens) || s.cache == nullptr) continue;
    lost.push_back(&s);
  }
  for (Sequence* s : lost) Fail(*s, "there is no memory left for its cache");
  std::erase_if(pieces, [](const Piece& piece) { return piece.sequence->cache == nullptr; });
  return pieces;
}

// Pieces that fail are tried once more, with all the memory that can be freed and one by one, so
// that one request cannot end others.
void Scheduler::RunPieces(std::span<const Piece> pieces, bool again) {
  std::vector<Piece> todo;
  for (const Piece& p : pieces) {
    if (!p.sequence->stepped) todo.push_back(p);
  }
  if (todo.empty()) return;
  std::vector<int64_t> before;
  for (const Piece& p : todo) before.push_back(p.sequence->cache->tokens());
  std::string problem;
  try {
    return TryPieces(todo);
  } catch (const std::exception& error) {
    problem = error.what();
  }
  for (size_t i = 0; i < todo.size(); ++i) {
    Sequence& s = *todo[i].sequence;
    if (s.stepped) continue;
    s.cache->Truncate(before[i]);
  }
  if (again) return Fail(*todo[0].sequence, problem);
  tree_.Evict(pool_.capacity());
  pool_.Trim();
  for (const Piece& p : todo) {
    Sequence& s = *p.sequence;
    if (s.stepped || s.cache == nullptr) continue;
    if (Reserve(s, p.tokens)) {  // truncating gave its new page back
      RunPieces({&p, 1}, true);
    } else if (s.cache != nullptr) {
      Fail(s, problem);
    }
  }
}

void Scheduler::Fail(Sequence& s, const std::string& problem) {
  if (s.stepped) return;
  s.stepped = true;
  s.delta.end = End::kError;
  s.delta.problem = problem;
}

void Scheduler::TryPieces(std::span<const Piece> pieces) {
  std::vector<Model::Sequence> batch;
  int64_t tokens = 0;
  for (const Piece& p : pieces) {
    const auto done = static_cast<size_t>(p.sequence->cache->tokens());
    batch.push_back({std::span(p.sequence->ids).subspan(done, static_cast<size_t>(p.tokens)),
                     p.sequence->cache.get()});
    tokens += p.tokens;
  }
  const float* x = model_.Forward(batch);
  AddStates(pieces, x);
  std::vector<Row> rows = RowsOf(pieces);
  // Most choices need few of a row's logits: all of them need not leave a GPU.
  const auto others = std::stable_partition(rows.begin(), rows.end(), [](Row& row) {
    if (row.tells == 0) row.query = row.sequence->picker.Query(row.sequence->written());
    return row.query.has_value();
  });
  // Rows that tell of a prompt come before the choice behind it: a sequence that has chosen is not
  // run again.
  UseLogits(std::span(others, rows.end()), x, tokens);
  const std::span few(rows.begin(), others);
  UseLikely(few, x, tokens);
  const auto left = std::ranges::stable_partition(few, [](const Row& row) { return !row.query; });
  UseLogits(std::span(left.begin(), left.end()), x, tokens);
  for (const Piece& p : pieces) p.sequence->stepped = true;
}

// Calls work(rows, their places in x) until all had their turn, for so many as fit at a time.
void Scheduler::ForSomeRows(
    std::span<Row> rows,
    const std::function<void(std::span<Row>, std::span<const int32_t>)>& work) {
  for (; !rows.empty(); rows = rows.subspan(std::min(rows.size(), size_t{kLogitRows}))) {
    const auto some = rows.first(std::min(rows.size(), size_t{kLogitRows}));
    std::vector<int32_t> at;
    for (const Row& row : some) at.push_back(row.at);
    work(some, at);
    for (Row& row : some) {
      Sequence& s = *row.sequence;
      if (row.query && row.problem.empty()) continue;  // nothing was chosen yet
      if (!row.problem.empty()) {
        s.delta.end = End::kError;
        s.delta.problem = std::move(row.problem);
        row.query.reset();
      } else if (row.tells > 0) {
        s.delta.prompt_logprobs.push_back(std::move(row.logprob));
        ++s.reported;
      }
      s.stepped = s.stepped || row.tells == 0;
    }
  }
}

// Rows keep their query where its answer does not hold enough.
void Scheduler::UseLikely(std::span<Row> rows, const float* x, int64_t tokens) {
  ForSomeRows(rows, [&](std::span<Row> some, std::span<const int32_t> at) {
    std::vector<LikelyQuery> queries;
    for (const Row& row : some) queries.push_back(*row.query);
    const std::vector<Likely> likely = model_.FindLikely(x, tokens, at, queries);
    ParallelFor(some.size(), [&](size_t i) {
      Sequence& s = *some[i].sequence;
      UseRow(some[i], likely[i].finite, [&] {
        const std::optional<int32_t> id = s.picker.PickFrom(likely[i]);
        if (!id) return;
        some[i].query.reset();
        Write(s, {.id = *id});
      });
    });
  });
}

void Scheduler::UseLogits(std::span<Row> rows, const float* x, int64_t tokens) {
  const auto vocab = static_cast<size_t>(model_.config().vocab_size);
  ForSomeRows(rows, [&](std::span<Row> some, std::span<const int32_t> at) {
    const float* const all = model_.Logits(x, tokens, at);
    ParallelFor(some.size(), [&](size_t i) {
      Row& row = some[i];
      Sequence& s = *row.sequence;
      const std::span logits(all + i * vocab, vocab);
      row.query.reset();
      UseRow(row, AllFinite(logits), [&] {
        if (row.tells > 0) {
          row.logprob = Logprob(logits, row.token, *s.request().prompt_logprobs);
        } else {
          Write(s, s.picker.Pick(logits, s.written()));
        }
      });
    });
  });
}

std::vector<Scheduler::Row> Scheduler::RowsOf(std::span<const Piece> pieces) {
  std::vector<Row> rows;
  int64_t at = 0;
  for (const Piece& p : pieces) {
    Sequence& s = *p.sequence;
    const int64_t first = s.cache->tokens() - p.tokens;  // the forward pass has them
    for (int64_t i = 0; i < p.tokens; ++i, ++at) {
      const int64_t next = first + i + 1;  // the token that this row speaks of
      if (s.reports_prompt() && next >= s.reported && next < s.prompt_tokens()) {
        const int32_t token = s.ids[static_cast<size_t>(next)];
        rows.push_back(
            {.sequence = &s, .at = static_cast<int32_t>(at), .tells = next, .token = token});
      }
      if (next == static_cast<int64_t>(s.ids.size()) && s.request().max_tokens > 0) {
        rows.push_back({.sequence = &s, .at = static_cast<int32_t>(at)});
      }
    }
  }
  return rows;
}

// Adds up the final norm's outputs for the tokens that each prompt's pooling takes.
void Scheduler::AddStates(std::span<const Piece> pieces, const float* x) {
  const auto hidden = static_cast<size_t>(model_.config().hidden_size);
  std::vector<int32_t> rows;
  std::vector<Sequence*> owners;  // of the rows
  int64_t tokens = 0;
  for (const Piece& p : pieces) {
    Sequence& s = *p.sequence;
    const auto& pooling = s.request().pooling;
    const int64_t first = s.cache->tokens() - p.tokens;  // the forward pass has them
    for (int64_t t = 0; pooling && t < p.tokens; ++t) {
      if (!pooling->Takes(first + t, s.prompt_tokens())) continue;
      rows.push_back(static_cast<int32_t>(tokens + t));
      owners.push_back(&s);
    }
    if (pooling) s.embedding.resize(hidden);
    tokens += p.tokens;
  }
  const float* state = rows.empty() ? nullptr : model_.States(x, tokens, rows);
  for (Sequence* s : owners) {
    for (size_t k = 0; k < hidden; ++k) s->embedding[k] += double{*state++};
  }
  for (const Piece& p : pieces) {
    p.sequence->stepped = p.sequence->stepped || p.sequence->request().pooling;
  }
}

// Rows of one sequence run side by side: only the one that chooses may touch what a choice changes.
void Scheduler::UseRow(Row& row, bool finite, const std::function<void()>& use) const {
  try {
    if (!finite) {
      const auto written = static_cast<int64_t>(row.sequence->ids.size());
      model_.FailNotFinite(fmt::format("after {} tokens", row.tells > 0 ? row.tells : written));
    }
    use();
  } catch (const std::exception& error) {
    row.problem = error.what();
  }
}

void Scheduler::Write(Sequence& s, TokenLogprob choice) const {
  const GenerationRequest& r = s.request();
  Delta& delta = s.delta;
  const int32_t id = choice.id;
  s.ids.push_back(id);
  delta.ids.push_back(id);
  if (r.logprobs) delta.logprobs.push_back(std::move(choice));
  if (std::ranges::find(r.stop_ids, id) != r.stop_ids.end()) {
    delta.end = End::kStop;
    s.text.Finish(delta);
  } else if (s.text.Push(id, delta)) {
    delta.end = End::kStop;
  } else if (s.written() == r.max_tokens) {
    delta.end = End::kLength;
    s.text.Finish(delta);
    if (!delta.stop.empty()) delta.end = End::kStop;
  }
}

void Scheduler::AfterStep(std::span<const Piece> pieces) {
  const auto now = Sequence::Clock::now();
  for (const Piece& p : pieces) {
    Sequence& s = *p.sequence;
    // The sequence was preempted while others were tried again, or failed.
    if (s.cache == nullptr || s.delta.end == End::kError) continue;
    const bool wrote = !s.delta.ids.empty();
    const int64_t before = s.cache->tokens() - p.tokens;
    const int64_t prompt = std::clamp<int64_t>(s.prompt_tokens() - before, 0, p.tokens);
    stats_.prompt_tokens += static_cast<uint64_t>(prompt);
    using Queue = FairQueue<Sequence>;
    queue_.Charge(s.request().client, static_cast<double>(prompt) * Queue::kPromptWeight +
                                          (wrote ? Queue::kWrittenWeight : 0));
    if (wrote) CountToken(s, now);
    if (s.cache->tokens() >= s.prompt_tokens()) AfterPrompt(s);
    if (!s.delta.end && (wrote || !s.delta.prompt_logprobs.empty())) Deliver(s);
  }
  std::erase_if(running_, [&](const auto& s) {
    if (!s->delta.end) return false;
    Conclude(*s, *s->delta.end, std::exchange(s->delta.problem, {}));
    return true;
  });
}

void Scheduler::CountToken(Sequence& s, Sequence::Clock::time_point now) {
  const auto since = [&](auto then) { return std::chrono::duration<double>(now - then).count(); };
  ++stats_.written_tokens;
  if (s.written() == 1) {
    s.first = now;
    stats_.first_token.Add(since(s.arrived));
    stats_.prefill.Add(since(s.began));
  } else {
    stats_.between_tokens.Add(since(s.last));
  }
  s.last = now;
}

// All of the prompt is in the cache.
void Scheduler::AfterPrompt(Sequence& s) {
  if (s.request().max_tokens == 0) {
    s.delta.end = End::kLength;
    if (const auto& pooling = s.request().pooling) {
      s.delta.embedding = pooling->Vector(s.embedding, s.prompt_tokens());
    }
  }
  if (s.shared || s.delta.end) return;
  s.shared = true;
  ShareFullPages(s);
  const std::string client = s.request().client;
  for (auto& follower : s.followers) queue_.PushFront(client, std::move(follower));
  s.followers.clear();
}

}  // namespace nibble
