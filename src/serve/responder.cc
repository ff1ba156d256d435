// SPDX-License-Identifier: Apache-2.0
#include "serve/responder.h"

namespace nibble::serve {

void Responder::Start(std::vector<GenerationRequest> requests, const char* field) {
  counted_.resize(requests.size());
  for (const GenerationRequest& r : requests) {
    open_ += static_cast<size_t>(r.n);
    usage_.prompt += static_cast<int64_t>(r.prompt.size());
  }
  const auto max = static_cast<size_t>(call_->service.scheduler().options().max_waiting);
  if (open_ > max) BadField(field, "{} answers in one request; at most {} wait", open_, max);
  const auto self = shared_from_this();
  const auto exchange = call_->exchange;
  std::vector<uint64_t> numbers;
  try {
    for (size_t i = 0; i < requests.size(); ++i) numbers.push_back(Submit(i, requests[i], field));
  } catch (const ApiError& error) {
    Cancel(numbers);
    // Prompts of the list that were submitted before may have begun the stream.
    return exchange->Post([self, error] { self->FailWith(error); });
  } catch (const std::exception&) {
    Cancel(numbers);
    throw;
  }
  exchange->Post([self, numbers] {
    self->numbers_ = numbers;
    if (self->over_) self->Cancel(numbers);  // a prompt has failed already
    self->Begin();
  });
  exchange->OnGone([self, numbers] { self->Cancel(numbers); });
}

uint64_t Responder::Submit(size_t index, GenerationRequest& request, const char* field) {
  request.client = call_->client;
  const auto length = static_cast<int64_t>(request.prompt.size());
  const int64_t context = call_->service.scheduler().context();
  if (length > context) {
    // Clients look for these words, those of Anthropic and those of OpenAI, to shorten a chat.
    throw ApiError(400,
                   fmt::format("prompt is too long: {} tokens; this model's maximum context length "
                               "is {} tokens",
                               length, context),
                   field, "context_length_exceeded");
  }
  Service& service = call_->service;
  const auto now = std::chrono::steady_clock::now();
  if (const int64_t wait = service.budget().Wait(call_->key, now); wait > 0) {
    ApiError error(429,
                   fmt::format("this key has used its {} tokens a minute; try again in {} s",
                               service.options().key_tokens, wait),
                   "", "rate_limit_exceeded");
    error.retry_seconds = wait;
    throw error;
  }
  const auto self = shared_from_this();
  const auto sink = [self, index](Delta&& delta) {
    const auto shared = std::make_shared<Delta>(std::move(delta));
    self->call_->exchange->Post([self, index, shared] { self->On(index, *shared); });
  };
  std::optional<uint64_t> number;
  try {
    number = service.scheduler().Submit(std::move(request), sink);
  } catch (const Error& error) {
    throw ApiError(400, error.what(), field);
  }
  if (!number && service.scheduler().stopping()) throw ApiError(503, "the server is stopping");
  if (!number) throw ApiError(429, "too many requests are waiting; try again in a moment");
  service.budget().Charge(call_->key, length, now);
  return *number;
}

void Responder::Cancel(const std::vector<uint64_t>& numbers) const {
  for (const uint64_t number : numbers) call_->service.scheduler().Cancel(number);
}

void Responder::Begin() {
  if (!stream_ || begun_ || over_) return;
  begun_ = true;
  const auto quiet = [weak = weak_from_this()] {
    const auto self = weak.lock();
    return self == nullptr ? "" : self->SignOfLife();
  };
  call_->exchange->BeginStream("text/event-stream", quiet,
                               {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}});
  OnStart();
}

void Responder::On(size_t request, Delta& delta) {
  if (over_) return;
  Begin();
  if (!counted_[request]) usage_.cached += delta.cached_tokens;
  counted_[request] = true;
  const auto written = static_cast<int64_t>(delta.ids.size());
  usage_.written += written;
  call_->service.budget().Charge(call_->key, written, std::chrono::steady_clock::now());
  if (delta.end == End::kError) return FailWith(ApiError(500, delta.problem));
  if (delta.end == End::kCancelled) delta.end = End::kStop;  // StopEarly; else nobody is there
  OnDelta(request, delta);
  if (!delta.end || --open_ > 0) return;
  over_ = true;
  OnEnd();
  if (!stream_) return;
  call_->exchange->End();
  call_->Log(200, usage_);
}

void Responder::Reply(const Json& json) {
  call_->Log(200, usage_);
  call_->exchange->Reply(200, "application/json", Dump(json));
}

void Responder::FailWith(const ApiError& error) {
  if (over_) return;
  if (TellsInStream(error)) Begin();
  over_ = true;
  Cancel(numbers_);
  if (!begun_) return call_->ReplyError(error);
  Write(ErrorEvent(error));
  call_->exchange->End();
  call_->Log(error.status, usage_);
}

std::string Responder::ErrorEvent(const ApiError& error) {
  return "data: " + Dump(ErrorJson(call_->dialect, error.status, error.what())) + "\n\n";
}

}  // namespace nibble::serve
