// SPDX-License-Identifier: Apache-2.0
#include "serve/grammar_cache.h"

#include <gtest/gtest.h>

#include "grammar/grammar.h"

namespace nibble::serve {
namespace {

TEST(GrammarCache, KeepsThoseUsedLast) {
  GrammarCache cache;
  int made = 0;
  const auto get = [&](int key) {
    return cache.Get(std::to_string(key), [&] {
      ++made;
      return RegexGrammar("a", "test");
    });
  };
  const auto first = get(0);
  for (int key = 1; key < 32; ++key) get(key);
  EXPECT_EQ(get(0), first);
  EXPECT_EQ(made, 32);
  get(32);
  EXPECT_EQ(get(0), first) << "used again since";
  EXPECT_EQ(made, 33);
  get(1);
  EXPECT_EQ(made, 34) << "the one that was not used for the longest time is gone";
}

}  // namespace
}  // namespace nibble::serve
