// SPDX-License-Identifier: Apache-2.0
// A table from pairs of token ids to what happens to such neighbours. Open addressing in one block:
// encoding looks up each pair of neighbouring characters.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

#include "text/secret_hash.h"

namespace nibble {

class PairTable {
 public:
  static constexpr uint32_t kNoMerge = std::numeric_limits<uint32_t>::max();
  struct Merge {
    uint32_t rank = kNoMerge;  // the lowest is joined first; kNoMerge: not at all
    int32_t id = -1;           // of the joined token
  };

  PairTable() : slots_(1) {}
  void Reserve(size_t pairs) { Rehash(std::bit_ceil(pairs + pairs / 2 + 1)); }

  const Merge* Find(int32_t left, int32_t right) const {
    const Slot& slot = slots_[Place(Key(left, right))];
    return slot.key == kEmpty ? nullptr : &slot.merge;
  }
  // The entry of a pair, made if it is absent.
  Merge& At(int32_t left, int32_t right) {
    if (used_ + used_ / 2 + 1 >= slots_.size()) Rehash(2 * slots_.size());
    Slot& slot = slots_[Place(Key(left, right))];
    if (slot.key == kEmpty) {
      slot.key = Key(left, right);
      ++used_;
    }
    return slot.merge;
  }

 private:
  static constexpr uint64_t kEmpty = std::numeric_limits<uint64_t>::max();  // ids are not negative
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge;
  };
  static uint64_t Key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  }
  size_t Place(uint64_t key) const {
    size_t at = SecretHash()(key) & (slots_.size() - 1);
    while (slots_[at].key != kEmpty && slots_[at].key != key) at = (at + 1) & (slots_.size() - 1);
    return at;
  }
  void Rehash(size_t size) {
    std::vector<Slot> old(size);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.key != kEmpty) slots_[Place(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_;  // a power of two, at most two thirds full
  size_t used_ = 0;
};

}  // namespace nibble
