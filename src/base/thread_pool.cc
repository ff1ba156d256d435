// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"

namespace nibble {
namespace {

thread_local bool inside_task = false;

int AvailableCores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// A job ends when its tasks are done, not when every worker has looked at it: a worker whose core
// is busy with another process holds nobody up as long as it has not taken a task.
class Pool {
 public:
  explicit Pool(int threads) {
    try {
      for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { Work(); });
    } catch (const std::exception& error) {  // no thread, or no memory for one
      Stop();
      Fail("only {} of {} threads can be started ({}); use fewer --threads", workers_.size() + 1,
           threads, error.what());
    }
  }

  ~Pool() { Stop(); }

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  void Run(size_t count, const std::function<void(size_t)>& task) {
    const std::lock_guard<std::mutex> one_job_at_a_time(run_mutex_);
    NIBBLE_CHECK(count < UINT32_MAX, "{} tasks", count);
    const uint32_t job = job_number_.load() + 1;
    // Close the ticket first: a late worker that still holds the old one must not pair it with the
    // new count.
    ticket_.store(uint64_t{job} << 32 | UINT32_MAX);
    task_ = &task;
    count_ = static_cast<uint32_t>(count);
    done_ = 0;
    error_ = nullptr;
    ticket_.store(uint64_t{job} << 32);
    job_number_.store(job);
    if (sleepers_.load() != 0) job_number_.notify_all();
    Drain(job);
    for (int spin = 0;; ++spin) {
      const uint32_t done = done_.load(std::memory_order_acquire);
      if (done == count_) break;
      spin < kSpins ? Pause() : done_.wait(done);
    }
    if (error_) std::rethrow_exception(error_);
  }

 private:
  static constexpr int kSpins = 1000;  // some tens of microseconds

  void Stop() {
    stop_ = true;
    job_number_.fetch_add(1);
    job_number_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  // Takes tasks of `job` until none is left. The ticket holds job number and next task together, so
  // a late worker cannot take a task of another job than the one it read task_ and count_ for.
  void Drain(uint32_t job) {
    inside_task = true;
    uint64_t ticket = ticket_.load();
    while (static_cast<uint32_t>(ticket >> 32) == job) {
      const std::function<void(size_t)>* task = task_.load();
      const uint32_t count = count_.load(), index = static_cast<uint32_t>(ticket);
      if (index >= count) break;
      if (!ticket_.compare_exchange_weak(ticket, ticket + 1)) continue;
      try {
        (*task)(index);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(error_mutex_);
        if (!error_) error_ = std::current_exception();
      }
      if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == count) done_.notify_all();
      ticket = ticket_.load();
    }
    inside_task = false;
  }

  void Work() {
    uint32_t seen = 0;
    while (true) {
      for (int spin = 0; job_number_.load() == seen; ++spin) {
        if (spin < kSpins) {
          Pause();
          continue;
        }
        sleepers_.fetch_add(1);
        job_number_.wait(seen);
        sleepers_.fetch_sub(1);
      }
      seen = job_number_.load();
      if (stop_) return;
      Drain(seen);
    }
  }

  std::vector<std::thread> workers_;
  std::mutex run_mutex_;
  std::mutex error_mutex_;
  std::exception_ptr error_;
  std::atomic<const std::function<void(size_t)>*> task_{nullptr};
  std::atomic<uint32_t> count_{0}, done_{0}, job_number_{0}, sleepers_{0};
  std::atomic<uint64_t> ticket_{0};
  std::atomic<bool> stop_{false};
};

// The first call makes the pool, of `threads` threads, or for 0 of one for each core.
std::unique_ptr<Pool>& GlobalPool(int threads = 0) {
  static std::unique_ptr<Pool> pool =
      std::make_unique<Pool>(threads == 0 ? AvailableCores() : threads);
  return pool;
}

}  // namespace

void SetThreads(int threads) {
  NIBBLE_CHECK(threads >= 0 && !inside_task, "threads {}", threads);
  if (threads == 0) threads = AvailableCores();
  std::unique_ptr<Pool>& pool = GlobalPool(threads);
  if (pool->threads() != threads) pool = std::make_unique<Pool>(threads);
}

int Threads() {
  return GlobalPool()->threads();
}

void ParallelFor(size_t count, const std::function<void(size_t)>& task) {
  if (inside_task || count <= 1 || GlobalPool()->threads() == 1) {
    for (size_t i = 0; i < count; ++i) task(i);
    return;
  }
  GlobalPool()->Run(count, task);
}

}  // namespace nibble
