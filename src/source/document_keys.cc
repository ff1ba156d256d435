// SPDX-License-Identifier: Apache-2.0
// Judges the keys of generation_config.json and tokenizer_config.json that nothing reads.
#include "source/gguf_source.h"
#include "source/model_source.h"
#include "source/unread_keys.h"

namespace nibble {
namespace {

// Keys that engine/generation_config.cc reads.
constexpr std::string_view kGenerationRead =
    "eos_token_id do_sample temperature top_k top_p min_p typical_p repetition_penalty "
    "presence_penalty frequency_penalty";

constexpr KeyRule kGeneration[] = {
    // Keys whose values stand elsewhere, too, and keys about how transformers runs.
    {"bos_token_id pad_token_id decoder_start_token_id user_token_id assistant_token_id "
     "transformers_version _from_model_config use_cache cache_implementation cache_config "
     "trust_remote_code return_dict_in_generate output_attentions output_hidden_states "
     "output_scores output_logits num_return_sequences remove_invalid_values low_memory "
     "renormalize_logits early_stopping prefill_chunk_size is_assistant num_assistant_tokens "
     "num_assistant_tokens_schedule assistant_* prompt_lookup_num_tokens "
     "use_mtp max_cache_len speculation_type continuous_batching_config return_legacy_cache "
     "max_matching_ngram_size target_lookbehind compile_config disable_compile token_healing "
     "generation_kwargs chat_format max_window_size max_time num_beam_groups length_penalty "
     "encoder_no_repeat_ngram_size attn_implementation use_model_defaults"},
    // Callers say how long an answer may be.
    {"max_length max_new_tokens"},
    {"num_beams guidance_scale encoder_repetition_penalty", Effect::kAnswers, "1"},
    {"min_length min_new_tokens no_repeat_ngram_size penalty_alpha epsilon_cutoff eta_cutoff "
     "diversity_penalty top_h",
     Effect::kAnswers, "0"},
    {"bad_words_ids force_words_ids constraints forced_bos_token_id forced_eos_token_id "
     "forced_decoder_ids exponential_decay_length_penalty suppress_tokens begin_suppress_tokens "
     "sequence_bias watermarking_config stop_strings dola_layers",
     Effect::kAnswers},
};

// Keys that text/chat_template.cc and tokenizer_files.cc read.
constexpr std::string_view kTokenizerRead =
    "chat_template bos_token eos_token unk_token sep_token pad_token cls_token mask_token "
    "add_bos_token add_eos_token added_tokens_decoder";

// Keys that tokenizer.json has itself, and keys for batches and for Python's classes.
constexpr KeyRule kTokenizerRules[] = {
    {"tokenizer_class tokenizer_type tokenizer_file name_or_path auto_map processor_class "
     "backend is_local is_fast local_files_only model_max_length model_input_names padding* "
     "truncation* max_length stride pad_to_multiple_of pad_token_type_id "
     "clean_up_tokenization_spaces "
     "spaces_between_special_tokens additional_special_tokens extra_special_tokens "
     "model_specific_special_tokens added_tokens_decoder legacy use_fast use_default_system_prompt "
     "use_regex fix_mistral_regex sp_model_kwargs add_prefix_space add_dummy_prefix_space "
     "trim_offsets errors split_by_whitespace from_slow vocab_file merges_file vocab_type "
     "special_tokens_map_file special_tokens bos_token_id eos_token_id pad_token_id unk_token_id "
     "image_token* video_token* audio_token* vision_* boi_token* eoi_token* boa_token* eoa_token* "
     "image_* video_* audio_* return_token_type_ids prompt_style transformers_version "
     "tokenize_chinese_chars strip_accents do_lower_case remove_space keep_accents "
     "do_basic_tokenize "
     "never_split verbose init_inputs device_map dtype torch_dtype revision _commit_hash "
     "_from_auto trust_remote_code chat_template_jinja response_schema response_template "
     "tool_parser_type "
     "add_generation_prompt max_model_input_sizes separate_vocabs"},
    {"split_special_tokens", Effect::kAnswers, "false"},
};

// Neutral values are those that transformers 4 wrote by default.
constexpr KeyRule kUnusedSampling[] = {
    {"top_k", Effect::kAnswers, "0 50"},
    {"temperature top_p typical_p", Effect::kAnswers, "1"},
    {"min_p", Effect::kAnswers, "0"},
};

// Without do_sample the values of sampling have no effect.
void FindUnusedSampling(const Json& json, const std::string& document, UnreadKeys& found) {
  const auto samples = json.find("do_sample");
  if (samples != json.end() && samples->is_boolean() && samples->get<bool>()) return;
  for (const char* key : {"temperature", "top_k", "top_p", "min_p", "typical_p"}) {
    const auto value = json.find(key);
    if (value != json.end()) JudgeKey(key, *value, kUnusedSampling, document, found);
  }
}

// Returns an empty object if the document is missing or cannot be read: a network does without
// these documents, and code that needs one says what is wrong with it.
Json ObjectOf(const std::string& model, const char* name) {
  try {
    const auto text = FindDocument(model, name, kMaxJsonBytes);
    Json json = text ? ParseJson(*text, DocumentPath(model, name)) : Json();
    if (json.is_object()) return json;
  } catch (const Error&) {
    return Json::object();
  }
  return Json::object();
}

void Find(const Json& json, const std::string& document, std::string_view read,
          std::span<const KeyRule> rules, UnreadKeys& found) {
  for (const auto& [key, value] : json.items()) {
    if (!HasWord(read, key)) JudgeKey(key, value, rules, document, found);
  }
}

}  // namespace

void FindUnreadDocumentKeys(const std::string& model, UnreadKeys& found) {
  if (IsGguf(model)) return FindUnreadGgufKeys(OpenGgufFiles(model), found);
  const Json generation = ObjectOf(model, "generation_config.json");
  FindUnusedSampling(generation, "generation_config.json: ", found);
  Find(generation, "generation_config.json: ", kGenerationRead, kGeneration, found);
  Find(ObjectOf(model, "tokenizer_config.json"), "tokenizer_config.json: ", kTokenizerRead,
       kTokenizerRules, found);
}

}  // namespace nibble
