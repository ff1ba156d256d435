// SPDX-License-Identifier: Apache-2.0
#include "eval/hellaswag.h"

#include <charconv>

#include "base/utf8.h"
#include "text/jinja_text.h"

namespace nibble {
namespace {

std::string ReplaceAll(const std::string& text, std::string_view from, std::string_view to) {
  std::string out;
  size_t done = 0;
  for (size_t at; (at = FindText(text, from, done)) != std::string::npos;) {
    out.append(text, done, at - done).append(to);
    done = at + from.size();
  }
  return out.append(text, done);
}

// Removes every shortest "[...]" that lies in one line, as the pattern \[.*?\] does.
std::string WithoutBrackets(const std::string& text) {
  std::string out;
  size_t done = 0;
  for (size_t open = 0; (open = text.find('[', open)) != std::string::npos;) {
    const size_t end = text.find_first_of("]\n", open + 1);
    if (end == std::string::npos) break;
    if (text[end] == '\n') {
      open = end;
      continue;
    }
    out.append(text, done, open - done);
    done = open = end + 1;
  }
  return out.append(text, done);
}

std::string Prepare(const std::string& text) {
  const std::string stripped(jinja::Strip(text, jinja::Side::kBoth));
  return ReplaceAll(WithoutBrackets(ReplaceAll(stripped, " [title]", ". ")), "  ", " ");
}

// Some copies of the data have the number as a string.
int64_t Label(const Json& line, const std::string& where) {
  if (!line.contains("label") || !line["label"].is_string()) {
    return JsonGet<int64_t>(line, "label", where);
  }
  const auto text = JsonGet<std::string>(line, "label", where);
  int64_t label = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), label);
  if (error != std::errc() || end != text.data() + text.size()) {
    Fail("{}: label \"{}\" is not a number", where, text);
  }
  return label;
}

}  // namespace

Json PrepareHellaSwag(const Json& line, const std::string& where) {
  const auto text = [&](const char* field) { return JsonGet<std::string>(line, field, where); };
  const std::string b = jinja::ChangeCase(text("ctx_b"), jinja::Case::kCapitalize);
  Json choices = Json::array();
  for (const auto& ending : JsonGet<std::vector<std::string>>(line, "endings", where)) {
    choices.push_back(Prepare(ending));
  }
  return {{"query", Prepare(text("activity_label") + ": " + text("ctx_a") + " " + b)},
          {"choices", choices},
          {"gold", Label(line, where)}};
}

}  // namespace nibble
