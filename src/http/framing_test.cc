// SPDX-License-Identifier: Apache-2.0
// The reader of requests without sockets: what it takes, wherever the bytes are cut.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "base/rng.h"
#include "http/request_reader.h"
#include "http/response.h"

namespace nibble::http {
namespace {

// Reads bytes in these pieces; returns all requests, or the refusal at their end.
std::string CutOutcome(std::string_view bytes, std::vector<size_t> pieces,
                       const Limits& limits = {}) {
  std::string outcome, buffer;
  std::optional<RequestReader> reader(limits);
  size_t next = 0;
  try {
    for (size_t at = 0; at < bytes.size();) {
      const size_t piece = std::min(pieces[next++ % pieces.size()], bytes.size() - at);
      buffer += bytes.substr(at, piece);
      at += piece;
      for (bool more = true; more;) {
        buffer.erase(0, reader->Feed(buffer));
        more = reader->done();
        if (!more) continue;
        const bool keep_alive = reader->framing().keep_alive;
        const Request request = reader->TakeRequest();
        outcome += fmt::format("{} {} {} [{}] {} {}\n", request.method, request.path, request.query,
                               request.body, keep_alive, request.fields.size());
        reader.emplace(limits);
        more = !buffer.empty();
      }
    }
  } catch (const Refused& refused) {
    return outcome + fmt::to_string(refused.status);
  }
  return outcome + (buffer.empty() && !reader->head_done() ? "" : "unfinished");
}

std::string Outcome(std::string_view bytes, const Limits& limits = {}) {
  return CutOutcome(bytes, {bytes.size() + 1}, limits);
}

constexpr std::string_view kThreeRequests =
    "POST /one?a=b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    "3\r\nabc\r\n1;n=\"v\"\r\nd\r\n0;e\r\nTrailer-A: b\r\n\r\n"
    "PUT /two HTTP/1.0\r\nContent-Length: 4\r\n\r\nbody"
    "GET /%C3%A9 HTTP/1.1\r\nHost:\r\nConnection: x, Close\r\n\r\n";
constexpr std::string_view kTaken =
    "POST /one a=b [abcd] true 2\nPUT /two  [body] false 1\nGET /\u00e9  [] false 2\n";

TEST(RequestReader, TakesTheSameHoweverTheBytesAreCut) {
  EXPECT_EQ(Outcome(kThreeRequests), kTaken);
  for (size_t piece = 1; piece < kThreeRequests.size(); ++piece) {
    EXPECT_EQ(CutOutcome(kThreeRequests, {piece}), kTaken) << piece;
    EXPECT_EQ(CutOutcome(kThreeRequests, {piece, kThreeRequests.size()}), kTaken) << piece;
  }
}

// Changes of valid requests: the outcome does not depend on the cuts.
TEST(RequestReader, DecidesTheSameOfMutatedRequests) {
  constexpr std::string_view kInserted[] = {"\r\n",
                                            "\n",
                                            "\r",
                                            " ",
                                            "\t",
                                            ":",
                                            "0",
                                            "5",
                                            ";",
                                            "%",
                                            std::string_view("\0", 1),
                                            "\xFF",
                                            "\"",
                                            ",",
                                            "A:b\r\n",
                                            "Content-Length: 3\r\n",
                                            "Transfer-Encoding: chunked\r\n",
                                            "\r\n\r\n"};
  Rng rng(1);
  std::map<std::string, int> statuses;
  Limits limits;
  limits.header_bytes = 256;
  limits.body_bytes = 64;
  for (int n = 0; n < 20'000; ++n) {
    std::string bytes(kThreeRequests);
    for (uint64_t changes = 1 + rng.Below(3); changes > 0; --changes) {
      const size_t at = rng.Below(bytes.size());
      const uint64_t kind = rng.Below(50) == 0 ? 4 : rng.Below(4);
      if (kind == 0) bytes.erase(at, 1 + rng.Below(4));
      if (kind == 1) bytes.insert(at, kInserted[rng.Below(std::size(kInserted))]);
      if (kind == 2) bytes[at] = static_cast<char>(rng.Below(256));
      if (kind == 3) bytes.insert(at, bytes.substr(rng.Below(bytes.size()), rng.Below(40)));
      if (kind == 4) bytes.insert(at, 200, 'a');
    }
    const std::string whole = Outcome(bytes, limits);
    ASSERT_EQ(CutOutcome(bytes, {1}, limits), whole) << bytes;
    ASSERT_EQ(CutOutcome(bytes, {1 + rng.Below(9), 1 + rng.Below(90)}, limits), whole) << bytes;
    ++statuses[whole.substr(whole.rfind('\n') + 1)];
  }
  for (const char* status : {"", "unfinished", "400", "413", "431", "501", "505"}) {
    EXPECT_GT(statuses[status], 0) << status;
  }
}

TEST(RequestReader, HoldsItsLimitsToTheByte) {
  const std::string head = "GET / HTTP/1.1\r\nHost: x\r\nA: ";
  Limits limits;
  limits.header_bytes = head.size() + 14;
  EXPECT_THAT(Outcome(head + std::string(10, 'a') + "\r\n\r\n", limits), testing::EndsWith("2\n"));
  EXPECT_EQ(Outcome(head + std::string(11, 'a') + "\r\n\r\n", limits), "431");
  EXPECT_EQ(Outcome(head + std::string(15, 'a'), limits), "431");  // without waiting for its end

  limits = {};
  limits.header_fields = 5;
  const auto fields = [](int count) {
    std::string text = "GET / HTTP/1.1\r\nHost: x\r\n";
    for (int i = 1; i < count; ++i) text += "A: b\r\n";
    return text;
  };
  EXPECT_EQ(Outcome(fields(5) + "\r\n", limits), "GET /  [] true 5\n");
  EXPECT_EQ(Outcome(fields(6), limits), "431");

  limits.body_bytes = 10;
  const std::string post = "POST / HTTP/1.1\r\nHost: x\r\n";
  EXPECT_EQ(Outcome(post + "Content-Length: 10\r\n\r\n0123456789", limits),
            "POST /  [0123456789] true 2\n");
  const std::string chunked = post + "Transfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(Outcome(chunked + "9\r\n012345678\r\n1\r\n9\r\n0\r\n\r\n", limits),
            "POST /  [0123456789] true 2\n");
  EXPECT_EQ(Outcome(chunked + "9\r\n012345678\r\n2\r\n", limits), "413");
  for (const char* length : {"11", "2147483648", "9223372036854775808", "18446744073709551615"}) {
    EXPECT_EQ(Outcome(post + "Content-Length: " + length + "\r\n\r\n", limits), "413") << length;
  }
}

TEST(RequestReader, BoundsChunkExtensionsAndTrailers) {
  const std::string chunked = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  const auto repeated = [](std::string_view text, int times) {
    std::string all;
    for (int i = 0; i < times; ++i) all += text;
    return all;
  };
  const std::string extension = "1;" + std::string(900, 'e') + "\r\nx\r\n";
  EXPECT_THAT(Outcome(chunked + repeated(extension, 18) + "0\r\n\r\n"), testing::EndsWith("2\n"));
  EXPECT_EQ(Outcome(chunked + repeated(extension, 19)), "431");
  EXPECT_EQ(Outcome(chunked + "1;" + std::string(1100, 'e')), "400");
  const std::string end = chunked + "0\r\n";
  EXPECT_EQ(Outcome(end + repeated("A: b\r\n", 100) + "\r\n"), "POST /  [] true 2\n");
  EXPECT_EQ(Outcome(end + repeated("A: b\r\n", 101)), "431");
  EXPECT_EQ(Outcome(end + "A: " + std::string(17'000, 'b')), "400");
  EXPECT_EQ(Outcome(end + repeated("A: " + std::string(1000, 'b') + "\r\n", 17)), "431");
}

}  // namespace
}  // namespace nibble::http
