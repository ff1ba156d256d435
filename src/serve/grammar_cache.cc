// SPDX-License-Identifier: Apache-2.0
#include "serve/grammar_cache.h"

#include <algorithm>

namespace nibble::serve {

GrammarCache::Pointer GrammarCache::Get(const std::string& key,
                                        const std::function<Pointer()>& make) {
  {
    const std::lock_guard lock(mutex_);
    const auto known = std::ranges::find(grammars_, key, &std::pair<std::string, Pointer>::first);
    if (known != grammars_.end()) {
      grammars_.splice(grammars_.begin(), grammars_, known);
      return known->second;
    }
  }
  Pointer made = make();  // may take long; two may do it at once
  const std::lock_guard lock(mutex_);
  grammars_.emplace_front(key, made);
  if (grammars_.size() > kMax) grammars_.pop_back();
  return made;
}

}  // namespace nibble::serve
