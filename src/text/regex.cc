// SPDX-License-Identifier: Apache-2.0
#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <new>
#include <utility>

#include "text/utf8.h"

namespace nibble {
namespace {

constexpr uint32_t kMatchLimitBase = 1'000'000;
constexpr size_t kMaxPatternBytes = 1 << 16;

// Escapes of letters and digits with one meaning in Oniguruma (Ruby syntax) and PCRE2 with UCP.
constexpr std::string_view kSharedEscapes = "sSdDpPnrtfxAz";

// Refuses what compiles in both engines and matches differently.
void CheckDialect(std::string_view pattern, const std::string& where) {
  const auto refuse = [&](std::string_view what) {
    Fail("{}: the regular expression uses {}, which is not supported", where, what);
  };
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const std::string_view rest = pattern.substr(i);
    if (rest[0] == '\\' && rest.size() > 1) {
      const auto c = static_cast<unsigned char>(rest[1]);
      if (c < 0x80 && std::isalnum(c) != 0 && kSharedEscapes.find(rest[1]) == rest.npos) {
        refuse(fmt::format("\\{}", rest[1]));
      }
      ++i;
      // The braces of \p{L} and \x{41} are no quantifier.
      const bool named =
          rest.size() > 2 && rest[2] == '{' && std::strchr("pPx", rest[1]) != nullptr;
      if (named) i += std::min(rest.find('}'), rest.size()) - 1;
    } else if (in_class) {
      if (rest.starts_with("&&")) refuse("an intersection of classes (&&)");
      if (rest[0] == '[') refuse("a class inside a class");
      if (rest[0] == ']') in_class = false;
    } else {
      if (rest.starts_with("(*")) refuse("(*");
      if (rest[0] == '{') {
        const size_t close = rest.find('}');
        if (close != rest.npos && rest.substr(close).starts_with("}+")) {
          refuse("{n,m}+ (possessive in one engine, repeated in the other)");
        }
      }
      if (rest.starts_with("(?m") || rest.starts_with("(?-m")) refuse("the option (?m)");
      if (rest[0] == '[') {
        in_class = true;
        if (rest.starts_with("[^")) ++i;
        if (pattern.substr(i).starts_with("[]") || pattern.substr(i).starts_with("^]")) {
          refuse("an unescaped ] at the start of a class");
        }
      }
    }
  }
}

std::string ErrorText(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

// What one thread needs for matching, made once.
struct MatchState {
  MatchState()
      : data(pcre2_match_data_create(1, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(64 << 10, 4 << 20, nullptr)) {
    if (data == nullptr || context == nullptr || stack == nullptr) throw std::bad_alloc();
    pcre2_jit_stack_assign(context, nullptr, stack);
    pcre2_set_heap_limit(context, 512 << 10);  // KiB
  }
  ~MatchState() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  MatchState(const MatchState&) = delete;
  MatchState& operator=(const MatchState&) = delete;

  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};

// U+180E is white space for PCRE2's \s and is not in Unicode (nor for Oniguruma). Another format
// character of three bytes takes its place while matching.
std::string WithoutMongolianSeparator(std::string_view text) {
  std::string result(text);
  for (size_t at = 0; (at = result.find("\u180E", at)) != result.npos;) {
    result.replace(at, 3, "\u200B");
  }
  return result;
}

}  // namespace

Regex::Regex(std::string_view pattern, Syntax syntax, std::string where)
    : literal_(syntax == Syntax::kLiteral), where_(std::move(where)) {
  if (pattern.empty()) Fail("{}: the pattern is empty", where_);
  if (pattern.size() > kMaxPatternBytes) {
    Fail("{}: the pattern has {} bytes, at most {} are accepted", where_, pattern.size(),
         kMaxPatternBytes);
  }
  if (syntax == Syntax::kPattern) CheckDialect(pattern, where_);
  std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  // Oniguruma's ^ and $ match at line ends, hence MULTILINE.
  const uint32_t options =
      PCRE2_UTF |
      (literal_ ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
  int error = 0;
  size_t offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   options, &error, &offset, context.get());
  if (code == nullptr) {
    Fail("{}: bad regular expression at byte {}: {}", where_, offset, ErrorText(error));
  }
  pcre2_jit_compile(code,
                    PCRE2_JIT_COMPLETE);  // without JIT the interpreter gives the same matches
  code_ = std::shared_ptr<const void>(
      code, [](const void* c) { pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(c))); });
}

bool Regex::Find(std::string_view text, size_t from, size_t* begin, size_t* end) const {
  thread_local const MatchState state;
  // Backtracking over one long run of spaces is legal and grows with the run.
  const uint64_t limit = kMatchLimitBase + uint64_t{64} * text.size();
  pcre2_set_match_limit(state.context, static_cast<uint32_t>(std::min<uint64_t>(limit, ~0u)));
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const auto run = [&](uint32_t options) {
    return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                       PCRE2_NO_UTF_CHECK | options, state.data, state.context);
  };
  int rc = run(0);
  // The interpreter keeps its backtracking points on the heap.
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT) rc = run(PCRE2_NO_JIT);
  if (rc == PCRE2_ERROR_NOMATCH) return false;
  if (rc < 0) Fail("{}: matching a text of {} bytes: {}", where_, text.size(), ErrorText(rc));
  const size_t* range = pcre2_get_ovector_pointer(state.data);
  *begin = range[0];
  *end = range[1];
  return true;
}

void Regex::ForEachMatch(std::string_view text,
                         const std::function<void(size_t, size_t)>& match) const {
  std::string replaced;
  if (!literal_ && text.find("\u180E") != text.npos) {
    replaced = WithoutMongolianSeparator(text);
    text = replaced;
  }
  size_t from = 0, begin = 0, end = 0;
  while (from <= text.size() && Find(text, from, &begin, &end)) {
    match(begin, end);
    from = end;
    if (begin == end) {  // step over one character
      do ++from;
      while (from < text.size() && IsUtf8Continuation(text[from]));
    }
  }
}

bool Regex::Matches(std::string_view text) const {
  size_t begin = 0, end = 0;
  return Find(text, 0, &begin, &end);
}

std::string Regex::ReplaceAll(std::string_view text, std::string_view content) const {
  std::string result;
  size_t done = 0;
  ForEachMatch(text, [&](size_t begin, size_t end) {
    result.append(text, done, begin - done).append(content);
    done = end;
  });
  return result.append(text, done);
}

}  // namespace nibble
