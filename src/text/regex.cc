// SPDX-License-Identifier: Apache-2.0
#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "base/utf8.h"

namespace nibble {
namespace {

constexpr size_t kMaxPatternBytes = 1 << 12;
// Bounds and cost of the first attempt, which is enough for the words of ordinary text.
constexpr size_t kNearBytes = 64;
constexpr uint32_t kNearMatchLimit = 32;
constexpr uint64_t kNearSteps = 16;
constexpr uint64_t kTriedSteps = 1;  // the cost of a place where no match starts
constexpr size_t kScannedBytesPerStep = 4;
constexpr uint32_t kHeapLimitKib = 128 << 10;

// Escapes of letters and digits with one meaning in Oniguruma (Ruby syntax) and PCRE2 with UCP.
constexpr std::string_view kSharedEscapes = "sSdDpPnrtfxAz";

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

// The length of the escape at the start of `rest`; the braces of \p{L} and \x{41} are no
// quantifier.
size_t EscapeLength(std::string_view rest) {
  const bool named = rest.size() > 2 && rest[2] == '{' && std::strchr("pPx", rest[1]) != nullptr;
  return named ? std::min(rest.find('}'), rest.size() - 1) + 1 : 2;
}

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
      i += EscapeLength(rest) - 1;
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

// The memory that one thread needs for matching, made once.
struct MatchState {
  MatchState()
      : data(pcre2_match_data_create(1, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(64 << 10, 4 << 20, nullptr)) {
    if (data == nullptr || context == nullptr || stack == nullptr) throw std::bad_alloc();
    pcre2_jit_stack_assign(context, nullptr, stack);
    pcre2_set_heap_limit(context, kHeapLimitKib);
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

// The data with which the callback counts the work of one match.
struct Count {
  Work* work;
  uint64_t steps_per_item;
  size_t last;  // the place in the text of the call before
};

// Charges one item of the pattern, and the text that the item before it ran over.
int CountItem(pcre2_callout_block* item, void* data) {
  auto* count = static_cast<Count*>(data);
  const size_t at = item->current_position;
  const size_t scanned = at > count->last ? at - count->last : 0;
  count->last = at;
  const bool enough = count->work->Take(count->steps_per_item + scanned / kScannedBytesPerStep);
  return enough ? 0 : PCRE2_ERROR_CALLOUT;
}

// The callback is not called for each of the characters that {n} asks for: a step per so many of
// them is added to every item.
uint64_t StepsPerItem(std::string_view pattern) {
  uint64_t longest = 0;
  for (size_t at = 0; at < pattern.size();) {
    const char c = pattern[at];
    at += c == '\\' ? EscapeLength(pattern.substr(at)) : 1;
    uint64_t times = 0;
    while ((c == '{' || c == ',') && at < pattern.size() && IsDigit(pattern[at])) {
      times = std::min<uint64_t>(10 * times + static_cast<uint64_t>(pattern[at++] - '0'), 1 << 16);
    }
    longest = std::max(longest, times);
  }
  return 1 + longest / kScannedBytesPerStep;
}

std::shared_ptr<const void> Compile(std::string_view pattern, uint32_t options, uint32_t jit_modes,
                                    const std::string& where) {
  std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t offset = 0;
  // Oniguruma's ^ and $ match at line ends, hence MULTILINE.
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | options,
                    &error, &offset, context.get());
  if (code == nullptr) {
    Fail("{}: bad regular expression at byte {}: {}", where, offset, ErrorText(error));
  }
  pcre2_jit_compile(code, jit_modes);  // without JIT the interpreter gives the same matches
  return {code,
          [](const void* c) { pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(c))); }};
}

const MatchState& ThreadState() {
  thread_local const MatchState state;
  return state;
}

int Match(const std::shared_ptr<const void>& code, std::string_view text, size_t from,
          uint32_t options) {
  const MatchState& state = ThreadState();
  const auto* pattern = static_cast<const pcre2_code*>(code.get());
  const auto* bytes = reinterpret_cast<PCRE2_SPTR>(text.data());
  // This spares what pcre2_match does before it comes to the same code.
  if ((options & PCRE2_NO_JIT) == 0) {
    const int rc =
        pcre2_jit_match(pattern, bytes, text.size(), from, options, state.data, state.context);
    if (rc != PCRE2_ERROR_JIT_BADOPTION) return rc;  // there is no JIT
  }
  return pcre2_match(pattern, bytes, text.size(), from, PCRE2_NO_UTF_CHECK | options, state.data,
                     state.context);
}

}  // namespace

Regex::Regex(std::string_view pattern, Syntax syntax, std::string where)
    : where_(std::move(where)) {
  if (pattern.empty()) Fail("{}: the pattern is empty", where_);
  if (pattern.size() > kMaxPatternBytes) {
    Fail("{}: the pattern has {} bytes, at most {} are accepted", where_, pattern.size(),
         kMaxPatternBytes);
  }
  if (syntax == Syntax::kLiteral) {
    literal_ = pattern;
    return;
  }
  if (syntax == Syntax::kPattern) CheckDialect(pattern, where_);
  near_code_ = Compile(pattern, 0, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD, where_);
  const auto* code = static_cast<const pcre2_code*>(near_code_.get());
  uint32_t first_type = 0, first = 0;
  const uint8_t* starts = nullptr;  // bits of the bytes a match starts with, unless it may be empty
  pcre2_pattern_info(code, PCRE2_INFO_FIRSTBITMAP, &starts);
  // PCRE2 does not tell whether the one byte that a match starts with stands for both cases, so it
  // is used only where the pattern sets no options.
  if (pattern.find("(?") == pattern.npos) {
    pcre2_pattern_info(code, PCRE2_INFO_FIRSTCODETYPE, &first_type);
  }
  pcre2_pattern_info(code, PCRE2_INFO_FIRSTCODEUNIT, &first);
  for (size_t byte = 0; byte < starts_.size(); ++byte) {
    starts_[byte] = starts != nullptr ? (starts[byte / 8] >> byte % 8 & 1) != 0
                                      : first_type != 1 || byte == first;
  }
  all_code_ = Compile(pattern, PCRE2_AUTO_CALLOUT, PCRE2_JIT_COMPLETE, where_);
  steps_per_item_ = StepsPerItem(pattern);
}

int Regex::FindCounted(std::string_view text, size_t from, Work* work) const {
  const MatchState& state = ThreadState();
  Count count{.work = work, .steps_per_item = steps_per_item_, .last = from};
  pcre2_set_match_limit(state.context, UINT32_MAX);
  pcre2_set_callout(state.context, CountItem, &count);
  int rc = Match(all_code_, text, from, 0);
  // The interpreter keeps its backtracking points on the heap.
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT) rc = Match(all_code_, text, from, PCRE2_NO_JIT);
  pcre2_set_callout(state.context, nullptr, nullptr);
  return rc;
}

// Looks at a few bytes from `from` on. A match that would have to look at the text behind them is
// undecided.
Regex::Near Regex::FindNear(std::string_view text, size_t* from, Work* work) const {
  const MatchState& state = ThreadState();
  size_t near = std::min(text.size(), *from + kNearBytes);
  while (near < text.size() && IsUtf8Continuation(text[near])) ++near;
  const bool is_end = near == text.size();
  pcre2_set_match_limit(state.context, kNearMatchLimit);
  const int rc = Match(near_code_, text.substr(0, near), *from, is_end ? 0 : PCRE2_PARTIAL_HARD);
  size_t tried = 0;  // places where no match starts
  if (rc >= 0 || rc == PCRE2_ERROR_PARTIAL) {
    tried = pcre2_get_ovector_pointer(state.data)[0] - *from;
  } else if (rc == PCRE2_ERROR_NOMATCH) {
    tried = near - *from;
  }
  if (!work->Take(tried * kTriedSteps + kNearSteps)) work->Exceeded(where_);
  *from += tried;
  if (rc >= 0) return Near::kFound;
  if (rc != PCRE2_ERROR_NOMATCH) return Near::kUndecided;
  return is_end ? Near::kNone : Near::kBehind;
}

bool Regex::Find(std::string_view text, size_t from, Work* work, size_t* begin, size_t* end) const {
  if (!literal_.empty()) {
    if (!work->Take(kNearSteps)) work->Exceeded(where_);
    *begin = FindText(text, literal_, from);
    *end = *begin + literal_.size();
    return *begin != text.npos;
  }
  Near near = Near::kBehind;
  while (near == Near::kBehind) {
    while (from < text.size() && !starts_[static_cast<unsigned char>(text[from])]) ++from;
    near = FindNear(text, &from, work);
  }
  if (near == Near::kNone) return false;
  const int rc = near == Near::kFound ? 1 : FindCounted(text, from, work);
  if (rc == PCRE2_ERROR_NOMATCH) return false;
  if (rc == PCRE2_ERROR_CALLOUT) work->Exceeded(where_);
  if (rc < 0) Fail("{}: matching a text of {} bytes: {}", where_, text.size(), ErrorText(rc));
  const size_t* range = pcre2_get_ovector_pointer(ThreadState().data);
  *begin = range[0];
  *end = range[1];
  return true;
}

std::string_view Regex::Prepare(std::string_view text, std::string* replaced) const {
  if (!literal_.empty() || text.find("\u180E") == text.npos) return text;
  *replaced = WithoutMongolianSeparator(text);
  return *replaced;
}

bool Regex::Matches(std::string_view text) const {
  Work work(where_, text.size());
  size_t begin = 0, end = 0;
  return Find(text, 0, &work, &begin, &end);
}

std::string Regex::ReplaceAll(std::string_view text, std::string_view content, Work* work) const {
  std::string result;
  size_t done = 0;
  const auto add = [&](std::string_view piece) {
    work->ChargeWrite(piece.size());
    result.append(piece);
  };
  ForEachMatch(text, work, [&](size_t begin, size_t end) {
    add(text.substr(done, begin - done));
    add(content);
    done = end;
  });
  add(text.substr(done));
  return result;
}

}  // namespace nibble
