// SPDX-License-Identifier: Apache-2.0
#include "quantize/plan/choose_transforms.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "quantize/round/gptq.h"
#include "quantize/walk/stream.h"
#include "transforms/blas.h"

namespace nibble {
namespace {

constexpr int64_t kComparedRows = 128,
                  kComparedTokens = 512;         // of each linear, and of the window that compares
constexpr int64_t kComparedExperts = 4;          // which speak for all
constexpr double kTriedClips[] = {1, 0.9, 0.8};  // of activations whose clip is to be searched

// Some rows of w, evenly spread.
Matrix<double> SomeRows(const Matrix<double>& w) {
  const int64_t count = std::min(kComparedRows, w.rows);
  Matrix<double> some(count, w.cols);
  for (int64_t n = 0; n < count; ++n) {
    std::ranges::copy(w.row(n * w.rows / count), some.row(n).begin());
  }
  return some;
}

double SquaredLength(std::span<const double> row) {
  double sum = 0;
  for (const double value : row) sum += value * value;
  return sum;
}

// Mean over tokens of |rounded - exact|^2 / |exact|^2. Of outputs smaller than most, relative to
// those in the middle: what they are added to is no smaller.
double RelativeError(const Matrix<double>& exact, const Matrix<double>& rounded) {
  std::vector<double> lengths;
  for (int64_t t = 0; t < exact.rows; ++t) lengths.push_back(SquaredLength(exact.row(t)));
  std::vector<double> sorted = lengths;
  const auto middle = sorted.begin() + exact.rows / 2;
  std::ranges::nth_element(sorted, middle);
  double sum = 0;
  for (int64_t t = 0; t < exact.rows; ++t) {
    double error = 0;
    for (size_t n = 0; n < exact.row(t).size(); ++n) {
      error += std::pow(rounded.row(t)[n] - exact.row(t)[n], 2);
    }
    sum += error / std::max({lengths[static_cast<size_t>(t)], *middle, 1e-300});
  }
  return sum / static_cast<double>(exact.rows);
}

// A network in floats with one plan's transforms.
class Variant {
 public:
  Variant(Backend& backend, const ModelConfig& config, const Recipe& recipe, const Rotator& rotator,
          const Plan& plan, std::span<const int32_t> ids, int64_t context)
      : backend_(backend),
        recipe_(recipe),
        plan_(plan),
        rotator_(rotator, plan_),
        stream_(backend, config, plan_, rotator_.embedding(), ids, context, false) {}

  Stream& stream() { return stream_; }
  void Begin(int64_t index) { Load(index), stream_.Begin(StoreFloats(layer_), index); }
  void Walk(int64_t index, const Stream::Visit& visit) {
    Load(index), stream_.Walk(StoreFloats(layer_), index, visit);
  }
  // Summed over the set's linears; 0 where no token comes to it.
  double ProductError(LinearSet set) {
    const std::vector<Role> roles = RolesOf(set);
    const Matrix<double> x = LastWindow(set, {.bits = 32});
    if (x.rows == 0) return 0;
    std::vector<Matrix<double>> exact, weights;
    for (Role role : roles) {
      const Matrix<double> w = SomeRows(layer_[role]);
      exact.push_back(Product(x, w));
      weights.push_back(w);
    }
    RoundWeights(set, weights);
    FormatSpec format = plan_.at(index_, roles[0]).activations;
    const bool searched = format.quantized() && format.clip == 0;
    double min = std::numeric_limits<double>::infinity();
    for (const double clip : std::span(kTriedClips).first(searched ? std::size(kTriedClips) : 1)) {
      if (searched) format.clip = clip;
      const Matrix<double> rounded = LastWindow(set, format);
      double error = 0;
      for (size_t i = 0; i < weights.size(); ++i) {
        error += RelativeError(exact[i], Product(rounded, weights[i]));
      }
      min = std::min(min, error);
    }
    return min;
  }

 private:
  static Matrix<double> Product(const Matrix<double>& x, const Matrix<double>& w) {
    Matrix<double> y(x.rows, w.rows);
    Multiply(x, w, true, y);
    return y;
  }
  void Load(int64_t index) { layer_ = rotator_.Layer(index), index_ = index; }
  // Inputs of some tokens, evenly spread, in the last window.
  Matrix<double> LastWindow(LinearSet set, const FormatSpec& format) {
    const auto [values, tokens] = stream_.Input(set, stream_.windows() - 1, format);
    const int64_t width = layer_[RolesOf(set)[0]].cols, count = std::min(kComparedTokens, tokens);
    Matrix<double> x(count, width);
    if (count == 0) return x;
    const float* const rows = backend_.Read(values, tokens * width);
    for (int64_t t = 0; t < count; ++t) {
      std::copy_n(rows + t * tokens / count * width, width, x.row(t).begin());
    }
    return x;
  }
  // Rounds as the recipe does, with the inputs of all windows but the last.
  void RoundWeights(LinearSet set, std::vector<Matrix<double>>& weights) {
    const std::vector<Role> roles = RolesOf(set);
    std::optional<Gptq> gptq;
    if (recipe_.rounding == Rounding::kGptq) {
      gptq.emplace(backend_, weights[0].cols,
                   GptqOptions{.act_order = recipe_.act_order, .damp = recipe_.damp});
      for (int64_t w = 0; w < std::max<int64_t>(stream_.windows() - 1, 1); ++w) {
        const auto [x, tokens] = stream_.Input(set, w, {.bits = 32});
        if (tokens > 0) gptq->Add(x, nullptr, tokens);
      }
    }
    for (size_t i = 0; i < roles.size(); ++i) {
      const FormatSpec& format = plan_.at(index_, roles[i]).weights;
      if (!format.quantized()) continue;
      const Rounded rounded =
          gptq ? gptq->Round(weights[i], format) : RoundNearest(weights[i], format);
      weights[i] = ToF64(Borrow(Decode(rounded.weights)));
    }
  }

  Backend& backend_;
  const Recipe& recipe_;
  Plan plan_;
  Rotator rotator_;
  Stream stream_;
  FloatLayer layer_;
  int64_t index_ = 0;
};

// Inputs of one layer that are transformed alike: those behind one norm, or where there is none
// those of q, k and v, of o, of gate and up, or of down, where experts go together.
struct Input {
  Role first;  // reader
  double planned = 0, plain = 0;
};
// The first of the linears that share an input with this one.
Role FirstReader(Role role) {
  const Role kind = KindOf(role);
  if (kind == Role::kK || kind == Role::kV) return Role::kQ;
  return kind == Role::kUp ? Role::kGate : kind;
}
bool Alike(const ModelConfig& c, Role a, Role b) {
  const auto norm = c.NormInFront(a);
  if (norm != c.NormInFront(b)) return false;
  return norm || (FirstReader(a) == FirstReader(b) && (ExpertOf(a) < 0) == (ExpertOf(b) < 0));
}

// The plan without online transforms of layers' inputs.
Plan Plain(Plan plan, const ModelConfig& c) {
  for (int64_t i = 0; i < c.layers; ++i) {
    for (Role role : c.layer_roles(i)) plan.linears[LinearName(i, role)].LeaveOutTransform();
  }
  return plan;
}

// The losses of both networks at the inputs that the plan transforms.
std::vector<Input> Compare(const ModelConfig& c, const Plan& plan, int64_t index, Variant& planned,
                           Variant& plain) {
  std::vector<Input> inputs;
  plain.Begin(index);
  planned.Walk(index, [&](LinearSet set) {
    const Role first = RolesOf(set)[0];
    const LinearPlan& linear = plan.at(index, first);
    const bool rounded = linear.weights.quantized() || linear.activations.quantized();
    if (linear.input_transform.identity() || !rounded || set.expert >= kComparedExperts) return;
    auto input =
        std::ranges::find_if(inputs, [&](const Input& i) { return Alike(c, i.first, first); });
    if (input == inputs.end()) input = inputs.insert(input, {first});
    input->planned += planned.ProductError(set);
    input->plain += plain.ProductError(set);
  });
  plain.stream().Finish();
  return inputs;
}

}  // namespace

void ChooseTransforms(Backend& backend, const ModelConfig& c, const Recipe& recipe,
                      Rotator& rotator, std::span<const int32_t> ids, int64_t context, Plan& plan,
                      const std::function<void(double)>& progress) {
  const size_t count = std::min(ids.size(), static_cast<size_t>(kTransformWindows * context));
  Variant planned(backend, c, recipe, rotator, plan, ids.first(count), context);
  std::vector<ChannelScales> scales = rotator.scales(), keys = scales;
  for (ChannelScales& layer : keys) layer.norms = {};
  Rotator unscaled = rotator;
  unscaled.Scale(std::move(keys));
  Variant plain(backend, c, recipe, unscaled, Plain(plan, c), ids.first(count), context);
  plain.stream().Follow(planned.stream());
  Json& left_out = plan.provenance["transforms_left_out"] = Json::object();
  for (int64_t i = 0; i < c.layers; ++i) {
    for (const Input& input : Compare(c, plan, i, planned, plain)) {
      if (input.plain >= input.planned) continue;
      for (Role role : c.layer_roles(i)) {
        if (FixedPlan(role) != nullptr || !Alike(c, input.first, role)) continue;
        plan.linears[LinearName(i, role)].LeaveOutTransform();
      }
      const auto norm = c.NormInFront(input.first);
      if (norm && !scales.empty()) scales[static_cast<size_t>(i)].norms[*norm].clear();
      left_out[RoleName(KindOf(input.first))].push_back(i);
    }
    progress(static_cast<double>(i + 1));
  }
  rotator.Scale(std::move(scales));
}

}  // namespace nibble
