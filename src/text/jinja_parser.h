// SPDX-License-Identifier: Apache-2.0
// Turns a template into a tree, with jinja2's precedence. One node type for statements and
// expressions; the layout of `kids` stands beside each kind (null where marked "?").
// Chains of one precedence (a + b - c, a and b and c) are one wide node, so that depth is a bound
// on recursion: the parser recurses at most 100 levels and the tree is at most 400 deep.
// Not supported, and refused with a message: include, import, extends, block, call, recursive
// loops, * and ** arguments.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_value.h"

namespace nibble::jinja {

inline constexpr size_t kMaxSourceBytes = 1 << 20;
inline constexpr int kMaxParseDepth = 100;
inline constexpr int kMaxTreeDepth = 400;
inline constexpr size_t kMaxArguments = 64;  // of a call, and parameters of a macro

enum class Kind {
  // expressions
  kConst,    // value
  kName,     // text
  kList,     // items
  kTuple,    // items
  kDict,     // key, value, key, value, ...
  kAttr,     // object; text = name
  kItem,     // object, key
  kSlice,    // object, start?, stop?, step?
  kCall,     // callee, arguments
  kNamed,    // value?; text = name: a keyword argument, or a macro's parameter and its default
  kFilter,   // input, arguments; text = name
  kTest,     // input, arguments; text = name
  kNot,      // operand
  kSign,     // operand; text = "+" or "-"
  kAnd,      // operand, then kRight
  kOr,       // operand, then kRight
  kMath,     // operand, then kRight
  kCompare,  // operand, then kRight
  kRight,    // operand; text = the operator to its left
  kConcat,   // operand, then kRight
  kChoose,   // condition, then, else?
  kCapture,  // body: the text it prints
  // statements
  kBody,    // statements
  kData,    // value = text
  kOutput,  // expression
  kIf,      // condition?, body, condition?, body, ...
  kFor,     // target, sequence, condition?, body, else?
  kSet,     // target, value
  kMacro,   // body, parameters (kNamed); text = name
  kBreak,
  kContinue,
};

struct Node {
  Kind kind;
  int line;
  int depth = 1;
  std::string text;
  Value value;
  std::vector<std::unique_ptr<Node>> kids;
};

// TemplateError names the line.
std::unique_ptr<Node> ParseTemplate(std::string_view source);

}  // namespace nibble::jinja
