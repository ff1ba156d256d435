// SPDX-License-Identifier: Apache-2.0
#include "http/response.h"

#include <algorithm>
#include <exception>

#include "base/json.h"
#include "http/framing.h"

namespace nibble::http {
namespace {

std::string_view Reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Status";
  }
}

bool IsName(std::string_view name) {
  const auto is_token = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  };
  return !name.empty() && std::ranges::all_of(name, is_token);
}

// A value may repeat what a client sent: what would end its line is left out.
void AddField(std::string_view name, std::string_view value, std::string* head) {
  const auto is_control = [](char c) { return (c >= 0 && c < ' ' && c != '\t') || c == 0x7F; };
  std::string clean(value);
  std::erase_if(clean, is_control);
  *head += fmt::format("{}: {}\r\n", name, clean);
}

}  // namespace

std::string AnswerHead(int status, std::string_view content_type, std::optional<size_t> body_bytes,
                       const AnswerForm& form, const Headers& extra) {
  constexpr std::string_view kOwn[] = {"connection",   "content-length",    "content-type",
                                       "x-request-id", "transfer-encoding", "trailer"};
  std::string head = fmt::format("HTTP/1.1 {} {}\r\n", status, Reason(status));
  AddField("X-Request-Id", form.id, &head);
  const bool no_body = status == 204 || status == 304;
  if (!no_body) AddField("Content-Type", content_type, &head);
  if (body_bytes && !no_body) AddField("Content-Length", fmt::to_string(*body_bytes), &head);
  if (!body_bytes && !form.old) AddField("Transfer-Encoding", "chunked", &head);
  if (!form.keep_alive) {
    AddField("Connection", "close", &head);
  } else if (form.old) {
    AddField("Connection", "keep-alive", &head);
  }
  for (const auto& [name, value] : extra) {
    const bool own = std::ranges::find(kOwn, LowerCase(name)) != std::end(kOwn);
    if (IsName(name) && !own) AddField(name, value, &head);
  }
  return head + "\r\n";
}

std::string ErrorText(int status, std::string_view message, const ErrorBody& body) {
  if (body) {
    try {
      return body(status, message);
    } catch (const std::exception&) {  // the default says as much
    }
  }
  const char* type = status == 503   ? "overloaded_error"
                     : status >= 500 ? "server_error"
                                     : "invalid_request_error";
  // No Json object: the destructor of one takes memory, which may be what has run out.
  return fmt::format(R"({{"error":{{"message":{},"type":"{}","code":{}}}}})",
                     Json(std::string(message)).dump(), type, status);
}

std::string ErrorAnswer(int status, std::string_view message, const AnswerForm& form,
                        const ErrorBody& body) {
  const std::string text = ErrorText(status, message, body);
  const Headers extra = status == 503 ? Headers{{"Retry-After", "1"}} : Headers{};
  std::string answer = AnswerHead(status, "application/json", text.size(), form, extra);
  return form.head_only ? answer : answer + text;
}

std::string Chunk(std::string_view data) {
  return fmt::format("{:x}\r\n{}\r\n", data.size(), data);
}

}  // namespace nibble::http
