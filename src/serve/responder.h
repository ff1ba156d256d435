// SPDX-License-Identifier: Apache-2.0
// The common part of routes that generate: submits requests, takes the deltas of steps on the
// connection's thread, and answers as a whole or as a stream of events.
#pragma once

#include <vector>

#include "serve/call.h"

namespace nibble::serve {

class Responder : public std::enable_shared_from_this<Responder> {
 public:
  Responder(Call& call, bool stream) : call_(call.shared_from_this()), stream_(stream) {}
  virtual ~Responder() = default;

  // Submits the requests and returns. `field`: the body's field that holds the prompts.
  void Start(std::vector<GenerationRequest> requests, const char* field);

 protected:
  // Called on the connection's thread, one after another.
  virtual void OnStart() {}
  virtual void OnDelta(size_t request, Delta& delta) = 0;
  // All answers have ended; writes what is left to say. A stream ends behind it.
  virtual void OnEnd() = 0;
  // Sent in a stream that is quiet while a long prompt is read.
  virtual std::string SignOfLife() { return ": keep-alive\n\n"; }
  virtual std::string ErrorEvent(const ApiError& error);
  // Returns whether an error that comes before the stream has begun is told in the stream, not by
  // its status.
  virtual bool TellsInStream(const ApiError&) const { return false; }

  void Write(std::string data) { call_->exchange->Write(std::move(data)); }
  void WriteEvent(const Json& json) { Write("data: " + Dump(json) + "\n\n"); }
  void Reply(const Json& json);
  // Ends the answers where they are, once they have all that was asked for.
  void StopEarly() { Cancel(numbers_); }

  const std::shared_ptr<Call> call_;
  const bool stream_;
  Usage usage_;

 private:
  uint64_t Submit(size_t index, GenerationRequest& request, const char* field);
  void Cancel(const std::vector<uint64_t>& numbers) const;
  void Begin();  // the stream, if there is one
  void On(size_t request, Delta& delta);
  void FailWith(const ApiError& error);

  std::vector<uint64_t> numbers_;
  std::vector<bool> counted_;  // whose cached tokens are in the usage
  size_t open_ = 0;            // answers that have not ended
  bool begun_ = false, over_ = false;
};

}  // namespace nibble::serve
