// SPDX-License-Identifier: Apache-2.0
// The answer that a connection and the Exchange of its current request share. The Exchange posts to
// the I/O thread; there the answer's bytes gather in out and pending, which the connection sends.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "http/response.h"
#include "http/server.h"

namespace nibble::http {

// A count of bytes shared by all requests, in which one has its part.
class BytesHeld {
 public:
  explicit BytesHeld(std::shared_ptr<std::atomic<size_t>> all) : all_(std::move(all)) {}
  BytesHeld(const BytesHeld&) = delete;
  BytesHeld& operator=(const BytesHeld&) = delete;
  ~BytesHeld() { *all_ -= bytes_; }
  // Sets the bytes of this request; returns the sum of all requests.
  size_t Set(size_t bytes) {
    const size_t others = *all_ += bytes - bytes_;
    bytes_ = bytes;
    return others;
  }

 private:
  std::shared_ptr<std::atomic<size_t>> all_;
  size_t bytes_ = 0;
};

// Tells of a failure on standard error, unless there is no memory even for that.
void NoteFailure(std::string_view of, const char* what) noexcept;

// Calls, and tells of an exception; returns whether there was none.
bool Guarded(const std::string& request_id, const std::function<void()>& call);

struct Answer {
  // Any thread may read these; they do not change.
  Request request;
  AnswerForm form;
  std::shared_ptr<const ErrorBody> error_body;
  std::shared_ptr<BytesHeld> body_bytes;
  // Runs a call on the I/O thread, in order; drops it when the server is no more.
  std::function<void(std::function<void()>)> post;
  std::atomic<bool> gone = false;
  std::atomic<bool> failed = false;  // FailSoon was called

  // Only the I/O thread touches the rest.
  bool begun = false;   // a stream has begun
  bool ended = false;   // all of it is in out
  bool broken = false;  // the client must see that the answer is not whole
  std::string out;      // bytes to send next,
  size_t sent = 0;      // of which this many are gone
  std::string pending;  // of the stream, behind out and not yet framed: one chunk for many Write
  std::function<std::string()> quiet;  // what to write then
  std::vector<std::function<void()>> on_gone;
  std::function<void()> wake;  // tells the connection of a change; none when it has let go

  void Reply(int status, std::string_view content_type, std::string_view body,
             const Headers& extra);
  void BeginStream(std::string_view content_type, std::function<std::string()> signs,
                   const Headers& extra);
  void Write(std::string_view data);
  void End();
  // The answer cannot be given: 500, or a stream that breaks off.
  void Fail();
  // Fail from any thread, behind what it posted. Throws nothing: where memory has run out for the
  // post, the connection finds out by `failed`.
  static void FailSoon(const std::shared_ptr<Answer>& answer);
  // A part of the answer could not be made.
  void Break();
  void Run(const std::function<void()>& task);
  void OnGone(std::function<void()> call);
  // The connection lets go of the answer: Gone if not all of it was sent, Finish if it was.
  void Gone();
  void Finish();
  // The bytes to send now; "" if there are none.
  std::string_view Unsent();
  void Sent(size_t bytes);
  size_t queued() const { return out.size() - sent + pending.size(); }

 private:
  void Gather();
  void Wake() {
    if (wake) wake();
  }
};

}  // namespace nibble::http
