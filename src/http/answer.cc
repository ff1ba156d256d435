// SPDX-License-Identifier: Apache-2.0
#include "http/answer.h"

#include <exception>
#include <new>
#include <utility>

#include "base/error.h"

namespace nibble::http {

void NoteFailure(std::string_view of, const char* what) noexcept {
  try {
    Note("nibble: {}: {}\n", of, Printable(what));
  } catch (const std::exception&) {  // nothing to do
  }
}

bool Guarded(const std::string& request_id, const std::function<void()>& call) {
  try {
    call();
    return true;
  } catch (const std::exception& error) {
    NoteFailure(request_id, error.what());
  } catch (...) {
    NoteFailure(request_id, "an exception that is no std::exception");
  }
  return false;
}

void Answer::Reply(int status, std::string_view content_type, std::string_view body,
                   const Headers& extra) {
  if (gone || ended || begun) return;
  if (status < 200 || status > 599) status = 500;
  out = AnswerHead(status, content_type, body.size(), form, extra);
  if (!form.head_only && status != 204 && status != 304) out += body;
  ended = true;
  Wake();
}

void Answer::BeginStream(std::string_view content_type, std::function<std::string()> signs,
                         const Headers& extra) {
  if (gone || ended || begun) return;
  begun = true;
  if (form.old) form.keep_alive = false;  // its end is the connection's
  out = AnswerHead(200, content_type, std::nullopt, form, extra);
  quiet = std::move(signs);
  Wake();
}

void Answer::Write(std::string_view data) {
  if (gone || ended || !begun || form.head_only) return;
  pending += data;
  Wake();
}

void Answer::End() {
  if (gone || ended || !begun) return;
  Gather();
  if (!form.old && !form.head_only) out += kLastChunk;
  ended = true;
  Wake();
}

// Gives pending bytes their frame and moves them to out.
void Answer::Gather() {
  if (pending.empty()) return;
  out += form.old ? pending : Chunk(pending);
  pending.clear();
}

std::string_view Answer::Unsent() {
  if (sent == out.size()) {
    out.clear();
    sent = 0;
    Gather();
  }
  return std::string_view(out).substr(sent);
}

void Answer::Sent(size_t bytes) {
  sent += bytes;
}

void Answer::Fail() {
  if (gone || ended || broken) return;
  if (begun) return Break();
  Reply(500, "application/json", ErrorText(500, "internal error", *error_body), {});
}

void Answer::FailSoon(const std::shared_ptr<Answer>& answer) {
  answer->failed = true;
  try {
    answer->post([answer] { answer->Fail(); });
  } catch (const std::bad_alloc&) {  // SendAnswer looks at it
  }
}

void Answer::Break() {
  broken = true;
  Wake();
}

void Answer::Run(const std::function<void()>& task) {
  if (!gone && !Guarded(request.id, task)) Fail();
}

void Answer::OnGone(std::function<void()> call) {
  if (ended) return;
  on_gone.push_back(std::move(call));
  if (gone) Gone();
}

void Answer::Gone() {
  wake = nullptr;
  if (ended) return Finish();
  gone = true;
  for (const auto& call : std::exchange(on_gone, {})) Guarded(request.id, call);
}

void Answer::Finish() {
  wake = nullptr;
  on_gone.clear();
}

Exchange::Exchange(std::shared_ptr<Answer> answer) : answer_(std::move(answer)) {}

Exchange::~Exchange() {
  Answer::FailSoon(answer_);
}

const Request& Exchange::request() const {
  return answer_->request;
}

void Exchange::Reply(int status, std::string_view content_type, std::string body, Headers extra) {
  answer_->post([answer = answer_, status, type = std::string(content_type), body = std::move(body),
                 extra = std::move(extra)] { answer->Reply(status, type, body, extra); });
}

void Exchange::BeginStream(std::string_view content_type, std::function<std::string()> quiet,
                           Headers extra) {
  answer_->post([answer = answer_, type = std::string(content_type), quiet = std::move(quiet),
                 extra = std::move(extra)] { answer->BeginStream(type, quiet, extra); });
}

void Exchange::Write(std::string data) {
  answer_->post([answer = answer_, data = std::move(data)] { answer->Write(data); });
}

void Exchange::End() {
  answer_->post([answer = answer_] { answer->End(); });
}

void Exchange::Post(std::function<void()> task) {
  answer_->post([answer = answer_, task = std::move(task)] { answer->Run(task); });
}

void Exchange::OnGone(std::function<void()> call) {
  answer_->post([answer = answer_, call = std::move(call)] { answer->OnGone(call); });
}

bool Exchange::gone() const {
  return answer_->gone;
}

}  // namespace nibble::http
