// SPDX-License-Identifier: Apache-2.0
#include "models/import/config_keys.h"

#include <algorithm>

#include "models/config.h"
#include "models/families/family.h"

namespace nibble {
namespace {

// By ParseLlama and ParseRope (llama.cc, rope_config.cc), and by whoever opens a model.
constexpr std::string_view kRead =
    "model_type hidden_size intermediate_size num_hidden_layers num_attention_heads "
    "num_key_value_heads head_dim vocab_size max_position_embeddings rms_norm_eps "
    "tie_word_embeddings hidden_act rope_theta rope_scaling rope_parameters "
    "partial_rotary_factor original_max_position_embeddings eos_token_id quantization_config "
    "num_nextn_predict_layers";

// By a family's own parser.
constexpr std::pair<std::string_view, std::string_view> kReadBy[] = {
    {"llama", "attention_bias mlp_bias"},
    {"mistral", "sliding_window"},
    {"ministral", "sliding_window layer_types"},
    {"ministral3", "sliding_window"},
    {"mixtral", "sliding_window num_local_experts num_experts_per_tok"},
    {"smollm3",
     "attention_bias mlp_bias use_sliding_window sliding_window layer_types no_rope_layers "
     "no_rope_layer_interval"},
    {"granite",
     "attention_bias mlp_bias residual_multiplier embedding_multiplier attention_multiplier "
     "logits_scaling"},
    {"qwen2", "use_sliding_window sliding_window layer_types max_window_layers"},
    {"qwen3",
     "attention_bias mlp_bias use_sliding_window sliding_window layer_types max_window_layers"},
    {"qwen3_moe",
     "attention_bias mlp_bias use_sliding_window sliding_window layer_types max_window_layers "
     "num_experts num_local_experts num_experts_per_tok moe_intermediate_size norm_topk_prob "
     "mlp_only_layers decoder_sparse_step"},
    {"phi3", "sliding_window"},
    {"gemma2",
     "attention_bias mlp_bias hidden_activation query_pre_attn_scalar final_logit_softcapping "
     "attn_logit_softcapping sliding_window layer_types"},
    {"gemma3_text",
     "attention_bias mlp_bias hidden_activation query_pre_attn_scalar final_logit_softcapping "
     "sliding_window layer_types sliding_window_pattern _sliding_window_pattern "
     "rope_local_base_freq"},
    {"gemma4_text",
     "attention_bias mlp_bias hidden_activation query_pre_attn_scalar final_logit_softcapping "
     "sliding_window layer_types use_bidirectional_attention attention_k_eq_v per_layer_config "
     "global_head_dim num_global_key_value_heads num_kv_shared_layers use_double_wide_mlp "
     "hidden_size_per_layer_input vocab_size_per_layer_input enable_moe_block num_experts "
     "top_k_experts moe_intermediate_size"},
    {"gpt_oss",
     "attention_bias num_local_experts num_experts_per_tok experts_per_token swiglu_alpha "
     "swiglu_limit sliding_window layer_types"},
    {"glm4", "attention_bias"},
    {"glm4_moe",
     "attention_bias use_qk_norm n_routed_experts num_experts_per_tok norm_topk_prob "
     "routed_scaling_factor n_shared_experts n_group moe_intermediate_size first_k_dense_replace"},
    {"olmo2", "attention_bias mlp_bias"},
    {"exaone4", "sliding_window layer_types sliding_window_pattern"},
    {"gpt_neox", "rotary_pct rotary_emb_base layer_norm_eps attention_bias use_parallel_residual"},
    {"falcon",
     "n_layer n_head n_head_kv num_kv_heads alibi apply_residual_connection_post_layernorm "
     "new_decoder_architecture multi_query ffn_hidden_size activation layer_norm_epsilon bias "
     "parallel_attn num_ln_in_parallel_attn"},
    {"opt",
     "do_layer_norm_before enable_bias layer_norm_elementwise_affine _remove_final_layer_norm "
     "ffn_dim activation_function word_embed_proj_dim"},
};

constexpr KeyRule kRules[] = {
    // Of training, of batches, of classification, and how transformers runs.
    {"architectures transformers_version torch_dtype dtype _name_or_path name_or_path use_cache "
     "initializer_range init_std attention_dropout hidden_dropout dropout layerdrop resid_pdrop "
     "embd_pdrop activation_dropout hidden_dropout_prob attention_probs_dropout_prob "
     "embedding_dropout classifier_dropout classifier_bias resid_dropout ffn_dropout "
     "output_attentions output_hidden_states output_router_logits router_aux_loss_coef "
     "router_jitter_noise aux_loss_alpha return_dict chunk_size_feed_forward id2label label2id "
     "problem_type num_labels tf_legacy_loss finetuning_task pruned_heads torchscript use_bfloat16 "
     "is_encoder_decoder is_decoder cross_attention_hidden_size add_cross_attention "
     "tie_encoder_decoder tokenizer_class task_specific_params prefix bos_token_id pad_token_id "
     "sep_token_id decoder_start_token_id unk_token_id pretraining_tp _attn_implementation* "
     "attn_implementation _attention_implementation cache_implementation use_flash_attn "
     "_flash_attn_2_enabled gradient_checkpointing training_args unsloth_fixed unsloth_version "
     "neuron remove_invalid_values vocab_dim model_max_length max_sequence_length "
     "tokenizer_* special_dot_product_attention apply_query_key_layer_scaling "
     "attention_softmax_in_fp32 offset_alibi fused_kernels _commit_hash internal_version "
     "is_llama_config transformers.js_config output_projection ff_factor"},
    // What older transformers' base class wrote of generation.
    {"max_length min_length do_sample early_stopping num_beams num_beam_groups "
     "diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty "
     "no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences "
     "output_scores return_dict_in_generate forced_bos_token_id forced_eos_token_id "
     "exponential_decay_length_penalty suppress_tokens begin_suppress_tokens"},
    // What the family has by itself, or transformers' class of it does not read either.
    {"initial_context_length max_window_layers expert_intermediate_size num_attention_layers "
     "head_size hidden_size_per_head"},
    {"is_causal", Effect::kRefused, "true"},
    {"use_bidirectional_attention bidirectional is_bidirectional alibi", Effect::kRefused, "false"},
    {"attn_logit_softcapping final_logit_softcapping shared_expert_intermediate_size",
     Effect::kRefused, "0"},
    {"topk_group", Effect::kRefused, "1"},
    {"lm_head_bias", Effect::kRefused, "false"},
    {"full_attn_mod interpolate_factor", Effect::kAnswers, "1"},
    {"layer_types", Effect::kAnswers, "full_attention"},
    {"attention_bias mlp_bias qkv_bias", Effect::kAnswers, "false"},
    {"rope_interleaved use_mrope", Effect::kAnswers, "false"},
};

// One that a family has always, whatever others have.
constexpr std::pair<std::string_view, KeyRule> kFamilyRules[] = {
    {"gemma2", {"hidden_act"}},
    {"gemma3_text", {"hidden_act"}},
    {"gemma4_text", {"hidden_act"}},
    {"gpt_neox", {"hidden_act"}},
    {"qwen3_moe", {"use_qk_norm", Effect::kRefused, "true"}},
    {"qwen3_moe", {"qkv_bias", Effect::kRefused, "false"}},
    {"qwen2", {"attention_bias"}},
    {"opt", {"num_key_value_heads"}},
};

// Of auto_map, where the code is not that of transformers.
constexpr KeyRule kCode[] = {{"*", Effect::kAnswers}};

constexpr std::string_view kRopeRead =
    "rope_type type rope_theta partial_rotary_factor factor low_freq_factor high_freq_factor "
    "original_max_position_embeddings beta_fast beta_slow truncate mscale mscale_all_dim "
    "attention_factor long_factor short_factor";

constexpr KeyRule kRopeRules[] = {
    // Of places in images, and what transformers' laws do not read.
    {"mrope_section mrope_interleaved finetuned max_position_embeddings"},
    // Ministral 3's, which ends the context; others' classes do not read it.
    {"llama_4_scaling_beta"},
    {"alpha", Effect::kRefused},
    {"extrapolation_factor attn_factor long_mscale short_mscale", Effect::kAnswers, "1"},
};

// Of who quantized it how: the tensors say the rest.
constexpr std::string_view kQuantizationRead =
    "quant_method checkpoint_format format version desc_act pack_dtype config_groups "
    "transform_config sparsity_config";

constexpr KeyRule kQuantizationRules[] = {
    {"bits w_bit group_size q_group_size sym zero_point damp* true_sequential static_groups "
     "act_group_aware model_name_or_path model_file_base_name model_seqlen block_name_to_quantize "
     "module_name_preceding_first_block modules_* modules_in_block_to_quantize ignore "
     "ignored_layers "
     "backend tokenizer dataset batch_size cache_* use_cuda_fp16 use_exllama disable_exllama "
     "exllama_config max_input_length pad_token_id hf_quantizer meta quantization_status "
     "global_compression_ratio kv_cache_scheme lm_head dynamic do_fuse fuse_max_seq_len "
     "scale_dtype iters lr minmax_lr nsamples seqlen gradient_accumulate_steps autoround_version "
     "enable_* low_gpu_mem_usage amp data_type quant_lm_head quant_block_list producer mse mock* "
     "lm_head_quantized adapter method offload* failsafe* gptaq gptaq_alpha foem* hyb_act "
     "run_config to_quant_block_names packing_format super_bits super_group_size act_bits "
     "act_* extra_config provider"},
    {"is_marlin_format", Effect::kRefused, "false"},
};

// Code that a model brings along is not run. That of modules called like the family is what
// transformers has itself.
void JudgeCode(const Json& map, const std::string& family, UnreadKeys& found) {
  if (!map.is_object()) return;
  const std::string own = fmt::format("modeling_{}.", family);
  for (const auto& [key, value] : map.items()) {
    if (!key.starts_with("AutoModel") || !value.is_string()) continue;
    const auto name = value.get<std::string>();
    if (name.find(own) == name.npos) {
      JudgeKey("auto_map." + key, value, kCode, "config.json: ", found);
    }
  }
}

void JudgeRope(const Json& parameters, const std::string& at, UnreadKeys& found) {
  if (!parameters.is_object()) return;
  for (const auto& [key, value] : parameters.items()) {
    if (value.is_object()) {
      JudgeRope(value, fmt::format("{}{}.", at, key), found);
    } else if (!HasWord(kRopeRead, key)) {
      JudgeKey(key, value, kRopeRules, at, found);
    }
  }
}

void JudgeNetworkKey(const std::string& family, const std::string& key, const Json& value,
                     UnreadKeys& found) {
  const std::string document = "config.json: ";
  for (const auto& [owner, rule] : kFamilyRules) {
    if (owner == family && HasWord(rule.keys, key)) {
      return JudgeKey(key, value, std::span(&rule, 1), document, found);
    }
  }
  JudgeKey(key, value, kRules, document, found);
}

}  // namespace

std::string_view KeysReadBy(std::string_view model_type) {
  const auto row = std::ranges::find(kReadBy, model_type, [](const auto& r) { return r.first; });
  return row == std::end(kReadBy) ? "" : row->second;
}

std::string_view KeysReadByAll() {
  return kRead;
}

void FindUnreadConfigKeys(const Json& config, UnreadKeys& found) {
  const Json& text = TextConfig(config);
  const auto family = JsonGet<std::string>(text, "model_type", "config.json");
  const std::string_view own = KeysReadBy(family);
  for (const auto& [key, value] : text.items()) {
    if (key == "rope_scaling" || key == "rope_parameters") {
      JudgeRope(value, fmt::format("config.json: {}.", key), found);
    } else if (!HasWord(kRead, key) && !HasWord(own, key) && key != "auto_map") {
      JudgeNetworkKey(family, key, value, found);
    }
  }
  const auto code = config.find("auto_map");
  if (code != config.end()) JudgeCode(*code, family, found);
  const auto quantization = config.find("quantization_config");
  if (quantization == config.end() || !quantization->is_object()) return;
  const Json method = quantization->value("quant_method", Json());
  if (method.is_string() && method.get<std::string>() == "nibble") return;  // field by field
  for (const auto& [key, value] : quantization->items()) {
    if (HasWord(kQuantizationRead, key)) continue;
    JudgeKey(key, value, kQuantizationRules, "config.json: quantization_config.", found);
  }
}

}  // namespace nibble
