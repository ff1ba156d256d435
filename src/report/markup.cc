// SPDX-License-Identifier: Apache-2.0
#include "report/markup.h"

#include "base/error.h"

namespace nibble {

std::string EscapeMarkup(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

void Markup::Tag(std::string_view element, Attributes attributes, std::string_view end) {
  text_ += fmt::format("<{}", element);
  for (const auto& [name, value] : attributes) {
    text_ += fmt::format(" {}=\"{}\"", name, EscapeMarkup(value));
  }
  text_ += end;
}

Markup& Markup::Open(std::string_view element, Attributes attributes) {
  Tag(element, attributes, ">");
  open_.emplace_back(element);
  return *this;
}

Markup& Markup::Close() {
  NIBBLE_CHECK(!open_.empty());
  text_ += fmt::format("</{}>", open_.back());
  // Lines of a page that people may read: those of blocks, not of words within them.
  if (open_.back().size() > 1 || open_.back() == "p") text_ += '\n';
  open_.pop_back();
  return *this;
}

Markup& Markup::Text(std::string_view text) {
  text_ += EscapeMarkup(Printable(text));
  return *this;
}

Markup& Markup::Element(std::string_view element, Attributes attributes, std::string_view text) {
  return Open(element, attributes).Text(text).Close();
}

Markup& Markup::Element(std::string_view element, Attributes attributes) {
  Tag(element, attributes, "/>\n");
  return *this;
}

namespace {

bool IsNumber(std::string_view cell) {
  return cell.find_first_not_of("0123456789.,+-e %") == cell.npos;
}

}  // namespace

Markup& Markup::Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<bool> numbers(rows.at(0).size(), true);
  for (size_t i = 1; i < rows.size(); ++i) {
    for (size_t k = 0; k < rows[i].size(); ++k) numbers[k] = numbers[k] && IsNumber(rows[i][k]);
  }
  Open("div", {{"class", "wide"}}).Open("table");
  for (const auto& row : rows) {
    const bool header = &row == &rows[0];
    text_ += header ? "<thead><tr>" : "<tr>";
    for (size_t k = 0; k < row.size(); ++k) {
      // The end tags of rows and cells may be left out, and tables are most of a page's bytes.
      text_ += fmt::format("<{}{}>", header ? "th" : "td", numbers[k] ? " class=n" : "");
      text_ += EscapeMarkup(Printable(row[k]));
    }
    text_ += header ? "</thead>\n<tbody>\n" : "\n";
  }
  text_ += "</tbody>";
  return Close().Close();
}

std::string Markup::Take() {
  NIBBLE_CHECK(open_.empty(), "{} is open", open_.empty() ? "" : open_.back());
  return std::move(text_);
}

}  // namespace nibble
