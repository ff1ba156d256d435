// SPDX-License-Identifier: Apache-2.0
#include "io/spill_file.h"

#include <sys/mman.h>

#include <cstdint>

#include "base/rng.h"
#include "io/io_testing.h"

namespace nibble {
namespace {

// Pages of `bytes` that are in the process' memory, as the system counts them.
int64_t PagesInMemory(std::span<const std::byte> bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  FILE* const maps = std::fopen("/proc/self/smaps", "r");
  char line[512];
  bool ours = false;
  int64_t kilobytes = -1;
  while (kilobytes < 0 && std::fgets(line, sizeof(line), maps) != nullptr) {
    unsigned long from = 0, to = 0;
    long long value = 0;
    if (std::sscanf(line, "%lx-%lx ", &from, &to) == 2) ours = from == begin;
    if (ours && std::sscanf(line, "Rss: %lld kB", &value) == 1) kilobytes = value;
  }
  std::fclose(maps);
  return kilobytes / (sysconf(_SC_PAGESIZE) / 1024);
}

TEST(SpillFile, WhatRestsIsNotInMemoryAndComesBack) {
  const std::string directory = testing::TempDir();
  SpillFile file(directory);
  constexpr size_t kValues = 1 << 20;
  const AlignedBytes first = file.Allocate(kValues), second = file.Allocate(1000);
  const std::span<std::byte> bytes(first.get(), kValues);
  for (const std::byte b : bytes) ASSERT_EQ(b, std::byte{0});
  Rng rng(1);
  for (std::byte& b : bytes) b = static_cast<std::byte>(rng.Below(256));
  second[999] = std::byte{7};
  EXPECT_EQ(PagesInMemory(bytes), static_cast<int64_t>(kValues) / sysconf(_SC_PAGESIZE));
  SpillFile::Rest(bytes.subspan(100));  // all but the page that begins before
  EXPECT_EQ(PagesInMemory(bytes), 1);
  Rng again(1);
  for (const std::byte b : bytes) ASSERT_EQ(b, static_cast<std::byte>(again.Below(256)));
  EXPECT_EQ(second[999], std::byte{7});
}

TEST(SpillFile, SaysWhereThereIsNoRoom) {
  EXPECT_THAT(ErrorOf([] { SpillFile("/proc"); }), testing::HasSubstr("/proc"));
  SpillFile file(testing::TempDir());
  EXPECT_THAT(ErrorOf([&] { file.Allocate(size_t{1} << 60); }),
              testing::HasSubstr("too little space"));
}

}  // namespace
}  // namespace nibble
