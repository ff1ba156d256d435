// SPDX-License-Identifier: Apache-2.0
#include "http/server.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <utility>

#include "base/error.h"
#include "http/connection.h"
#include "http/listener.h"

namespace nibble::http {
namespace {

using Protocol = asio::generic::stream_protocol;

// Connections beyond the limit that are told so; further ones are closed without a word.
constexpr int64_t kToldOverLimit = 256;

std::string PeerOf(const Socket& socket) {
  boost::system::error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  const auto* address = reinterpret_cast<const sockaddr*>(endpoint.data());
  char text[INET6_ADDRSTRLEN] = "";
  if (error || address->sa_family == AF_UNIX) return error ? "unknown" : "unix";
  if (address->sa_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text,
              sizeof(text));
  } else {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text,
              sizeof(text));
  }
  return text;
}

}  // namespace

struct Server::Impl {
  Impl(Options given, Handler handler, ErrorBody error_body);
  ~Impl();

  asio::awaitable<void> Accept();
  void Add(Socket socket);
  void Stop(Clock::time_point end_by);

  const Options options;
  const Listener listener;
  const std::shared_ptr<Loop> loop;
  asio::basic_socket_acceptor<Protocol> acceptor;
  asio::steady_timer drain;
  WorkerPool workers;
};

Server::Impl::Impl(Options given, Handler handler, ErrorBody error_body)
    : options(std::move(given)),
      listener(Listen(options)),
      loop(new Loop{options.limits, std::move(handler),
                    std::make_shared<const ErrorBody>(std::move(error_body))}),
      acceptor(loop->io, Protocol(listener.family, 0), listener.descriptor),
      drain(loop->io, Clock::time_point::max()),
      workers(options.workers, options.limits.waiting_requests) {
  acceptor.non_blocking(true);
  loop->workers = &workers;
  loop->on_last_closed = [this] {
    if (loop->stopping) drain.cancel();
  };
}

Server::Impl::~Impl() {
  loop->on_last_closed = nullptr;
  if (acceptor.is_open() && !options.unix_socket.empty()) unlink(options.unix_socket.c_str());
}

// Waits and then accepts: where memory runs out inside async_accept, Asio drops who waits for it.
asio::awaitable<void> Server::Impl::Accept() {
  while (acceptor.is_open()) {
    try {
      boost::system::error_code error;
      co_await acceptor.async_wait(acceptor.wait_read,
                                   asio::redirect_error(asio::use_awaitable, error));
      while (!error && acceptor.is_open()) {
        Socket socket(loop->io);
        acceptor.accept(socket, error);
        if (!error) Add(std::move(socket));
      }
      if (!acceptor.is_open() || error == asio::error::would_block) continue;
      // The error may be that descriptors have run out, so a pause helps.
      asio::steady_timer pause(loop->io, std::chrono::milliseconds(50));
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
    } catch (const std::exception&) {  // memory has run out: this connection closes
    }
  }
}

void Server::Impl::Add(Socket socket) {
  const int64_t limit = static_cast<int64_t>(options.limits.connections);
  const bool over = loop->connections >= limit;
  if (loop->connections >= limit + kToldOverLimit) return;
  boost::system::error_code ignored;
  socket.non_blocking(true);
  // Small pieces of a stream go out at once. Fails on a Unix socket, which has no such delay.
  socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  // A client that has vanished acknowledges nothing, and the kernel would try for a quarter hour.
  const auto patience = static_cast<unsigned>(options.limits.stall_time.count());
  setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &patience, sizeof(patience));
  const std::string peer = PeerOf(socket);
  std::make_shared<Connection>(loop, std::move(socket), peer)->Start(over);
}

void Server::Impl::Stop(Clock::time_point end_by) {
  if (!std::exchange(loop->stopping, true)) {
    boost::system::error_code ignored;
    acceptor.close(ignored);
    if (!options.unix_socket.empty()) unlink(options.unix_socket.c_str());
  }
  for (Connection* connection : loop->open) connection->Stop();
  if (loop->open.empty() || end_by >= drain.expiry()) return;
  drain.expires_at(end_by);
  drain.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    for (Connection* connection : loop->open) connection->Cut();
  });
}

Server::Server(Options options, Handler handler, ErrorBody error_body)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(handler), std::move(error_body))) {
}

Server::~Server() = default;

void Server::Run() {
  asio::co_spawn(impl_->loop->io, impl_->Accept(), asio::detached);
  for (bool again = true; again;) {
    try {
      impl_->loop->io.run();
      again = false;
    } catch (const std::exception& error) {  // of one step of one connection
      NoteFailure("server", error.what());
    }
  }
  // Runs calls that were posted on the way out, for example an OnGone that must be called.
  impl_->loop->io.restart();
  impl_->loop->io.poll();
}

void Server::Stop(std::chrono::milliseconds drain) {
  const auto end_by = Clock::now() + drain;
  asio::post(impl_->loop->io, [impl = impl_.get(), end_by] { impl->Stop(end_by); });
}

uint16_t Server::port() const {
  return impl_->listener.port;
}

int64_t Server::connections() const {
  return impl_->loop->connections;
}

}  // namespace nibble::http
