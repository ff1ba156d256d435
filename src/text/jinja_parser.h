// SPDX-License-Identifier: Apache-2.0
// Turns a template into a tree, with jinja2's precedence. Statements and expressions have one node
// type; the layout of `kids` stands beside each kind (null where marked "?"). Chains of one
// precedence (a + b - c) are one wide node, so that depth bounds recursion.
//
// Refused with a message: include, import, extends, autoescape, and the tags of extensions but loop
// controls.
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
  kSpread,   // value; text = "*" or "**": the arguments that it holds
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
  kBody,       // statements
  kData,       // value = text
  kOutput,     // expression
  kIf,         // condition?, body, condition?, body, ...
  kFor,        // target, sequence, condition?, body, else?; text = "recursive" or ""
  kSet,        // target, value
  kMacro,      // body, parameters (kNamed); text = name, "" of a call block's body
  kCallBlock,  // call, macro
  kWith,       // body, target, value, target, value, ...
  kBlock,      // body; text = "scoped" or ""
  kBreak,
  kContinue,
};

// The names that a macro gets without a parameter for them, if its body speaks of them; as bits.
enum class MacroUse { kCaller = 1, kKwargs = 2, kVarargs = 4 };

struct Node {
  Kind kind;
  int line;
  int depth = 1;
  std::string text;
  Value value;
  std::vector<std::unique_ptr<Node>> kids;
  int uses = 0;  // of a macro: bits of MacroUse
};

// TemplateError names the line.
std::unique_ptr<Node> ParseTemplate(std::string_view source);

}  // namespace nibble::jinja
