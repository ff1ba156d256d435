// SPDX-License-Identifier: Apache-2.0
#include "schedule/fair_queue.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

using Queue = FairQueue<std::string>;

void Push(Queue& queue, const std::string& client, int count) {
  for (int i = 0; i < count; ++i) queue.Push(client, std::make_unique<std::string>(client));
}

// The clients whose turns come next, where each turn costs one token.
std::string Turns(Queue& queue, int count) {
  std::string turns;
  for (int i = 0; i < count; ++i) {
    const std::string client = *queue.Pop();
    turns += client;
    queue.Charge(client, 1);
    queue.Leave(client);
  }
  return turns;
}

TEST(FairQueue, NewcomersStartWhereTheLeastServedIs) {
  Queue queue;
  Push(queue, "a", 9);
  Push(queue, "b", 9);
  queue.Charge("a", 20);
  queue.Charge("b", 10);
  Push(queue, "c", 9);
  EXPECT_EQ(Turns(queue, 6), "bcbcbc");
}

TEST(FairQueue, WhoIsServedStaysKnown) {
  Queue queue;
  Push(queue, "a", 1);
  queue.Pop();
  queue.Charge("a", 5);
  queue.RemoveIf([](const std::string&) { return true; });
  Push(queue, "b", 2);
  queue.Charge("b", -4);  // begins at 5
  Push(queue, "a", 1);
  EXPECT_EQ(Turns(queue, 3), "bba");
  EXPECT_EQ(queue.Next(), nullptr);
  EXPECT_EQ(queue.size(), 0);
}

}  // namespace
}  // namespace nibble
