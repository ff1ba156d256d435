// SPDX-License-Identifier: Apache-2.0
// One connection as a coroutine on the I/O thread. It waits in one place, for its timer: whatever
// else happens (bytes to read, room to write, something to send, the server's end) sets a flag or
// fills a buffer and cancels the timer. So no wait needs to be raced against another.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "http/answer.h"
#include "http/request_reader.h"
#include "http/server.h"
#include "http/worker_pool.h"

namespace nibble::http {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;
using Socket = asio::generic::stream_protocol::socket;

class Connection;

// State that all connections share. An Exchange may outlive it, and holds it weakly.
struct Loop {
  const Limits limits;
  const Handler handler;
  const std::shared_ptr<const ErrorBody> error_body;
  WorkerPool* workers = nullptr;
  const std::shared_ptr<std::atomic<size_t>> body_bytes = std::make_shared<std::atomic<size_t>>(0);
  std::atomic<int64_t> connections = 0;
  std::unordered_set<Connection*> open;
  bool stopping = false;
  std::function<void()> on_last_closed;
  // All connections read into this, so that one that waits has no buffer of its own.
  std::vector<char> scratch = std::vector<char>(64 << 10);
  asio::io_context io{1};  // last: connections that are left in it end first
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(const std::shared_ptr<Loop>& loop, Socket socket, std::string peer);
  ~Connection();

  // over_limit: says 503 and closes.
  void Start(bool over_limit);
  // Ends the connection after the answer that is under way, if there is one.
  void Stop();
  // Ends the connection now.
  void Cut();

 private:
  asio::awaitable<void> Serve(bool over_limit);
  asio::awaitable<bool> ServeRequest();
  asio::awaitable<bool> ReadRequest(RequestReader& reader, BytesHeld& held);
  void Dispatch(RequestReader& reader, std::shared_ptr<BytesHeld> held);
  asio::awaitable<bool> SendAnswer();
  asio::awaitable<bool> SendAll(std::string bytes);
  asio::awaitable<bool> Refuse(const Refused& refused, bool head_only);
  asio::awaitable<void> Linger();
  asio::awaitable<void> Wait(Clock::time_point deadline);

  void Notify() { timer_.cancel(); }
  void WatchInput();
  void ReadSome();
  void WatchRoom();
  size_t SendSome(std::string_view bytes);
  bool PeerLeft();
  void Close();

  const std::weak_ptr<Loop> weak_loop_;
  Loop& loop_;
  Socket socket_;
  asio::steady_timer timer_;
  const std::string peer_;
  const size_t max_in_;  // bytes of in_
  std::string in_;       // read and not yet taken
  std::shared_ptr<Answer> answer_;
  bool watching_input_ = false, watching_room_ = false;
  bool ended_ = false;    // the other side sends no more
  bool broken_ = false;   // nothing can be sent or read
  bool cut_ = false;      // from outside
  bool reset_ = false;    // close so that the other side sees an error
  bool linger_ = false;   // an answer is on its way
  bool discard_ = false;  // what still comes
  bool closed_ = false;
};

}  // namespace nibble::http
