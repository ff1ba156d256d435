// SPDX-License-Identifier: Apache-2.0
// A server on a thread of its own, and a client that sends bytes as they are and reads answers
// strictly, with its own parser.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "http/server.h"

namespace nibble::http {

using std::chrono::milliseconds;
using ExchangePtr = std::shared_ptr<Exchange>;

// Waits for it; false if it has not become true after ten seconds.
template <typename Condition>
bool Eventually(const Condition& condition) {
  for (int i = 0; i < 5000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return false;
}

class TestServer {
 public:
  explicit TestServer(Handler handler, Options options = {}, ErrorBody error_body = {})
      : server_(AnyPort(options), std::move(handler), std::move(error_body)),
        thread_([this] { server_.Run(); }) {}
  ~TestServer() { Stop(milliseconds(0)); }

  Server& operator*() { return server_; }
  Server* operator->() { return &server_; }
  void Stop(milliseconds drain) {
    server_.Stop(drain);
    Join();
  }
  void Join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  static Options AnyPort(Options options) {
    options.port = 0;
    return options;
  }
  Server server_;
  std::thread thread_;
};

struct ReadAnswer {
  int status = 0;
  std::multimap<std::string, std::string> fields;  // names in lower case
  std::string body;
  std::vector<std::string> chunks;  // of a chunked body
  std::string Field(const std::string& name) const {
    const auto found = fields.find(name);
    return found == fields.end() ? "" : found->second;
  }
};

class Client {
 public:
  // Connects from an address of this machine.
  explicit Client(TestServer& server, int receive_bytes = 0, in_addr_t from = INADDR_LOOPBACK) {
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (receive_bytes > 0) {
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(from);
    connected_ = bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    address.sin_port = htons(server->port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ =
        connected_ && connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  explicit Client(const std::string& unix_path) {
    fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    unix_path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() { Close(); }

  bool connected() const { return connected_; }
  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  void Reset() {
    const linger now{1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    Close();
  }
  void ShutdownWrite() { shutdown(fd_, SHUT_WR); }

  // Returns false when the server has closed the connection.
  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  // Reads more into buffer(). False at the end, a reset or after `wait`.
  bool Receive(milliseconds wait = milliseconds(10000)) {
    pollfd query{fd_, POLLIN, 0};
    char bytes[16 << 10];
    if (poll(&query, 1, static_cast<int>(wait.count())) <= 0) {
      timed_out_ = true;
      return false;
    }
    const ssize_t count = recv(fd_, bytes, sizeof(bytes), 0);
    reset_ = count < 0;
    if (count <= 0) return false;
    buffer_.append(bytes, static_cast<size_t>(count));
    return true;
  }
  std::string ReadToEnd() {
    while (Receive()) {
    }
    return std::exchange(buffer_, "");
  }
  const std::string& buffer() const { return buffer_; }
  bool reset() const { return reset_; }
  bool timed_out() const { return timed_out_; }

  // The next answer. None if the connection ends before its first byte; a malformed or unfinished
  // one sets malformed().
  std::optional<ReadAnswer> Answer(bool head_only = false) {
    ReadAnswer answer;
    std::string line;
    if (buffer_.empty() && !Receive()) return std::nullopt;
    if (!Line(&line) || line.size() < 13 || !line.starts_with("HTTP/1.1 ")) return Malformed();
    answer.status = atoi(line.c_str() + 9);
    if (answer.status < 100 || answer.status > 599) return Malformed();
    while (Line(&line) && !line.empty()) {
      const size_t colon = line.find(": ");
      if (colon == line.npos) return Malformed();
      std::string name = line.substr(0, colon);
      for (char& c : name) c = static_cast<char>(tolower(c));
      answer.fields.emplace(name, line.substr(colon + 2));
    }
    if (malformed_ || head_only || answer.status < 200) return answer;
    if (answer.fields.count("content-length") + answer.fields.count("transfer-encoding") > 1) {
      return Malformed();
    }
    const bool whole = answer.fields.contains("content-length")      ? TakeLength(&answer)
                       : answer.fields.contains("transfer-encoding") ? TakeChunks(&answer)
                                                                     : TakeRest(&answer);
    return whole ? std::optional(answer) : Malformed();
  }
  bool malformed() const { return malformed_; }

 private:
  std::optional<ReadAnswer> Malformed() {
    malformed_ = true;
    return std::nullopt;
  }
  bool Line(std::string* line) {
    size_t end;
    while ((end = buffer_.find("\r\n")) == buffer_.npos) {
      if (!Receive()) return malformed_ = true, false;
    }
    *line = buffer_.substr(0, end);
    buffer_.erase(0, end + 2);
    return true;
  }
  bool Take(size_t bytes, std::string* taken) {
    while (buffer_.size() < bytes) {
      if (!Receive()) return false;
    }
    *taken = buffer_.substr(0, bytes);
    buffer_.erase(0, bytes);
    return true;
  }
  bool TakeLength(ReadAnswer* answer) {
    return Take(std::stoul(answer->Field("content-length")), &answer->body);
  }
  bool TakeRest(ReadAnswer* answer) {
    if (answer->status != 204 && answer->status != 304) answer->body = ReadToEnd();
    return !reset_;
  }
  bool TakeChunks(ReadAnswer* answer) {
    for (std::string line, chunk, end;;) {
      if (!Line(&line) || line.empty()) return false;
      const size_t size = std::stoul(line, nullptr, 16);
      if (!Take(size, &chunk) || !Take(2, &end) || end != "\r\n") return false;
      if (size == 0) return true;
      answer->chunks.push_back(chunk);
      answer->body += chunk;
    }
  }

  int fd_ = -1;
  bool connected_ = false, reset_ = false, timed_out_ = false, malformed_ = false;
  std::string buffer_;
};

// A handler that answers with the request that it got.
inline void Echo(const ExchangePtr& exchange) {
  const Request& request = exchange->request();
  exchange->Reply(200, "text/plain",
                  request.method + " " + request.path + "?" + request.query + "\n" + request.body);
}

inline std::string Get(std::string_view path, std::string_view fields = "") {
  return std::string("GET ") + std::string(path) + " HTTP/1.1\r\nHost: x\r\n" +
         std::string(fields) + "\r\n";
}
inline std::string Post(std::string_view path, std::string_view body) {
  return std::string("POST ") + std::string(path) +
         " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         std::string(body);
}

// A server that remembers which paths it was asked for.
class WatchedServer {
 public:
  explicit WatchedServer(const Options& options = {})
      : server_(
            [this](const ExchangePtr& exchange) {
              {
                const std::lock_guard lock(mutex_);
                paths_.push_back(exchange->request().path);
              }
              Echo(exchange);
            },
            options) {}
  TestServer& operator*() { return server_; }
  std::vector<std::string> TakePaths() {
    const std::lock_guard lock(mutex_);
    return std::exchange(paths_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> paths_;
  TestServer server_;
};

}  // namespace nibble::http
