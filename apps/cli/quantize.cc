// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/quantize.h"

#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <sstream>

#include "apps/cli/cli.h"
#include "apps/cli/linear_rows.h"
#include "base/progress.h"

namespace nibble::cli {
namespace {

// Overrides of a recipe's fields; absent = as the recipe says. Those of linears, which rules can
// have, too:
struct LinearOverrides {
  std::optional<int> w_bits, a_bits, tail_bits, row_share;
  std::optional<int64_t> w_group, a_group, group, tail;
  std::optional<bool> w_asym, a_asym, a_signed, two_level;
  std::optional<double> w_clip, a_clip;
  std::optional<std::string> sparse;
};

struct Overrides {
  LinearOverrides linear;
  std::optional<int> k_bits, v_bits, kv_bits, down_bits, head_bits, embed_bits, sweeps;
  std::optional<int64_t> kv_group;
  std::optional<bool> kv_asym, act_order, quantized_calibration, online, learned_rotation,
      learned_scales;
  std::optional<double> kv_clip, damp, gptaq, alpha, key_alpha, output_alpha, tail_threshold;
  std::optional<std::string> rotation, rounding, order;
  std::vector<std::string> rules;  // PATTERN:FIELD=VALUE,...
};

struct Arguments {
  QuantizeOptions options;
  std::string recipe = "quarot", progress = "text";
  bool dry_run = false;
  Overrides overrides;
};

template <typename T, typename... More>
void Set(T& field, const std::optional<More>&... values) {
  ((values ? void(field = *values) : void()), ...);
}

Rule ParseRule(const std::string& text);

void ApplyLinear(const LinearOverrides& o, Recipe& recipe) {
  Set(recipe.weights.bits, o.w_bits);
  Set(recipe.weights.group, o.group, o.w_group);
  Set(recipe.weights.clip, o.w_clip);
  Set(recipe.weights.row_share, o.row_share);
  if (o.sparse) recipe.weights.sparse = *o.sparse == "2:4";
  Set(recipe.activations.bits, o.a_bits);
  Set(recipe.activations.group, o.group, o.a_group);
  Set(recipe.activations.clip, o.a_clip);
  if (o.w_asym) recipe.weights.symmetric = !*o.w_asym;
  if (o.a_asym) {
    recipe.activations.symmetric = !*o.a_asym;
    recipe.activations.signed_scale &= recipe.activations.symmetric;
  }
  Set(recipe.activations.signed_scale, o.a_signed);
  // A recipe's second level goes with what it stands on, and activations have no groups beside it.
  recipe.weights.second_level &= recipe.weights.group != 0 && recipe.weights.bits <= 4;
  Set(recipe.weights.second_level, o.two_level);
  if (recipe.weights.second_level && !o.a_group) recipe.activations.group = 0;
  Set(recipe.tail, o.tail);
  for (FormatSpec* f : {&recipe.tail_weights, &recipe.tail_activations}) Set(f->bits, o.tail_bits);
}

Recipe Apply(Recipe recipe, const Overrides& o) {
  ApplyLinear(o.linear, recipe);
  Set(recipe.k.bits, o.kv_bits, o.k_bits);
  Set(recipe.v.bits, o.kv_bits, o.v_bits);
  for (FormatSpec* f : {&recipe.k, &recipe.v}) {
    Set(f->group, o.kv_group);
    Set(f->clip, o.kv_clip);
    if (o.kv_asym) f->symmetric = !*o.kv_asym;
  }
  if (o.head_bits) recipe.head = {.bits = *o.head_bits};
  if (o.embed_bits) recipe.embedding = {.bits = *o.embed_bits};
  Set(recipe.act_order, o.act_order);
  Set(recipe.quantized_calibration, o.quantized_calibration);
  Set(recipe.learned_rotation, o.learned_rotation);
  Set(recipe.learned_scales, o.learned_scales);
  Set(recipe.sweeps, o.sweeps);
  Set(recipe.damp, o.damp);
  Set(recipe.gptaq, o.gptaq);
  Set(recipe.tail_threshold, o.tail_threshold);
  Set(recipe.smoothing, o.alpha);
  Set(recipe.key_smoothing, o.key_alpha);
  Set(recipe.output_smoothing, o.output_alpha);
  Set(recipe.online_transforms, o.online);
  for (ChannelOrder r : {ChannelOrder::kNone, ChannelOrder::kLargest, ChannelOrder::kEnergy}) {
    if (o.order == OrderName(r)) recipe.order = r;
  }
  for (Rotation r : {Rotation::kNone, Rotation::kHadamard, Rotation::kRandom}) {
    if (o.rotation == RotationName(r)) recipe.rotation = r;
  }
  for (Rounding r : {Rounding::kNearest, Rounding::kGptq}) {
    if (o.rounding == RoundingName(r)) recipe.rounding = r;
  }
  if (o.down_bits) {
    recipe.rules.push_back(
        ParseRule(fmt::format("{0}:w-bits={1},a-bits={1}", kDownPattern, *o.down_bits)));
  }
  for (const std::string& rule : o.rules) recipe.rules.push_back(ParseRule(rule));
  return recipe;
}

std::vector<std::vector<std::string>> PlanRows(const Plan& plan, const ModelConfig& config) {
  std::vector<std::vector<std::string>> rows = {
      {"linear", "weights", "activations", "online transform"}};
  const auto cells = [&](int64_t layer, Role role) -> std::vector<std::string> {
    const LinearPlan& p = plan.at(layer, role);
    return {TailedText(p.weights, p.tail.columns, p.tail.weights),
            TailedText(p.activations, p.tail.columns, p.tail.activations),
            OnlineText(p.input_transform, p.gather)};
  };
  AddLinearRows(config, cells, rows);
  for (Role role : kTableRoles) {
    rows.push_back({RoleName(role)});
    for (std::string& cell : cells(0, role)) rows.back().push_back(std::move(cell));
  }
  rows.push_back({"cache K", FormatText(plan.k), "", TransformText(plan.kv_rotation)});
  rows.push_back({"cache V", FormatText(plan.v), "", ""});
  return rows;
}

// Where a threshold decides about tails, what it came to; else nothing.
std::string TailsText(const Recipe& recipe, const Plan& plan) {
  if (recipe.tail_threshold == 0) return "";
  int64_t without = 0, quantized = 0;
  for (const auto& [name, linear] : plan.linears) {
    if (!name.starts_with("layers.") || !linear.weights.quantized()) continue;
    ++quantized;
    without += linear.tail.columns == 0 ? 1 : 0;
  }
  return fmt::format("no outliers     in {} of {} linears\n", without, quantized);
}

void PrintPlan(const Arguments& a, const QuantizeReport& report) {
  const QuantizeEstimate& e = report.estimate;
  if (!a.options.recipe.calibrates()) {
    Note("recipe {}, no calibration\n", a.recipe);
  }
  if (a.dry_run) {
    const auto why = WhyTwoTables(report.config, a.options.recipe, report.plan);
    fmt::print("{}{}\n", Table(PlanRows(report.plan, report.config)),
               TailsText(a.options.recipe, report.plan));
    fmt::print("tables       {}\n",
               why.empty() ? "one for head and embedding" : fmt::format("two: {}", why));
    fmt::print(
        "parameters   {:.1f} M\nsize         {} ({:.2f} bits per quantized weight)\n"
        "peak memory  {}\ndisk         {}\ntime         about {}\n",
        static_cast<double>(e.parameters) / 1e6, BytesText(e.output_bytes), e.bits_per_weight,
        BytesText(e.peak_memory_bytes), BytesText(e.disk_bytes), DurationText(e.seconds));
  }
}

Json ReportJson(const QuantizeReport& r) {
  Json layers = Json::array();
  for (const LayerReport& layer : r.layers) {
    Json errors = Json::object();
    for (const auto& [role, error] : layer.errors) errors[RoleName(role)] = error;
    layers.push_back({{"layer", layer.layer}, {"relative_errors", errors}});
  }
  return {{"output", r.output},
          {"seconds", r.seconds},
          {"bytes", r.output_bytes},
          {"bits_per_weight", r.quantized_bits_per_weight},
          {"invariance", r.invariance},
          {"resumed_layers", r.resumed_layers},
          {"layers", layers}};
}

void PrintReport(const Arguments& a, const QuantizeReport& r) {
  if (r.quantized_bits_per_weight > 0) {
    std::vector<std::vector<std::string>> rows = {{"layer"}};
    for (Role role : kLayerRoles) rows[0].push_back(RoleName(role));
    for (const LayerReport& layer : r.layers) {
      rows.push_back({fmt::format("{}", layer.layer)});
      std::map<Role, std::vector<double>> errors;  // of all experts
      for (const auto& [role, error] : layer.errors) errors[KindOf(role)].push_back(error);
      for (Role role : kLayerRoles) {
        const std::vector<double>& of = errors[role];
        const double sum = std::accumulate(of.begin(), of.end(), 0.0);
        rows.back().push_back(
            of.empty() ? "-" : fmt::format("{:.2e}", sum / static_cast<double>(of.size())));
      }
    }
    fmt::print("squared output error of each rounded linear, relative to its output{}\n{}\n",
               r.config.experts > 0 ? ", mean of experts" : "", Table(rows));
  }
  if (r.mapped) {
    fmt::print("exactness check largest logit change {:.1e} of the logits' deviation\n",
               r.invariance);
  }
  fmt::print("{}", TailsText(a.options.recipe, r.plan));
  fmt::print("size            {} ({:.2f} bits per quantized weight)\ntime            {}\n",
             BytesText(r.output_bytes), r.quantized_bits_per_weight, DurationText(r.seconds));
  fmt::print("next            nibble eval ppl {} --text FILE\n", r.output);
}

Json DryRunJson(const QuantizeReport& report) {
  const QuantizeEstimate& e = report.estimate;
  return {{"plan", ToJson(report.plan)},
          {"parameters", e.parameters},
          {"bytes", e.output_bytes},
          {"bits_per_weight", e.bits_per_weight},
          {"peak_memory_bytes", e.peak_memory_bytes},
          {"disk_bytes", e.disk_bytes},
          {"seconds", e.seconds}};
}

void RunQuantize(Arguments& a, const Common& common) {
  a.options.recipe = Apply(FindRecipe(a.recipe), a.overrides);
  a.options.device = common.device;
  SetProgressStyle(a.progress == "json" ? ProgressStyle::kJson : ProgressStyle::kText);
  if (a.dry_run) {
    const QuantizeReport report = PlanQuantization(a.options);
    common.json ? PrintJson(DryRunJson(report)) : PrintPlan(a, report);
    return;
  }
  if (a.options.output.empty()) FailUsage("quantize needs -o OUT (or --dry-run)");
  const bool sample = a.options.calibration_text.empty();
  if (sample && a.options.recipe.calibrates()) {
    Note(
        "nibble: calibrating on the embedded sample text; for your own model pass "
        "--calib FILE with text it should be good at\n");
  }
  const QuantizeReport report = Quantize(a.options);
  common.json ? PrintJson(ReportJson(report)) : PrintReport(a, report);
}

// A pair of flags; without either the field stays as the recipe says.
void AddSwitch(CLI::App& verb, const std::string& on, const std::string& off,
               std::optional<bool>& field, const std::string& description,
               const std::string& group) {
  CLI::Option* yes = verb.add_flag_callback(
      on, [&field] { field = true; }, description);
  CLI::Option* no = verb.add_flag_callback(
      off, [&field] { field = false; }, "The opposite");
  yes->group(group)->excludes(no);
  no->group(group)->excludes(yes);
}

constexpr const char* kOverridesGroup = "Overrides of the recipe (16 bits = not quantized)";

CLI::Validator BitsCheck() {
  return CLI::IsMember({2, 3, 4, 5, 6, 7, 8, 16});
}

CLI::Validator StoredBitsCheck() {
  return CLI::IsMember({2, 3, 4, 5, 6, 7, 8, 16, 32});
}

CLI::Validator GroupCheck() {
  return CLI::Range(int64_t{0}, int64_t{1} << 20);
}

void AddLinearOverrides(CLI::App& verb, LinearOverrides& o) {
  const std::string g = kOverridesGroup;
  verb.add_option("--w-bits", o.w_bits, "Bits of weights; 16: bf16 or fp16, 32: fp32")
      ->check(StoredBitsCheck())
      ->group(g);
  verb.add_option("--a-bits", o.a_bits, "Bits of activations")->check(BitsCheck())->group(g);
  verb.add_option(
          "--group", o.group,
          "Inputs that share a scale, weights and activations; 0 = row. Where it does not divide "
          "the inputs: the largest multiple of 32 below that does")
      ->check(GroupCheck())
      ->group(g);
  verb.add_option("--w-group", o.w_group, "Group of weights")->check(GroupCheck())->group(g);
  verb.add_option("--a-group", o.a_group, "Group of activations")->check(GroupCheck())->group(g);
  AddSwitch(verb, "--two-level", "--one-level", o.two_level,
            "Scales of weight groups are integers times the row's; groups of weights alone", g);
  AddSwitch(verb, "--w-asym", "--w-sym", o.w_asym, "Asymmetric weights", g);
  AddSwitch(verb, "--a-asym", "--a-sym", o.a_asym, "Asymmetric activations", g);
  AddSwitch(verb, "--a-signed", "--a-unsigned", o.a_signed,
            "Activation scales with the sign that uses the lowest code", g);
  verb.add_option("--w-clip", o.w_clip, "Clip of weights; 0 = searched")
      ->check(NumberBetween(0.0, 1.0))
      ->group(g);
  verb.add_option("--a-clip", o.a_clip,
                  "Clip of activations; 0 = searched for each linear on calibration data")
      ->check(NumberBetween(0.0, 1.0))
      ->group(g);
  verb.add_option("--row-share", o.row_share, "Adjacent outputs that share the scales of weights")
      ->check(CLI::IsMember({1, 2, 4, 8, 16, 32}))
      ->group(g);
  verb.add_option("--sparse", o.sparse, "Weights that are 0: 2:4 (two of four inputs) or none")
      ->check(CLI::IsMember({"2:4", "none"}))
      ->group(g);
  verb.add_option("--tail", o.tail, "Outlier channels: the last so many of 4096, in proportion")
      ->check(CLI::Range(0, 4000))
      ->group(g);
  verb.add_option("--tail-bits", o.tail_bits, "Bits of their weights and activations")
      ->check(BitsCheck())
      ->group(g);
}

void AddOverrides(CLI::App& verb, Overrides& o) {
  const std::string g = kOverridesGroup;
  const auto bits = BitsCheck();
  AddLinearOverrides(verb, o.linear);
  verb.add_option("--kv-bits", o.kv_bits, "Bits of the KV cache")->check(bits)->group(g);
  verb.add_option("--k-bits", o.k_bits, "Bits of cached keys")->check(bits)->group(g);
  verb.add_option("--v-bits", o.v_bits, "Bits of cached values")->check(bits)->group(g);
  verb.add_option("--kv-group", o.kv_group, "Group of the cache; 0 = head")
      ->check(GroupCheck())
      ->group(g);
  AddSwitch(verb, "--kv-asym", "--kv-sym", o.kv_asym, "Asymmetric cache", g);
  verb.add_option("--kv-clip", o.kv_clip, "Clip of the cache")
      ->check(NumberBetween(0.05, 1.0))
      ->group(g);
  verb.add_option("--down-bits", o.down_bits, "Bits of down's weights and activations")
      ->check(bits)
      ->group(g);
  verb.add_option("--head-bits", o.head_bits, "Bits of the head; 8 where weights are quantized")
      ->check(StoredBitsCheck())
      ->group(g);
  verb.add_option("--embed-bits", o.embed_bits, "Bits of the embedding, likewise")
      ->check(StoredBitsCheck())
      ->group(g);
  verb.add_option("--order", o.order,
                  "Order of input channels, outliers last: by their largest value, by energy, none")
      ->check(CLI::IsMember({"largest", "energy", "none"}))
      ->group(g);
  verb.add_option("--tail-threshold", o.tail_threshold,
                  "No outlier channels where calibration sees no larger input (down: twice it); "
                  "0 = everywhere; a dry run then calibrates, too")
      ->check(NumberBetween(0.0, 1e6))
      ->group(g);
  verb.add_option("--alpha", o.alpha, "SmoothQuant's strength, 0 = off; needs --rotation none")
      ->check(NumberBetween(0.0, 1.0))
      ->group(g);
  verb.add_option("--key-alpha", o.key_alpha, "SmoothAttention's strength, 0 = off")
      ->check(NumberBetween(0.0, 1.0))
      ->group(g);
  verb.add_option(
          "--output-alpha", o.output_alpha,
          "Strength of QServe's smoothing of what o and down read, 0 = off; needs --no-online")
      ->check(NumberBetween(0.0, 1.0))
      ->group(g);
  AddSwitch(verb, "--online", "--no-online", o.online,
            "With a rotation: the transforms at run time too, of heads and of down's input", g);
  verb.add_option("--rotation", o.rotation, "hadamard, random or none (none drops all transforms)")
      ->check(CLI::IsMember({"hadamard", "random", "none"}))
      ->group(g);
  verb.add_option("--rounding", o.rounding, "rtn or gptq")
      ->check(CLI::IsMember({"rtn", "gptq"}))
      ->group(g);
  AddSwitch(verb, "--act-order", "--no-act-order", o.act_order, "GPTQ: most active columns first",
            g);
  verb.add_option("--damp", o.damp, "GPTQ: share of the mean Hessian diagonal added")
      ->check(NumberBetween(0.0, 10.0))
      ->group(g);
  AddSwitch(verb, "--calib-quantized", "--calib-float", o.quantized_calibration,
            "GPTQ: calibrate with activation and cache quantization on", g);
  AddSwitch(verb, "--learned-rotation", "--fixed-rotation", o.learned_rotation,
            "Learn the rotation of the residual stream from calibration data", g);
  AddSwitch(verb, "--learned-scales", "--fixed-scales", o.learned_scales,
            "Tune scales of rounded weights towards the float model's predictions; takes 61440 "
            "tokens of calibration at least",
            g);
  verb.add_option("--sweeps", o.sweeps, "GPTQ: passes over the codes at the end")
      ->check(CLI::Range(0, 20))
      ->group(g);
  verb.add_option("--gptaq", o.gptaq, "GPTQ: share of GPTAQ's input-error correction, 0 = off")
      ->check(NumberBetween(0.0, 1.0))
      ->group(g);
  verb.add_option(
          "--rule", o.rules,
          "PATTERN:FIELD=VALUE,...: options --w-bits to --tail-bits above, without dashes, of "
          "the linears in whose name (model.layers.3.mlp.down_proj) the regular expression "
          "is found; repeatable, later rules win")
      ->allow_extra_args(false)
      ->group(g);
}

// The fields of a rule are the options of linears without their dashes.
Rule ParseRule(const std::string& text) {
  // Patterns may hold "(?:", values "2:4": fields begin behind the last colon before a letter.
  size_t colon = text.size();
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] == ':' && std::islower(static_cast<unsigned char>(text[i + 1])) != 0) colon = i;
  }
  if (colon == text.size()) FailUsage("--rule {}: expected PATTERN:FIELD=VALUE,...", text);
  std::vector<std::string> fields;
  std::istringstream list(text.substr(colon + 1));
  for (std::string field; std::getline(list, field, ',');) fields.push_back("--" + field);
  std::reverse(fields.begin(), fields.end());  // as CLI11 takes them
  CLI::App parser;
  parser.set_help_flag();
  LinearOverrides o;
  AddLinearOverrides(parser, o);
  try {
    parser.parse(std::move(fields));
  } catch (const CLI::ParseError& error) {
    FailUsage("--rule {}: {}", text, error.what());
  }
  return {text.substr(0, colon), [o](Recipe& recipe) { ApplyLinear(o, recipe); }, text};
}

std::shared_ptr<Arguments> AddArguments(CLI::App* verb) {
  const auto a = std::make_shared<Arguments>();
  std::string recipes;
  for (const Recipe* r : Recipes()) recipes += fmt::format("\n  {}: {}", r->name, r->summary);
  verb->add_option("model", a->options.model, "Hugging Face directory")->required();
  verb->add_option("-o,--output", a->options.output, "Checkpoint directory to write");
  verb->add_option("--recipe", a->recipe, "Method:" + recipes)->capture_default_str();
  verb->add_option("--calib", a->options.calibration_text, "Calibration text (default: a sample)");
  verb->add_option("--calib-windows", a->options.calibration_windows, "Windows drawn from it")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb->add_option("--context", a->options.context,
                   "Tokens of a window; 0 = min(2048, the model's)");
  verb->add_option("--seed", a->options.seed, "Seed of rotation and windows")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  verb->add_flag("--resume", a->options.resume, "Continue OUT.partial");
  verb->add_flag("--force", a->options.force, "Replace OUT");
  verb->add_flag("--dry-run", a->dry_run, "Print plan, size, memory and time; write nothing");
  verb->add_option("--progress", a->progress, "text or json")
      ->check(CLI::IsMember({"text", "json"}));
  AddOverrides(*verb, a->overrides);
  return a;
}

}  // namespace

QuantizeOptions ParseQuantizeArguments(std::vector<std::string> arguments) {
  CLI::App verb;
  const auto a = AddArguments(&verb);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
  try {
    verb.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    FailUsage("{}", error.what());
  }
  a->options.recipe = Apply(FindRecipe(a->recipe), a->overrides);
  return a->options;
}

void AddQuantize(CLI::App& app, Common& common, Run& run) {
  CLI::App* verb =
      AddVerb(app, common, "quantize", "Quantize a Hugging Face model directory",
              "nibble quantize llama -o llama-w4a4kv4 --calib text.txt\n"
              "  nibble quantize llama -o llama-w4a8 --a-bits 8 --calib text.txt\n"
              "  nibble quantize llama -o llama-w4a4 --rule 'down_proj:w-bits=8,a-bits=8' "
              "--rule 'layers.0.*k_proj:w-bits=8'\n"
              "  nibble quantize llama --recipe rtn --dry-run");
  const auto a = AddArguments(verb);
  verb->callback([a, &common, &run] { run = [a, &common] { RunQuantize(*a, common); }; });
}

}  // namespace nibble::cli
