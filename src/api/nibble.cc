// SPDX-License-Identifier: Apache-2.0
#include "nibble/nibble.h"

#include <optional>

#include "base/progress.h"
#include "engine/generation_config.h"
#include "engine/session.h"
#include "engine/window_bos.h"
#include "eval/perplexity.h"
#include "eval/text_windows.h"
#include "quantize/recipes/effort.h"
#include "quantize/recipes/recipe_fields.h"
#include "quantize/run/quantize.h"
#include "source/hub_cache.h"

namespace nibble {

std::string_view Version() {
  return NIBBLE_VERSION;
}

void QuantizeModel(const QuantizeRequest& request) {
  const ProgressReceiver receiver(request.on_progress);
  const Effort& effort = FindEffort(request.quality);
  Quantize({.model = ResolveModel(request.model),
            .output = request.output,
            .recipe = ChangedRecipe(WithEffort(FindRecipe(request.recipe), effort),
                                    ParseFields(request.fields), request.rules),
            .calibration_text = request.calibration_text,
            .effort = effort,
            .calibration_windows = request.calibration_windows,
            .context = request.context,
            .seed = request.seed,
            .device = request.device,
            .memory = request.memory,
            .resume = request.resume,
            .force = request.force});
}

struct LoadedModel::State {
  std::unique_ptr<Model> model;
  Tokenizer tokenizer;
  GenerationConfig generation;
  std::string directory;
};

struct TextSession::State {
  LoadedModel::State& model;
  Session session;
};

LoadedModel::LoadedModel(std::unique_ptr<State> state) : state_(std::move(state)) {}
LoadedModel::LoadedModel(LoadedModel&&) noexcept = default;
LoadedModel::~LoadedModel() = default;

LoadedModel LoadedModel::Load(const std::string& name, const std::string& device) {
  const std::string directory = ResolveModel(name);
  auto model = LoadModel(directory, device, false);
  auto generation = LoadGenerationConfig(directory, model->network().config_json);
  return LoadedModel(std::unique_ptr<State>(
      new State{std::move(model), Tokenizer::Load(directory), std::move(generation), directory}));
}

std::vector<int32_t> LoadedModel::Tokenize(std::string_view text) const {
  return state_->tokenizer.Encode(text);
}

std::string LoadedModel::Detokenize(const std::vector<int32_t>& ids) const {
  return state_->tokenizer.Decode(ids, false);
}

double LoadedModel::Perplexity(std::string_view text, int64_t context) {
  if (context == 0) context = std::min<int64_t>(2048, state_->model->context());
  if (context < 2 || context > state_->model->context()) {
    FailUsage("a context of {} tokens, the model has {}", context, state_->model->context());
  }
  const bool bos = WindowBos(state_->tokenizer, state_->model->config()).has_value();
  const WindowOptions options = {.context = context, .window_bos = bos};
  const auto windows = TextWindows(state_->tokenizer, std::string(text), options, "the text");
  return nibble::Perplexity(*state_->model, windows).perplexity;
}

TextSession LoadedModel::NewSession() {
  return TextSession(std::unique_ptr<TextSession::State>(
      new TextSession::State{*state_, Session(*state_->model)}));
}

TextSession::TextSession(std::unique_ptr<State> state) : state_(std::move(state)) {}
TextSession::TextSession(TextSession&&) noexcept = default;
TextSession::~TextSession() = default;

std::string TextSession::Generate(std::string_view prompt, const GenerateRequest& request,
                                  const std::function<void(std::string_view)>& on_text) {
  const Tokenizer& tokenizer = state_->model.tokenizer;
  // BOS belongs to the start of the sequence only.
  const auto ids = tokenizer.Encode(prompt, state_->session.tokens() == 0);
  if (ids.empty()) FailUsage("the prompt is empty");
  const GenerateOptions options = {
      .max_tokens = request.max_tokens,
      .sampling = {.temperature = request.temperature, .top_p = request.top_p},
      .seed = request.seed,
      .stop_ids = state_->model.generation.stop_ids};
  std::string text;
  const auto add = [&](const std::string& piece) {
    text += piece;
    if (on_text && !piece.empty()) on_text(piece);
    return true;
  };
  StreamDecoder decoder(tokenizer, true);
  nibble::Generate(state_->session, ids, options,
                   [&](int32_t id) { return add(decoder.Push(id)); });
  add(decoder.Flush());
  return text;
}

}  // namespace nibble
