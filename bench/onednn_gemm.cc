// SPDX-License-Identifier: Apache-2.0
//
// Times oneDNN's s8 x s8 -> s32 matrix product through its public interface, for bench/peers.
//
//   onednn_gemm M N K
//
// The weights are reordered once, outside the timing, into the layout that the library prefers, as
// Nibble prepares its weights at load. Speaks as llama_timer does: "ready", then for each line on
// standard input the median microseconds of one product. OMP_NUM_THREADS sets the threads.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <oneapi/dnnl/dnnl.hpp>
#include <random>
#include <vector>

using dnnl::memory;

namespace {

constexpr int kProductsPerRun = 21;

dnnl::matmul::primitive_desc Describe(const dnnl::engine& engine, const memory::desc& a,
                                      const memory::desc& b, const memory::desc& c) {
#if DNNL_VERSION_MAJOR >= 3
  return {engine, a, b, c};
#else
  return {dnnl::matmul::desc(a, b, c), engine};
#endif
}

void FillRandom(memory& m, size_t count) {
  std::mt19937 random(1);
  auto* data = static_cast<int8_t*>(m.get_data_handle());
  for (size_t i = 0; i < count; ++i) data[i] = static_cast<int8_t>(random() % 255 - 127);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const memory::dim m = std::atoll(argv[1]), n = std::atoll(argv[2]), k = std::atoll(argv[3]);
  using Type = memory::data_type;
  using Tag = memory::format_tag;
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const memory::desc a_desc({m, k}, Type::s8, Tag::ab), c_desc({m, n}, Type::s32, Tag::ab);
  const auto plan = Describe(engine, a_desc, {{k, n}, Type::s8, Tag::any}, c_desc);
  memory a(a_desc, engine), c(c_desc, engine), b(plan.weights_desc(), engine);
  memory plain_b({{k, n}, Type::s8, Tag::ab}, engine);
  FillRandom(a, static_cast<size_t>(m * k));
  FillRandom(plain_b, static_cast<size_t>(k * n));
  dnnl::reorder(plain_b, b).execute(stream, plain_b, b);
  const dnnl::matmul product(plan);
  const auto run = [&] {
    const auto start = std::chrono::steady_clock::now();
    product.execute(stream, {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}});
    stream.wait();
    const std::chrono::duration<double, std::micro> t = std::chrono::steady_clock::now() - start;
    return t.count();
  };
  run();
  const dnnl_version_t* v = dnnl::version();
  std::printf("onednn\t%d.%d.%d\nkernel\t%s\nready\n", v->major, v->minor, v->patch,
              plan.impl_info_str());
  std::fflush(stdout);
  char line[16];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    std::vector<double> times;
    for (int i = 0; i < kProductsPerRun; ++i) times.push_back(run());
    std::nth_element(times.begin(), times.begin() + kProductsPerRun / 2, times.end());
    std::printf("%.1f\n", times[kProductsPerRun / 2]);
    std::fflush(stdout);
  }
}
