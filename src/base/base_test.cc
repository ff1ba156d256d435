// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "base/checked.h"
#include "base/cpu_features.h"
#include "base/error.h"
#include "base/error_testing.h"
#include "base/file.h"
#include "base/half.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/progress.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "base/utf8.h"

namespace nibble {
namespace {

using testing::HasSubstr;

// --- error, file --------------------------------------------------------------------------------

TEST(ErrorTest, CodesAndMessages) {
  const auto thrown = [](auto&& call) {
    try {
      call();
    } catch (const Error& e) {
      return fmt::format("{}: {}", static_cast<int>(e.code()), e.what());
    }
    return std::string("nothing");
  };
  EXPECT_EQ(thrown([] { Fail("{}: {} is odd", "a.json", 3); }), "1: a.json: 3 is odd");
  EXPECT_EQ(thrown([] { FailUsage("--x {}", 1); }), "2: --x 1");
  EXPECT_EQ(thrown([] { throw Error(ErrorCode::kInterrupted, "stopped"); }), "75: stopped");
}

TEST(ErrorTest, TextsFromFilesStayOneHarmlessLine) {
  EXPECT_EQ(ErrorOf([] { Fail("{}: \"{}\"", "c.json", "\x1b[2J\n\t\r\x7f"); }),
            R"(c.json: "\x1b[2J\n\t\x0d\x7f")");
  EXPECT_EQ(Printable(std::string_view("a\0b", 3)), R"(a\x00b)");
  // Whole characters of one to four bytes; C1 is a control character of two.
  EXPECT_EQ(Printable("na\u00efve \u00a0\u6c34 \U0001F600\U0010FFFF"),
            "na\u00efve \u00a0\u6c34 \U0001F600\U0010FFFF");
  EXPECT_EQ(Printable("\xc2\x9b"
                      "2J\xc2\x80"),
            R"(\xc2\x9b2J\xc2\x80)");
  // Not UTF-8: a continuation byte alone, a byte that never occurs, a cut character, overlong
  // forms, a surrogate, a code point beyond Unicode.
  for (const std::string bytes : {"\x80", "\xff", "\xe6\xb0", "\xc0\xaf", "\xe0\x9f\xbf",
                                  "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80"}) {
    std::string escaped;
    for (const char c : bytes) escaped += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
    EXPECT_EQ(Printable(bytes), escaped);
    EXPECT_EQ(Printable(bytes + "a"), escaped + "a");
  }
}

TEST(ErrorTest, LongTextsLoseTheirMiddle) {
  EXPECT_EQ(Printable(std::string(1000, 'x')), std::string(1000, 'x'));
  const std::string message =
      ErrorOf([] { Fail("c.json: \"{}\"; use less", std::string(16 << 20, '\x01')); });
  EXPECT_LE(message.size(), 4 * 1000 + 5u);
  EXPECT_THAT(message, testing::AllOf(testing::StartsWith("c.json: \"\\x01"), HasSubstr(" ... "),
                                      testing::EndsWith("\\x01\"; use less")));
}

TEST(ErrorDeathTest, CheckAbortsWithValues) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const int rows = 3;
  EXPECT_DEATH(NIBBLE_CHECK(rows == 4, "rows {} vs {}", rows, 4), "rows == 4: rows 3 vs 4");
  NIBBLE_CHECK(rows == 3);
}

class FileTest : public testing::Test {
 protected:
  ~FileTest() override { std::filesystem::remove(path_); }
  void Write(std::string_view text) { std::ofstream(path_, std::ios::binary) << text; }
  const std::string path_ = testing::TempDir() + fmt::format("nibble_base_{}", getpid());
};

TEST_F(FileTest, ReadsWholeFilesWithinTheLimit) {
  const std::string text("a\0b\n", 4);
  Write(text);
  EXPECT_EQ(ReadFile(path_, 4), text);
  EXPECT_THAT(ErrorOf([&] { ReadFile(path_, 3); }), HasSubstr("4 bytes, at most 3"));
  Write("");
  EXPECT_EQ(ReadFile(path_, 0), "");
}

TEST_F(FileTest, RefusesWhatIsNotAFile) {
  EXPECT_THAT(ErrorOf([&] { ReadFile(path_, 10); }), HasSubstr("no such file"));
  EXPECT_THAT(ErrorOf([] { ReadFile(testing::TempDir(), 10); }), HasSubstr("no such file"));
}

TEST_F(FileTest, JsonErrorsNameTheFile) {
  Write("{\"a\": 1}");
  EXPECT_EQ(JsonGet<int>(ReadJsonFile(path_), "a", path_), 1);
  Write("{\"a\": ");
  EXPECT_THAT(ErrorOf([&] { ReadJsonFile(path_); }), HasSubstr(path_));
  EXPECT_THAT(ErrorOf([&] { ReadJsonFile(path_, 2); }), HasSubstr("at most 2"));
}

// --- interrupt ----------------------------------------------------------------------------------

TEST(InterruptDeathTest, TheFirstSignalSetsAFlagTheSecondEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const int first : {SIGINT, SIGTERM, SIGHUP}) {
    for (const int second : {SIGINT, SIGTERM, SIGHUP}) {
      const auto interrupt = [&](int signals) {
        CatchInterrupts();
        if (Interrupted()) std::exit(1);
        std::raise(first);
        if (!Interrupted()) std::exit(2);
        if (signals == 2) std::raise(second);
        std::exit(0);
      };
      EXPECT_EXIT(interrupt(1), testing::ExitedWithCode(0), "");
      EXPECT_EXIT(interrupt(2), testing::KilledBySignal(second), "");
    }
  }
}

TEST(InterruptDeathTest, AnIgnoredSignalStaysIgnored) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto hang_up = [] {
    std::signal(SIGHUP, SIG_IGN);  // as nohup does
    CatchInterrupts();
    std::raise(SIGHUP);
    std::raise(SIGHUP);
    std::exit(Interrupted() ? 1 : 0);
  };
  EXPECT_EXIT(hang_up(), testing::ExitedWithCode(0), "");
}

// --- half ---------------------------------------------------------------------------------------

// IEEE 754 binary16 by its definition.
double HalfValue(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(HalfTest, EveryFp16IsDecodedExactly) {
  for (uint32_t b = 0; b < 0x10000; ++b) {
    const uint16_t bits = static_cast<uint16_t>(b);
    const float value = F32FromF16(bits);
    if ((bits & 0x7C00) != 0x7C00) {
      EXPECT_EQ(value, HalfValue(bits)) << bits;
      EXPECT_EQ(std::signbit(value), (bits & 0x8000) != 0) << bits;
      EXPECT_EQ(F16FromF32(value), bits);
    } else if ((bits & 0x3FF) == 0) {
      EXPECT_TRUE(std::isinf(value) && std::signbit(value) == ((bits & 0x8000) != 0));
      EXPECT_EQ(F16FromF32(value), bits);
    } else {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_EQ(F16FromF32(value) & 0x7C00, 0x7C00);
      EXPECT_NE(F16FromF32(value) & 0x3FF, 0);
    }
  }
}

TEST(HalfTest, Fp16RoundsHalfToEvenAtEveryBoundary) {
  for (uint16_t bits = 0; bits < 0x7BFF; ++bits) {
    const uint16_t next = bits + 1;
    // Exact in fp32: one more bit of mantissa than fp16.
    const float middle = static_cast<float>((HalfValue(bits) + HalfValue(next)) / 2);
    const uint16_t even = (bits & 1) == 0 ? bits : next;
    EXPECT_EQ(F16FromF32(middle), even) << bits;
    EXPECT_EQ(F16FromF32(std::nextafterf(middle, 0.0f)), bits) << bits;
    EXPECT_EQ(F16FromF32(std::nextafterf(middle, 1e9f)), next) << bits;
    EXPECT_EQ(F16FromF32(-middle), even | 0x8000) << bits;
  }
  EXPECT_EQ(F16FromF32(65519.996f), 0x7BFF);
  EXPECT_EQ(F16FromF32(65520.0f), 0x7C00);
  EXPECT_EQ(F16FromF32(-3e38f), 0xFC00);
  EXPECT_EQ(F16FromF32(1e-30f), 0);
  EXPECT_EQ(F16FromF32(-1e-45f), 0x8000);
}

TEST(HalfTest, Bf16RoundsHalfToEvenAtEveryBoundary) {
  for (uint32_t b = 0; b < 0x7F80; ++b) {  // all finite positive values
    const uint16_t bits = static_cast<uint16_t>(b), next = bits + 1;
    const float value = F32FromBf16(bits);
    EXPECT_EQ(std::bit_cast<uint32_t>(value), b << 16);
    EXPECT_EQ(Bf16FromF32(value), bits);
    EXPECT_EQ(Bf16FromF32(-value), bits | 0x8000);
    const float middle = std::bit_cast<float>(b << 16 | 0x8000);
    EXPECT_EQ(Bf16FromF32(middle), (bits & 1) == 0 ? bits : next);
    EXPECT_EQ(Bf16FromF32(std::nextafterf(middle, 0.0f)), bits);
    EXPECT_EQ(Bf16FromF32(std::nextafterf(middle, INFINITY)), next);
  }
  EXPECT_EQ(Bf16FromF32(INFINITY), 0x7F80);
  EXPECT_EQ(Bf16FromF32(-INFINITY), 0xFF80);
  EXPECT_TRUE(std::isnan(F32FromBf16(Bf16FromF32(std::bit_cast<float>(0x7F800001)))));
}

// --- checked ------------------------------------------------------------------------------------

TEST(CheckedTest, OverflowGivesNothing) {
  constexpr uint64_t kMax = ~uint64_t{0};
  EXPECT_EQ(CheckedAdd(kMax - 1, 1), kMax);
  EXPECT_EQ(CheckedAdd(kMax, 1), std::nullopt);
  EXPECT_EQ(CheckedMul(uint64_t{1} << 32, (uint64_t{1} << 32) - 1), kMax - 0xFFFFFFFFu);
  EXPECT_EQ(CheckedMul(uint64_t{1} << 32, uint64_t{1} << 32), std::nullopt);
  const auto bytes = [](std::vector<int64_t> shape) { return CheckedBytes(shape, 4); };
  EXPECT_EQ(bytes({3, 5}), 60u);
  EXPECT_EQ(bytes({}), 4u);
  EXPECT_EQ(bytes({3, 0}), 0u);
  EXPECT_EQ(bytes({3, -1}), std::nullopt);
  EXPECT_EQ(bytes({int64_t{1} << 31, int64_t{1} << 31}), std::nullopt);
  // A zero must not hide an overflow before it.
  EXPECT_EQ(bytes({int64_t{1} << 62, int64_t{1} << 62, 0}), std::nullopt);
}

// --- rng ----------------------------------------------------------------------------------------

TEST(RngTest, GoldenNumbers) {
  // splitmix64 with the seeding of rng.h, worked out with big integers in Python.
  const std::vector<uint64_t> golden = {0xDDC5B3DE304DE25Dull, 0x12AE1D5120245934ull,
                                        0x6D59D6563090C1BFull};
  Rng a(1234);
  for (uint64_t expected : golden) EXPECT_EQ(a.Next(), expected);
  const std::vector<uint64_t> golden_stream = {0xE91DD026BBCE5789ull, 0x5303EE566CE54395ull,
                                               0x767A8536B7129D0Bull};
  Rng b(1234, 5);
  for (uint64_t expected : golden_stream) EXPECT_EQ(b.Next(), expected);
  Rng c(1234);
  EXPECT_EQ(c.Below(1000), 866u);
  EXPECT_EQ(c.Uniform(), 0x1.2ae1d51202458p-4);
}

TEST(RngTest, StreamsAndSeedsDiffer) {
  EXPECT_NE(Rng(1).Next(), Rng(2).Next());
  EXPECT_NE(Rng(1, 0).Next(), Rng(1, 1).Next());
  EXPECT_EQ(Rng(7, 3).Signs(100), Rng(7, 3).Signs(100));
  EXPECT_NE(Rng(7, 3).Signs(100), Rng(7, 4).Signs(100));
}

TEST(RngTest, EveryOrderIsAsLikely) {
  constexpr int kN = 24000;
  Rng rng(5);
  std::map<std::vector<int64_t>, int> counts;
  for (int i = 0; i < kN; ++i) ++counts[rng.Permutation(4)];
  EXPECT_EQ(counts.size(), 24u);
  for (const auto& [order, count] : counts) {
    std::vector<int64_t> sorted = order;
    std::ranges::sort(sorted);
    EXPECT_EQ(sorted, (std::vector<int64_t>{0, 1, 2, 3}));
    EXPECT_NEAR(count, kN / 24, 160);  // five deviations, sqrt(1000 * 23 / 24)
  }
  EXPECT_EQ(rng.Permutation(0), std::vector<int64_t>());
}

TEST(RngTest, DistributionsHaveTheirMoments) {
  constexpr int kN = 200000;
  Rng rng(11);
  double uniform = 0, normal = 0, square = 0, fourth = 0, sign = 0;
  std::vector<int> counts(7);
  for (int i = 0; i < kN; ++i) {
    const double u = rng.Uniform(), n = rng.Normal();
    ASSERT_TRUE(u >= 0 && u < 1);
    uniform += u, normal += n, square += n * n, fourth += n * n * n * n;
    ++counts.at(rng.Below(7));
  }
  for (int8_t s : rng.Signs(kN)) {
    ASSERT_TRUE(s == 1 || s == -1);
    sign += s;
  }
  // Six standard deviations of each mean: sd = 1/sqrt(12), 1, sqrt(2), sqrt(96), 1.
  const double six = 6 / std::sqrt(kN);
  EXPECT_NEAR(uniform / kN, 0.5, six * 0.289);
  EXPECT_NEAR(normal / kN, 0, six);
  EXPECT_NEAR(square / kN, 1, six * 1.415);
  EXPECT_NEAR(fourth / kN, 3, six * 9.8);
  EXPECT_NEAR(sign / kN, 0, six);
  for (int count : counts) EXPECT_NEAR(count / double{kN}, 1 / 7.0, six * 0.35);
}

// --- thread pool --------------------------------------------------------------------------------

class PoolTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { SetThreads(GetParam()); }
  void TearDown() override { SetThreads(0); }
};

TEST_P(PoolTest, EveryIndexOnce) {
  EXPECT_EQ(Threads(), GetParam());
  for (const size_t count : {0, 1, 2, 3, 64, 1000}) {
    std::vector<std::atomic<int>> calls(count);
    ParallelFor(count, [&](size_t i) { ++calls[i]; });
    for (const auto& n : calls) EXPECT_EQ(n, 1);
  }
}

TEST_P(PoolTest, ManySmallJobs) {
  std::vector<int> sums(5);
  for (int job = 0; job < 400; ++job) {
    ParallelFor(sums.size(), [&](size_t i) { sums[i] += static_cast<int>(i) + job % 2; });
  }
  for (size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(sums[i], 400 * static_cast<int>(i) + 200);
}

// A worker late for one job must not run a task of the next, larger one with the old index.
TEST_P(PoolTest, JobsOfChangingSizeRunEachTaskOnce) {
  std::vector<std::atomic<int>> calls(40);
  for (int job = 0; job < 20000; ++job) {
    const size_t count = 2 + static_cast<size_t>(job) % 37;
    for (auto& c : calls) c = 0;
    ParallelFor(count, [&](size_t i) { ++calls[i]; });
    for (size_t i = 0; i < calls.size(); ++i) ASSERT_EQ(calls[i], i < count ? 1 : 0) << job;
  }
}

TEST_P(PoolTest, NestedCallsRunInline) {
  std::vector<std::atomic<int>> calls(6 * 7);
  ParallelFor(6, [&](size_t i) {
    const auto thread = std::this_thread::get_id();
    ParallelFor(7, [&](size_t j) {
      EXPECT_EQ(std::this_thread::get_id(), thread);
      ++calls[i * 7 + j];
    });
  });
  for (const auto& n : calls) EXPECT_EQ(n, 1);
}

TEST_P(PoolTest, ExceptionsReachTheCallerAndThePoolLivesOn) {
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(ParallelFor(50,
                             [](size_t i) {
                               if (i % 10 == 3) throw std::runtime_error("task");
                             }),
                 std::runtime_error);
    std::atomic<int> calls = 0;
    ParallelFor(50, [&](size_t) { ++calls; });
    EXPECT_EQ(calls, 50);
  }
  EXPECT_THAT(ErrorOf([] { ParallelFor(3, [](size_t) { Fail("bad {}", 1); }); }), "bad 1");
}

TEST_P(PoolTest, CallsFromSeveralThreadsTakeTurns) {
  std::vector<int> sums(3 * 16);
  std::vector<std::thread> callers;
  for (size_t c = 0; c < 3; ++c) {
    callers.emplace_back([&sums, c] {
      for (int job = 0; job < 100; ++job) ParallelFor(16, [&](size_t i) { ++sums[c * 16 + i]; });
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (int sum : sums) EXPECT_EQ(sum, 100);
}

INSTANTIATE_TEST_SUITE_P(Threads, PoolTest, testing::Values(1, 2, 3, 7));

TEST(PoolSizeTest, ZeroMeansAllCores) {
  SetThreads(3);
  SetThreads(0);
  EXPECT_GE(Threads(), 1);
}

// --- cpu features -------------------------------------------------------------------------------

TEST(CpuFeaturesTest, Names) {
  EXPECT_EQ(IsaName(Isa::kRef), "ref");
  EXPECT_EQ(IsaName(Isa::kAvx2), "avx2");
  EXPECT_EQ(IsaName(Isa::kAvxVnni), "avx_vnni");
  EXPECT_EQ(IsaName(Isa::kAvx512), "avx512");
  EXPECT_EQ(IsaName(Isa::kAvx512Vbmi), "avx512_vbmi");
  EXPECT_EQ(IsaName(Isa::kAmx), "amx");
}

// ActiveIsa is decided once per process, so each value is tried in a process of its own.
[[noreturn]] void TryIsa(const char* value) {
  setenv("NIBBLE_ISA", value, 1);
  try {
    fmt::print(stderr, "active {}.", IsaName(ActiveIsa()));
    std::exit(0);
  } catch (const Error& e) {
    fmt::print(stderr, "{}", e.what());
    std::exit(static_cast<int>(e.code()));
  }
}

TEST(CpuFeaturesDeathTest, EnvironmentLowersTheIsa) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(TryIsa("ref"), testing::ExitedWithCode(0), "active ref\\.");
  EXPECT_EXIT(TryIsa(""), testing::ExitedWithCode(0),
              fmt::format("active {}\\.", IsaName(DetectedIsa())));
  EXPECT_EXIT(TryIsa("sse9"), testing::ExitedWithCode(2), "NIBBLE_ISA=sse9: use ref");
  for (const Isa isa : kVectorIsas) {
    const std::string name(IsaName(isa));
    if (MachineHas(isa)) {
      EXPECT_EXIT(TryIsa(name.c_str()), testing::ExitedWithCode(0), "active " + name + "\\.");
    } else {
      EXPECT_EXIT(TryIsa(name.c_str()), testing::ExitedWithCode(2),
                  "this machine lacks it, and supports");
    }
  }
}

// --- progress -----------------------------------------------------------------------------------

TEST(ProgressTest, DurationAndBytesText) {
  EXPECT_EQ(DurationText(0), "0 s");
  EXPECT_EQ(DurationText(45.4), "45 s");
  EXPECT_EQ(DurationText(59.6), "1 min 0 s");
  EXPECT_EQ(DurationText(200), "3 min 20 s");
  EXPECT_EQ(DurationText(3599), "59 min 59 s");
  EXPECT_EQ(DurationText(7500), "2 h 5 min");
  EXPECT_EQ(BytesText(0), "0 B");
  EXPECT_EQ(BytesText(999), "999 B");
  EXPECT_EQ(BytesText(820e3), "820.0 kB");
  EXPECT_EQ(BytesText(999960), "1.0 MB");
  EXPECT_EQ(BytesText(1.23e9), "1.2 GB");
  EXPECT_EQ(BytesText(5e15), "5000.0 TB");
}

TEST(ProgressTest, IsToldToWhoeverBeganTheWork) {
  std::vector<ProgressState> reported;
  const auto work = [] {
    Progress progress("quantize", "layers", 8);
    progress.Update(2, "layer 2");
    progress.Update(3, "layer 3");  // too soon after the first
  };
  work();  // nobody listens
  {
    const ProgressReceiver receiver([&](const ProgressState& state) { reported.push_back(state); });
    work();
    {
      const ProgressReceiver inner([](const ProgressState&) { throw std::runtime_error("stop"); });
      EXPECT_THROW(work(), std::runtime_error);
    }
    EXPECT_EQ(reported.size(), 2u);
  }
  work();
  ASSERT_EQ(reported.size(), 2u);
  EXPECT_EQ(reported[0].title, "quantize");
  EXPECT_EQ(reported[0].unit, "layers");
  EXPECT_EQ(reported[0].detail, "layer 2");
  EXPECT_EQ(reported[0].done, 2);
  EXPECT_EQ(reported[0].total, 8);
  EXPECT_FALSE(reported[0].ended);
  EXPECT_TRUE(reported[1].ended);
}

TEST(Utf8, KnowsWhatIsValid) {
  for (const char* valid : {"", "a", "\u00e9", "\uD7FF", "\uE000", "\U0010FFFF", "\u0800"}) {
    EXPECT_TRUE(IsValidUtf8(valid)) << valid;
  }
  for (const char* invalid :
       {"\x80", "\xC3", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "a\xE2\x82", "\xC3(", "\xFF"}) {
    EXPECT_FALSE(IsValidUtf8(invalid)) << invalid;
  }
}

}  // namespace
}  // namespace nibble
