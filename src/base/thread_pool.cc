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

class Pool {
 public:
  explicit Pool(int threads) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { Work(); });
  }

  ~Pool() {
    stop_ = true;
    job_number_.fetch_add(1);
    job_number_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  void Run(size_t count, const std::function<void(size_t)>& task) {
    const std::lock_guard<std::mutex> one_job_at_a_time(run_mutex_);
    task_ = &task;
    count_ = count;
    next_ = 0;
    error_ = nullptr;
    busy_ = static_cast<int>(workers_.size());
    job_number_.fetch_add(1, std::memory_order_release);
    job_number_.notify_all();
    Drain();
    for (int spin = 0; busy_.load(std::memory_order_acquire) != 0; ++spin) {
      if (spin < kSpins) {
        Pause();
      } else {
        const int busy = busy_.load(std::memory_order_acquire);
        if (busy != 0) busy_.wait(busy);
      }
    }
    if (error_) std::rethrow_exception(error_);
  }

 private:
  static constexpr int kSpins = 2000;  // some tens of microseconds

  void Drain() {
    inside_task = true;
    for (size_t i = next_++; i < count_; i = next_++) {
      try {
        (*task_)(i);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(error_mutex_);
        if (!error_) error_ = std::current_exception();
      }
    }
    inside_task = false;
  }

  void Work() {
    uint64_t seen = 0;
    while (true) {
      for (int spin = 0; job_number_.load(std::memory_order_acquire) == seen; ++spin) {
        if (spin < kSpins) {
          Pause();
        } else {
          job_number_.wait(seen);
        }
      }
      ++seen;
      if (stop_) return;
      Drain();
      if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_all();
    }
  }

  std::vector<std::thread> workers_;
  std::mutex run_mutex_;
  std::mutex error_mutex_;
  const std::function<void(size_t)>* task_ = nullptr;
  size_t count_ = 0;
  std::exception_ptr error_;
  std::atomic<size_t> next_{0};
  std::atomic<int> busy_{0};
  std::atomic<uint64_t> job_number_{0};
  std::atomic<bool> stop_{false};
};

std::unique_ptr<Pool>& GlobalPool() {
  static std::unique_ptr<Pool> pool = std::make_unique<Pool>(AvailableCores());
  return pool;
}

}  // namespace

void SetThreads(int threads) {
  NIBBLE_CHECK(threads >= 0 && !inside_task, "threads {}", threads);
  if (threads == 0) threads = AvailableCores();
  if (GlobalPool()->threads() != threads) GlobalPool() = std::make_unique<Pool>(threads);
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
