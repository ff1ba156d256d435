// SPDX-License-Identifier: Apache-2.0
// HTML and SVG, written so that no text from outside can become markup.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble {

// The text between tags or in an attribute's quotes.
std::string EscapeMarkup(std::string_view text);

// Elements one after the other; those that are open close in turn. Texts may come from outside and
// are made Printable; names of elements and attributes are the program's own.
class Markup {
 public:
  using Attributes = std::initializer_list<std::pair<std::string_view, std::string>>;

  Markup& Open(std::string_view element, Attributes attributes = {});
  Markup& Close();  // the element opened last
  Markup& Text(std::string_view text);
  // An element with a text, or one of SVG that has none.
  Markup& Element(std::string_view element, Attributes attributes, std::string_view text);
  Markup& Element(std::string_view element, Attributes attributes);
  // Rows of cells, the first of them the header; columns of numbers stand to the right.
  Markup& Table(const std::vector<std::vector<std::string>>& rows);

  std::string Take();  // everything must be closed

 private:
  void Tag(std::string_view element, Attributes attributes, std::string_view end);

  std::string text_;
  std::vector<std::string> open_;
};

}  // namespace nibble
