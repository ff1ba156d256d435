// SPDX-License-Identifier: Apache-2.0
// Threads that run tasks in the order of arrival, of which a bounded number wait.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace nibble::http {

class WorkerPool {
 public:
  WorkerPool(int threads, size_t max_waiting);
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;
  ~WorkerPool();  // waits for tasks that run; drops those that wait

  // False if too many wait. Tasks throw nothing.
  bool TryAdd(std::function<void()> task);

 private:
  void Work();

  const size_t max_waiting_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace nibble::http
