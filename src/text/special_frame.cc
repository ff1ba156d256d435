// SPDX-License-Identifier: Apache-2.0
#include "text/special_frame.h"

namespace nibble {
namespace {

using TokenExists = std::function<bool(int64_t)>;

constexpr size_t kMaxFrameTokens = 256;  // and kinds of them: each is looked for among all

void CheckCount(const JsonNode& node, size_t count) {
  if (count > kMaxFrameTokens) {
    Fail("{}: more than {} special tokens around a text", node.where(), kMaxFrameTokens);
  }
}

int32_t CheckedId(const JsonNode& node, const TokenExists& token_exists) {
  const auto id = node.As<int64_t>();
  if (!token_exists(id)) Fail("{}: there is no token with id {}", node.where(), id);
  return static_cast<int32_t>(id);
}

// "single": special tokens around one {"Sequence": {"id": "A"}}.
SpecialFrame TemplateFrame(const JsonNode& node, const TokenExists& token_exists) {
  node.AllowKeys({"type", "single", "pair", "special_tokens"});
  SpecialFrame frame;
  bool seen_text = false;
  const JsonNode definitions = node.Get("special_tokens");
  CheckCount(definitions, definitions.As<simdjson::dom::object>().size());
  CheckCount(node.Get("single"), node.Get<simdjson::dom::array>("single").size());
  node.Get("single").ForEach([&](const JsonNode& item) {
    item.AllowKeys({"SpecialToken", "Sequence"});
    if (const auto sequence = item.Find("Sequence")) {
      if (sequence->Get<std::string_view>("id") != "A" || seen_text) {
        Fail("{}: a template for one text must name it (\"A\") once", item.where());
      }
      seen_text = true;
      return;
    }
    const auto name = item.Get("SpecialToken").Get<std::string_view>("id");
    const auto definition = definitions.Find(name);
    if (!definition) {
      Fail("{}: special_tokens does not define \"{}\"", item.where(), name);
    }
    definition->Get("ids").ForEach([&](const JsonNode& id) {
      (seen_text ? frame.after : frame.before).push_back(CheckedId(id, token_exists));
      CheckCount(item, frame.before.size() + frame.after.size());
    });
  });
  if (!seen_text) Fail("{}: the template leaves out the text", node.where());
  return frame;
}

// ["</s>", 2] of BertProcessing and RobertaProcessing.
int32_t NamedTokenId(const JsonNode& node, const TokenExists& token_exists) {
  std::optional<int32_t> id;
  size_t index = 0;
  node.ForEach([&](const JsonNode& item) {
    if (index++ == 1) id = CheckedId(item, token_exists);
  });
  if (index != 2) Fail("{} must be [token, id]", node.where());
  return *id;
}

}  // namespace

SpecialFrame SpecialFrame::FromJson(const std::optional<JsonNode>& node,
                                    const TokenExists& token_exists) {
  std::optional<SpecialFrame> frame;
  if (!node) return {};
  node->ForEachComponent("processors", [&](const JsonNode& component, std::string_view type) {
    if (type == "ByteLevel") {  // moves offsets only
      component.AllowKeys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
      return;
    }
    if (frame) component.Unsupported("a second template");
    if (type == "TemplateProcessing") {
      frame = TemplateFrame(component, token_exists);
    } else if (type == "RobertaProcessing" || type == "BertProcessing") {
      component.AllowKeys({"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
      frame = {.before = {NamedTokenId(component.Get("cls"), token_exists)},
               .after = {NamedTokenId(component.Get("sep"), token_exists)}};
    } else {
      component.Unsupported(fmt::format("post_processor {}", type));
    }
  });
  return frame.value_or(SpecialFrame{});
}

}  // namespace nibble
