// SPDX-License-Identifier: Apache-2.0
#include "http/connection.h"

#include <poll.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <new>
#include <utility>

#include "base/error.h"

namespace nibble::http {
namespace {

using std::chrono::seconds;

constexpr auto kLook = seconds(30);  // for an answer that failed without being able to say so
constexpr auto kLinger = seconds(1);
constexpr size_t kMinIn = 64 << 10;

bool MustWait(const boost::system::error_code& error) {
  return error == asio::error::would_block || error == asio::error::try_again ||
         error == asio::error::interrupted;
}

}  // namespace

Connection::Connection(const std::shared_ptr<Loop>& loop, Socket socket, std::string peer)
    : weak_loop_(loop),
      loop_(*loop),
      socket_(std::move(socket)),
      timer_(loop->io),
      peer_(std::move(peer)),
      // A header is parsed in one piece.
      max_in_(std::max(kMinIn, loop->limits.header_bytes + 1)) {
  loop_.open.insert(this);
  ++loop_.connections;
}

Connection::~Connection() {
  Close();
}

void Connection::Start(bool over_limit) {
  const auto serve = [](std::shared_ptr<Connection> self, bool over) -> asio::awaitable<void> {
    co_await self->Serve(over);
  };
  asio::co_spawn(loop_.io, serve(shared_from_this(), over_limit), asio::detached);
}

void Connection::Stop() {
  if (answer_ && !answer_->begun && !answer_->ended) answer_->form.keep_alive = false;
  Notify();
}

void Connection::Cut() {
  cut_ = reset_ = true;
  Notify();
}

void Connection::Close() {
  if (std::exchange(closed_, true)) return;
  if (answer_) std::exchange(answer_, nullptr)->Gone();
  boost::system::error_code ignored;
  if (reset_) socket_.set_option(asio::socket_base::linger(true, 0), ignored);
  socket_.close(ignored);
  loop_.open.erase(this);
  --loop_.connections;
  if (loop_.open.empty() && loop_.on_last_closed) loop_.on_last_closed();
}

asio::awaitable<void> Connection::Wait(Clock::time_point deadline) {
  boost::system::error_code canceled_is_fine;
  timer_.expires_at(deadline);
  co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, canceled_is_fine));
}

void Connection::WatchInput() {
  if (watching_input_ || ended_ || broken_ || in_.size() >= max_in_) return;
  watching_input_ = true;
  socket_.async_wait(Socket::wait_read,
                     [self = shared_from_this()](const boost::system::error_code& error) {
                       self->watching_input_ = false;
                       if (error == asio::error::operation_aborted) return;
                       if (error) self->broken_ = true;
                       if (!error) self->ReadSome();
                       self->Notify();
                     });
}

void Connection::ReadSome() {
  constexpr int kReads = 4;  // then it is others' turn
  for (int i = 0; i < kReads && in_.size() < max_in_; ++i) {
    const size_t room = std::min(loop_.scratch.size(), max_in_ - in_.size());
    boost::system::error_code error;
    const size_t bytes = socket_.read_some(asio::buffer(loop_.scratch.data(), room), error);
    if (error == asio::error::eof)
      ended_ = true;
    else if (error && !MustWait(error))
      broken_ = true;
    if (error) return;
    try {
      if (!discard_) in_.append(loop_.scratch.data(), bytes);
    } catch (const std::bad_alloc&) {  // these bytes are lost
      broken_ = true;
    }
    if (bytes < room || broken_) return;
  }
}

void Connection::WatchRoom() {
  if (std::exchange(watching_room_, true)) return;
  socket_.async_wait(Socket::wait_write,
                     [self = shared_from_this()](const boost::system::error_code& error) {
                       self->watching_room_ = false;
                       if (error == asio::error::operation_aborted) return;
                       if (error) self->broken_ = true;
                       self->Notify();
                     });
}

// Returns the number of bytes that the socket took.
size_t Connection::SendSome(std::string_view bytes) {
  boost::system::error_code error;
  const size_t sent = socket_.write_some(asio::buffer(bytes.data(), bytes.size()), error);
  if (error && !MustWait(error)) broken_ = true;
  return error ? 0 : sent;
}

// Tells whether a client left whose bytes are not read any more, since in_ is full.
bool Connection::PeerLeft() {
  pollfd query{socket_.native_handle(), POLLRDHUP, 0};
  return poll(&query, 1, 0) > 0;
}

asio::awaitable<void> Connection::Serve(bool over_limit) {
  try {
    if (over_limit) {
      const Refused refused{503, "too many connections"};
      linger_ = co_await Refuse(refused, false);
    } else {
      while (co_await ServeRequest()) {
      }
    }
    if (linger_ && !reset_) co_await Linger();
  } catch (const std::exception& error) {
    reset_ = true;
    NoteFailure(peer_, error.what());
  }
  Close();
}

// Returns whether the connection goes on.
asio::awaitable<bool> Connection::ServeRequest() {
  RequestReader reader(loop_.limits);
  auto held = std::make_shared<BytesHeld>(loop_.body_bytes);
  std::optional<Refused> refused;
  try {
    if (!co_await ReadRequest(reader, *held)) co_return false;
  } catch (const Refused& why) {
    refused = why;
  }
  if (refused) {
    const bool head_only = reader.head_done() && reader.framing().head_only;
    linger_ = co_await Refuse(*refused, head_only);
    co_return false;
  }
  Dispatch(reader, std::move(held));
  const bool whole = co_await SendAnswer();
  const bool goes_on = whole && answer_->form.keep_alive && !loop_.stopping;
  if (whole) {
    answer_->Finish();
  } else {
    reset_ = true;
    answer_->Gone();
  }
  answer_ = nullptr;
  linger_ = whole && !goes_on;
  co_return goes_on;
}

asio::awaitable<bool> Connection::ReadRequest(RequestReader& reader, BytesHeld& held) {
  const Limits& limits = loop_.limits;
  auto deadline = Clock::now() + limits.idle_time;
  bool begun = false, in_body = false;
  if (in_.empty()) in_.shrink_to_fit();
  for (;;) {
    if (!begun && !in_.empty()) {
      begun = true;
      deadline = Clock::now() + limits.header_time;
    }
    in_.erase(0, reader.Feed(in_));
    if (held.Set(reader.body().size()) > limits.all_body_bytes) {
      throw Refused{503, "too many bytes of requests; try again later"};
    }
    if (reader.done()) co_return true;
    if (!in_body && reader.head_done()) {
      in_body = true;
      deadline = Clock::now() + limits.body_time;
      if (reader.framing().expects_continue && reader.body().empty()) {
        std::string invitation = "HTTP/1.1 100 Continue\r\n\r\n";
        if (!co_await SendAll(std::move(invitation))) co_return false;
      }
    }
    if (ended_ || broken_ || cut_ || (loop_.stopping && !begun)) co_return false;
    if (loop_.stopping) throw Refused{503, "the server stops"};
    if (Clock::now() >= deadline) {
      if (!begun) co_return false;
      throw Refused{408, in_body ? "the body came too slowly" : "the header came too slowly"};
    }
    WatchInput();
    co_await Wait(deadline);
  }
}

void Connection::Dispatch(RequestReader& reader, std::shared_ptr<BytesHeld> held) {
  answer_ = std::make_shared<Answer>();
  answer_->form = {.keep_alive = reader.framing().keep_alive && !loop_.stopping,
                   .old = reader.head().version < 11,
                   .head_only = reader.framing().head_only};
  answer_->request = reader.TakeRequest();
  answer_->request.peer = peer_;
  answer_->form.id = answer_->request.id;
  answer_->error_body = loop_.error_body;
  answer_->body_bytes = std::move(held);
  // A call holds its answer. Where one fails, for want of memory, the answer lacks a part.
  answer_->post = [weak = weak_loop_, answer = answer_.get()](std::function<void()> call) {
    const auto loop = weak.lock();
    if (!loop) return;
    asio::post(loop->io, [answer, call = std::move(call)] {
      try {
        call();
      } catch (const std::exception&) {
        answer->Break();
      }
    });
  };
  answer_->wake = [this] { Notify(); };
  const auto task = [answer = answer_, exchange = std::make_shared<Exchange>(answer_),
                     handler = &loop_.handler] {
    if (answer->gone) return;
    if (!Guarded(answer->request.id, [&] { (*handler)(exchange); })) {
      Answer::FailSoon(answer);
    }
  };
  if (!loop_.workers->TryAdd(task)) {
    const auto text = ErrorText(503, "too many requests wait; try again later", *loop_.error_body);
    answer_->Reply(503, "application/json", text, {{"Retry-After", "1"}});
  }
}

// Returns whether the whole answer was sent. Meanwhile reads on, for the next request and to see
// the client leave.
asio::awaitable<bool> Connection::SendAnswer() {
  const Limits& limits = loop_.limits;
  Answer& answer = *answer_;
  Clock::time_point sent_at = Clock::now(), stuck_since = sent_at,
                    end_by = Clock::time_point::max(), look_at = end_by;
  for (bool quiet = true;;) {
    const auto now = Clock::now();
    if (quiet) stuck_since = now;
    while (!broken_ && !answer.Unsent().empty()) {
      const size_t bytes = SendSome(answer.Unsent());
      if (bytes == 0) break;
      answer.Sent(bytes);
      sent_at = stuck_since = now;
    }
    quiet = answer.queued() == 0;
    if (quiet && answer.ended) co_return true;
    // A client that stops sending may still read the rest of an answer, but is not worth making one
    // for.
    if (broken_ || cut_ || answer.broken || (ended_ && !answer.ended)) co_return false;
    if (!answer.ended && answer.queued() > limits.queued_bytes) co_return false;
    if (answer.failed && now >= look_at) answer.Fail();
    look_at = now + kLook;
    auto deadline = look_at;
    if (!quiet) {
      if (answer.ended && end_by == Clock::time_point::max()) {
        end_by = now + limits.stall_time * (1 + answer.queued() / limits.queued_bytes);
      }
      deadline = std::min<Clock::time_point>(stuck_since + limits.stall_time, end_by);
      if (now >= deadline) co_return false;
      WatchRoom();
    } else if (answer.quiet) {
      deadline = sent_at + limits.keep_alive;
      if (now >= deadline) {
        answer.Write(answer.quiet());
        sent_at = now;  // also where there is nothing to write
        continue;
      }
    }
    if (in_.size() >= max_in_ && !ended_) {
      deadline = std::min<Clock::time_point>(deadline, now + seconds(1));
      ended_ = PeerLeft();
      if (ended_) continue;
    }
    WatchInput();
    co_await Wait(deadline);
  }
}

// Sends few bytes; returns whether the socket took all of them.
asio::awaitable<bool> Connection::SendAll(std::string bytes) {
  const auto deadline = Clock::now() + loop_.limits.stall_time;
  for (size_t sent = 0;;) {
    sent += SendSome(std::string_view(bytes).substr(sent));
    if (sent == bytes.size()) co_return true;
    if (broken_ || cut_ || Clock::now() >= deadline) co_return false;
    WatchRoom();
    co_await Wait(deadline);
  }
}

// No coroutine: GCC 12 destroys aggregates twice that are temporaries of a co_await.
asio::awaitable<bool> Connection::Refuse(const Refused& refused, bool head_only) {
  const AnswerForm form{.head_only = head_only, .id = RequestId(std::nullopt)};
  return SendAll(ErrorAnswer(refused.status, refused.message, form, *loop_.error_body));
}

// Closing with bytes unread resets the connection, and the answer may be lost on its way: ends this
// side, and reads and forgets what comes until the client ends its own.
asio::awaitable<void> Connection::Linger() {
  boost::system::error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  discard_ = true;
  in_.clear();
  const auto deadline = Clock::now() + kLinger;
  while (!ended_ && !broken_ && !cut_ && Clock::now() < deadline) {
    WatchInput();
    co_await Wait(deadline);
  }
}

}  // namespace nibble::http
