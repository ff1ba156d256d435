// SPDX-License-Identifier: Apache-2.0
// Compiled grammars of the last requests: agents send the same tools and schemas with every turn.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace nibble {

class Grammar;

namespace serve {

class GrammarCache {
 public:
  using Pointer = std::shared_ptr<const Grammar>;

  // Returns the grammar known for this key, or calls `make` and keeps its result; its errors are
  // not kept.
  Pointer Get(const std::string& key, const std::function<Pointer()>& make);

 private:
  static constexpr size_t kMax = 32;
  std::mutex mutex_;
  std::list<std::pair<std::string, Pointer>> grammars_;  // those used last in front
};

}  // namespace serve
}  // namespace nibble
