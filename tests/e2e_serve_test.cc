// SPDX-License-Identifier: Apache-2.0
// Tests `nibble serve` as a process: the claims of docs/serving.md, keys, signals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e_testing.h"

namespace nibble {
namespace {

class ServeVerb : public TemporaryDirectoryTest {
 protected:
  // Serves the sample model on a free port, or where `more` says.
  static std::unique_ptr<Process> Serve(const Arguments& more, const Arguments& environment = {}) {
    return std::make_unique<Process>(
        Arguments{NIBBLE_PROGRAM, "serve", kTiny, "--port", "0"} + more, "", environment);
  }
  // Waits for the line with "serving on" and returns the address behind it.
  static std::string Where(const Process& server) {
    const std::string mark = "serving on ";
    std::string where;
    EXPECT_TRUE(WaitUntil([&] {
      const std::string said = server.Errors();
      const size_t at = said.find(mark), end = said.find('\n', at);
      if (at == std::string::npos || end == std::string::npos) return false;
      where = said.substr(at + mark.size(), end - at - mark.size());
      return true;
    })) << server.Errors();
    return where;
  }
};

std::string Shell(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  std::string output;
  char buffer[4096];
  for (size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.append(buffer, n);
  EXPECT_EQ(pclose(pipe), 0) << command;
  return output;
}

TEST_F(ServeVerb, TheLinesOfItsDocumentWork) {
  const auto server = Serve({"--name", "NAME"});
  const std::string where = Where(*server);
  std::ifstream document(NIBBLE_SOURCE_DIR "/docs/serving.md");
  int lines = 0;
  for (std::string line; std::getline(document, line);) {
    if (!line.starts_with("    curl ")) continue;
    const std::string local = "localhost:8080";
    line.replace(line.find(local), local.size(), where);
    const std::string output = Shell(line);
    ++lines;
    if (line.find("/metrics") != std::string::npos) {
      EXPECT_THAT(output, testing::HasSubstr("vllm:num_requests_running{"));
    } else if (line.find("\"stream\": true") != std::string::npos) {
      EXPECT_THAT(output, testing::HasSubstr("\"usage\":{"));
      EXPECT_THAT(output, testing::EndsWith("data: [DONE]\n\n"));
    } else {
      const Json answer = ParseJson(output, line);
      EXPECT_TRUE(answer.value("error", Json()).is_null()) << line << "\n" << output;
    }
  }
  EXPECT_EQ(lines, 16);
}

TEST_F(ServeVerb, KeysOpenEveryRoute) {
  const auto server = Serve({"--quiet"}, {"NIBBLE_API_KEY=secret"});
  const std::string where = Where(*server);
  const auto status = [&](const std::string& path, const std::string& more) {
    return Shell("curl -s -o /dev/null -w '%{http_code}' " + more + " " + where + path);
  };
  for (const char* path : {"/", "/health", "/metrics", "/v1/models", "/none"}) {
    EXPECT_EQ(status(path, ""), "401") << path;
    EXPECT_EQ(status(path, "-H 'Authorization: Bearer wrong!'"), "401") << path;
  }
  EXPECT_EQ(status("/", "-u nobody:secret"), "200");
  EXPECT_EQ(status("/health", "-H 'Authorization: Bearer secret'"), "200");
  EXPECT_EQ(status("/v1/models", "-H 'x-api-key: secret'"), "200");
}

TEST_F(ServeVerb, OtherNamesAndOpenHostsAreRefused) {
  const auto server = Serve({"--quiet"});
  const std::string where = Where(*server);
  EXPECT_THAT(Shell("curl -s -H 'Host: evil.example' " + where + "/v1/models"),
              testing::HasSubstr("answers for localhost"));
  const Result open = Serve({"--host", "0.0.0.0"})->Wait();
  EXPECT_EQ(open.code, 2);
  EXPECT_THAT(open.err, testing::HasSubstr("--api-key-file"));
}

TEST_F(ServeVerb, SigtermLetsAnswersEnd) {
  const std::string socket = Path("nibble.sock"), at = "curl -sN --unix-socket " + socket + " ";
  const auto server = Serve({"--unix-socket", socket});
  EXPECT_EQ(Where(*server), socket);
  std::string answer;
  std::thread client([&] {
    answer = Shell(at +
                   "http://localhost/v1/completions -H 'Content-Type: application/json' -d "
                   "'{\"prompt\": \"The river\", \"max_tokens\": 300, \"ignore_eos\": true, "
                   "\"stream\": true}'");
  });
  EXPECT_TRUE(WaitUntil([&] {
    return Shell(at + "http://localhost/metrics")
               .find("num_requests_running{engine=\"0\",model_name=\"tiny\"} 1\n") !=
           std::string::npos;
  }));
  server->Signal(SIGTERM);
  client.join();
  EXPECT_THAT(answer, testing::HasSubstr("\"finish_reason\":\"length\""));
  EXPECT_THAT(answer, testing::EndsWith("data: [DONE]\n\n"));
  EXPECT_EQ(server->Wait().code, 0);
}

}  // namespace
}  // namespace nibble
