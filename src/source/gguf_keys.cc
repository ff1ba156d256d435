// SPDX-License-Identifier: Apache-2.0
// Keys of a GGUF file (ggml's docs/gguf.md, and others that converters write): those that
// gguf_documents.cc, gguf_tokenizer.cc and pooling_document.cc read, and what the others mean.
#include "source/gguf_source.h"

namespace nibble {
namespace {

constexpr std::string_view kDocumentsRead =
    "general.architecture general.sampling.temp general.sampling.top_k general.sampling.top_p "
    "general.sampling.min_p general.sampling.penalty_repeat tokenizer.ggml.model "
    "tokenizer.ggml.pre tokenizer.ggml.tokens tokenizer.ggml.token_type "
    "tokenizer.ggml.scores tokenizer.ggml.merges tokenizer.ggml.bos_token_id "
    "tokenizer.ggml.eos_token_id tokenizer.ggml.eot_token_id tokenizer.ggml.eom_token_id "
    "tokenizer.ggml.eos_token_ids tokenizer.ggml.unknown_token_id "
    "tokenizer.ggml.padding_token_id tokenizer.ggml.add_bos_token tokenizer.ggml.add_eos_token "
    "tokenizer.ggml.add_space_prefix tokenizer.chat_template tokenizer.chat_template.tool_use";

constexpr KeyRule kDocuments[] = {
    {"general.sampling.xtc_probability general.sampling.mirostat", Effect::kAnswers, "0"},
    {"general.sampling.xtc_threshold general.sampling.mirostat_* general.sampling.penalty_last_n"},
    {"general.sampling.*", Effect::kAnswers},
    // Keys that say who made the file, from which model.
    {"general.* quantize.* split.* imatrix.* mradermacher.*"},
    // Tokens that nothing here asks for, templates for other uses, and keys of kinds of tokenizers
    // that are not read.
    {"tokenizer.ggml.seperator_token_id tokenizer.ggml.mask_token_id "
     "tokenizer.ggml.cls_token_id tokenizer.ggml.fim_* tokenizer.ggml.prefix_token_id "
     "tokenizer.ggml.suffix_token_id tokenizer.ggml.middle_token_id "
     "tokenizer.ggml.image_token_id tokenizer.ggml.token_type_count "
     "tokenizer.ggml.remove_extra_whitespaces tokenizer.ggml.precompiled_charsmap "
     "tokenizer.chat_template.* tokenizer.chat_templates tokenizer.huggingface.json "
     "tokenizer.rwkv.world"},
    {"tokenizer.ggml.add_sep_token tokenizer.ggml.normalizer.lowercase", Effect::kAnswers, "false"},
    {"tokenizer.ggml.suppress_tokens", Effect::kAnswers},
};

// Keys behind "ARCHITECTURE." that are read of every architecture.
constexpr std::string_view kNetworkRead =
    "block_count context_length embedding_length feed_forward_length expert_count pooling_type "
    "attention.head_count attention.head_count_kv attention.key_length "
    "attention.layer_norm_rms_epsilon rope.freq_base rope.dimension_count rope.scale_linear "
    "rope.scaling.type rope.scaling.factor rope.scaling.original_context_length "
    "rope.scaling.attn_factor";

// Keys that are read of some architectures alone.
constexpr std::pair<std::string_view, std::string_view> kReadBy[] = {
    {"llama", "expert_used_count"},
    {"qwen3moe", "expert_used_count expert_feed_forward_length"},
    {"gpt-oss",
     "expert_used_count expert_feed_forward_length attention.sliding_window "
     "attention.sliding_window_pattern"},
    {"gemma2",
     "attention.sliding_window attention.sliding_window_pattern attn_logit_softcapping "
     "final_logit_softcapping"},
    {"gemma3",
     "attention.sliding_window attention.sliding_window_pattern rope.freq_base_swa "
     "rope.global.freq_base rope.local.freq_base final_logit_softcapping"},
    {"phi3", "attention.sliding_window"},
    {"granite", "embedding_scale residual_scale attention.scale logit_scale"},
};

constexpr KeyRule kNetwork[] = {
    // Keys whose values the shapes of tensors tell, and keys about images.
    {"vocab_size attention.value_length attention.layer_norm_epsilon tensor_data_layout "
     "rope.dimension_sections rope.scaling.finetuned mm.tokens_per_image "
     "embedding_length_out vision.*"},
    {"attention.causal", Effect::kRefused, "true"},
    {"use_parallel_residual", Effect::kRefused, "false"},
    {"expert_weights_norm", Effect::kRefused, "true"},
    // The softmax may be over all experts, with the chosen ones normalized, or over the chosen
    // ones: both give the same weights.
    {"expert_gating_func", Effect::kRefused, "0 1 3"},
    {"logit_scale residual_scale embedding_scale attention.output_scale expert_weights_scale "
     "expert_group_count expert_group_used_count interleave_moe_layer_step moe_every_n_layers",
     Effect::kRefused, "0 1"},
    {"attention.scale attention.clamp_kqv attention.max_alibi_bias attention.temperature_scale "
     "attention.temperature_length attention.shared_kv_layers attention.q_lora_rank "
     "attention.kv_lora_rank attn_logit_softcapping final_logit_softcapping "
     "router_logit_softcapping expert_shared_count expert_shared_feed_forward_length "
     "leading_dense_block_count nextn_predict_layers n_deepstack_layers full_attention_interval "
     "embedding_length_per_layer_input activation_sparsity_scale",
     Effect::kRefused, "0"},
    {"attention.sliding_window_pattern attention.key_length_swa attention.value_length_swa "
     "rope.freq_base_swa rope.dimension_count_swa swiglu_clamp_exp ssm.* altup.*",
     Effect::kRefused},
    // Mistral's files may have a window; llama.cpp attends to all tokens there, as we do.
    {"attention.sliding_window", Effect::kAnswers, "0"},
};

// A rule of granite alone, where the key says whether RoPE turns heads at all.
constexpr KeyRule kGranite[] = {{"rope.scaling.finetuned", Effect::kRefused, "true"}};

bool IsRead(std::string_view architecture, std::string_view key) {
  if (HasWord(kNetworkRead, key) || key.starts_with("rope.scaling.yarn_")) return true;
  return std::ranges::any_of(kReadBy, [&](const auto& row) {
    return row.first == architecture && HasWord(row.second, key);
  });
}

}  // namespace

void FindUnreadGgufKeys(const std::vector<GgufFile>& files, UnreadKeys& found) {
  const GgufFile& file = files[0];
  const std::string architecture(file.FindString("general.architecture").value_or(""));
  const std::string prefix = architecture + ".";
  for (const std::string& key : file.Keys()) {
    if (key.starts_with(prefix)) {
      const std::string name = key.substr(prefix.size());
      const bool granite = architecture == "granite" && HasWord(kGranite[0].keys, name);
      if (IsRead(architecture, name)) continue;
      JudgeKey(name, file.Show(key), granite ? std::span<const KeyRule>(kGranite) : kNetwork,
               prefix, found);
    } else if (!HasWord(kDocumentsRead, key)) {
      JudgeKey(key, file.Show(key), kDocuments, "", found);
    }
  }
}

}  // namespace nibble
