// SPDX-License-Identifier: Apache-2.0
// An HTTP/1.1 server (RFC 9110, 9112) for few, long answers: one thread for all connections, a
// few for handlers. Requests are read whole and within limits; what is ambiguous in its framing is
// refused and the connection closed (framing.h). Answers are whole or streams of chunks.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble::http {

struct Limits {
  size_t header_bytes = 16 << 10, header_fields = 100, body_bytes = 8 << 20;
  size_t connections = 2048, queued_bytes = 1 << 20;  // of one slow reader
  // Times to read a header, from its first byte, and the body behind it; to wait for a request; and
  // for a reader that takes nothing, and for each queued_bytes of an answer that has ended.
  std::chrono::milliseconds header_time{5000}, body_time{30000}, idle_time{75000},
      stall_time{30000};
  std::chrono::milliseconds keep_alive{15000};  // a quiet stream gets a sign of life this often
  size_t all_body_bytes = 256 << 20;            // of all requests that are held; beyond it 503
  size_t waiting_requests = 1024;               // for a worker; beyond it 503
};

struct Options {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;     // 0: any free one
  std::string unix_socket;  // instead of host and port when not empty
  int workers = 2;          // threads on which handlers run
  Limits limits;
};

using Headers = std::vector<std::pair<std::string, std::string>>;

struct Request {
  std::string method;  // GET POST PUT DELETE OPTIONS PATCH; HEAD comes as GET
  std::string path;    // without the query, percent-decoded, valid UTF-8 without control characters
  std::string query;   // behind the first '?', as it came; decodes to valid UTF-8
  std::string body;
  std::string peer;  // address of the other side without port; "unix" for a Unix socket
  std::string id;    // X-Request-Id if it is 1-128 of [A-Za-z0-9._-], else made (random hex)
  Headers fields;    // names in lower case; no trailers

  // The first of this name. Its value may have bytes that are not UTF-8, but no control characters.
  std::optional<std::string> Header(std::string_view lower_case_name) const;
};

struct Answer;

// The answer to one request. All members are thread-safe; what one thread calls happens in that
// order. One that is dropped without an end becomes a 500, or a stream that breaks off.
class Exchange {
 public:
  explicit Exchange(std::shared_ptr<Answer> answer);
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  ~Exchange();

  const Request& request() const;
  // A whole answer. Either this, or BeginStream, Write.. and End; anything after the answer's end
  // or after the client has gone is ignored. Of `extra`, fields that would change the framing are
  // left out, and control characters of values.
  void Reply(int status, std::string_view content_type, std::string body, Headers extra = {});
  // 200 with chunked encoding (on HTTP/1.0: until the connection closes). quiet: what is written
  // when nothing was for Limits::keep_alive, e.g. ": \n\n", asked for on the connection's thread.
  void BeginStream(std::string_view content_type, std::function<std::string()> quiet = nullptr,
                   Headers extra = {});
  void Write(std::string data);
  void End();
  // Runs `task` on the connection's I/O thread, after what was posted before; dropped when the
  // client has gone. An exception from it ends the answer as one from the handler does.
  void Post(std::function<void()> task);
  // Called once, on the I/O thread, if the client goes away (or is cut off) before the answer's
  // end; at once if it has gone already.
  void OnGone(std::function<void()> call);
  bool gone() const;

 private:
  std::shared_ptr<Answer> answer_;
};

// Called on a worker thread. An exception from it becomes a 500 without its text.
using Handler = std::function<void(const std::shared_ptr<Exchange>&)>;

// Makes the JSON text of errors of the HTTP layer itself (400 bad framing, 413, 431, 408, 501, 503
// ...). Default: {"error":{"message":..., "type":..., "code":...}}.
using ErrorBody = std::function<std::string(int status, std::string_view message)>;

class Server {
 public:
  // Binds and listens; throws nibble::Error with what to do next (address in use ...).
  Server(Options options, Handler handler, ErrorBody error_body = {});
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server();  // waits for handlers that run; Run must have returned

  // Serves on this thread until Stop and all answers have ended or the drain time is over.
  void Run();
  // Thread-safe: accept no more, let answers end. The earliest end of several calls counts.
  void Stop(std::chrono::milliseconds drain);

  uint16_t port() const;  // 0 for a Unix socket
  int64_t connections() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::http
