// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <mutex>
#include <vector>

namespace nibble::serve {

// Limits the tokens, read and written together, that each key may use in a minute: a bucket that
// fills steadily and holds a minute's tokens (token bucket). A request may overdraw it, since
// nobody knows how much it will write; its key then waits until nothing is owed. Thread-safe.
class TokenBudget {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // per_minute 0: any number.
  TokenBudget(size_t keys, int64_t per_minute)
      : per_minute_(static_cast<double>(per_minute)), buckets_(keys, {per_minute_, {}}) {}

  // Seconds until the key may ask again; 0: now.
  int64_t Wait(size_t key, Time now) {
    if (per_minute_ == 0) return 0;
    const std::lock_guard lock(mutex_);
    const double left = Fill(key, now).left;
    return left > 0 ? 0 : static_cast<int64_t>(std::floor(-left * 60 / per_minute_)) + 1;
  }
  void Charge(size_t key, int64_t tokens, Time now) {
    if (per_minute_ == 0) return;
    const std::lock_guard lock(mutex_);
    Fill(key, now).left -= static_cast<double>(tokens);
  }

 private:
  struct Bucket {
    double left;
    Time at;
  };
  Bucket& Fill(size_t key, Time now) {
    Bucket& bucket = buckets_.at(key);
    const std::chrono::duration<double> passed = now - bucket.at;
    if (passed.count() > 0) {
      bucket.left = std::min(per_minute_, bucket.left + passed.count() * per_minute_ / 60);
      bucket.at = now;
    }
    return bucket;
  }

  const double per_minute_;
  std::mutex mutex_;
  std::vector<Bucket> buckets_;
};

}  // namespace nibble::serve
