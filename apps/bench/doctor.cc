// SPDX-License-Identifier: Apache-2.0
// `nibble doctor`: what this machine offers, what of it Nibble uses, and what to change.
#include <cblas.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "apps/bench/bench.h"
#include "apps/cli/inspect_kernels.h"
#include "base/cpu_features.h"
#include "base/memory.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "compute/devices.h"
#include "models/families/shapes.h"
#include "quantize/plan/make_plan.h"
#include "source/hub_cache.h"
#include "transforms/blas.h"

namespace nibble::cli {
namespace {

struct Finding {
  std::string name, value;
  std::string advice = {};  // one line; empty: all is well
};

// The file's first line, or "" if it cannot be read.
std::string FirstLine(const char* path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

Finding Processor() {
  std::stringstream text;
  text << std::ifstream("/proc/cpuinfo").rdbuf();
  const std::string all = text.str();
  std::smatch name;
  const bool named = std::regex_search(all, name, std::regex("model name\\s*: ([^\n]*)"));
  std::string levels;
  for (const Isa isa : kVectorIsas) {
    if (MachineHas(isa)) levels += fmt::format(", {}", IsaName(isa));
  }
  return {"processor", (named ? name[1].str() : "unknown") + levels,
          levels.empty()
              ? "AVX2 and FMA are missing: everything runs in plain C++, many times slower"
              : ""};
}

Finding Kernels() {
  const Isa active = ActiveIsa(), best = DetectedIsa();
  const Plan plan = MakePlan(FindShape("llama3-8b"), kW4a8Recipe);
  const LinearPlan& linear = plan.at(0, Role::kQ);
  const auto backend = MakeBackend("cpu", false);
  const std::string names = KernelsText(
      [&](const ProductFormat& p, int64_t tokens) { return backend->KernelFor(p, tokens); },
      {linear.weights, linear.activations, 4096});
  return {"kernels", fmt::format("{}; of the default's products {}", IsaName(active), names),
          active == best ? ""
                         : fmt::format("NIBBLE_ISA is set and holds them back; without it: {}",
                                       IsaName(best))};
}

// Cores whose time a container may take, or 0 without a limit (control groups, version 2).
double CoresOfContainer() {
  std::istringstream in(FirstLine("/sys/fs/cgroup/cpu.max"));
  double quota = 0, period = 0;
  return in >> quota >> period && period > 0 ? quota / period : 0;
}

Finding ThreadCount() {
  const double cores = CoresOfContainer();
  Finding finding = {"threads", fmt::format("{}", Threads())};
  if (cores <= 0) return finding;
  finding.value += fmt::format(", of a container with the time of {:.1f} cores", cores);
  if (cores + 0.5 < Threads()) {
    finding.advice = fmt::format("more threads than that wait for each other; use --threads {}",
                                 std::max(1, static_cast<int>(cores)));
  }
  return finding;
}

Finding Memory() {
  const std::optional<uint64_t> bytes = AvailableMemory();
  if (!bytes) return {"memory", "unknown"};
  const auto free = static_cast<double>(*bytes);
  return {"memory", BytesText(free) + " free",
          free < 2e9
              ? "a model of 1 billion weights takes about 0.8 GB in 4 bits; end other programs"
              : ""};
}

Finding HugePages() {
  const std::string line = FirstLine("/sys/kernel/mm/transparent_hugepage/enabled");
  const size_t first = line.find('['), last = line.find(']');
  if (first == std::string::npos || last == std::string::npos || last < first) {
    return {"huge pages", "unknown"};
  }
  const std::string mode = line.substr(first + 1, last - first - 1);
  return {"huge pages", mode,
          mode == "never" ? "weights take more page tables; as root: echo madvise > "
                            "/sys/kernel/mm/transparent_hugepage/enabled"
                          : ""};
}

Finding Blas() {
  const std::string better = BetterBlasCore();
  return {"OpenBLAS", openblas_get_config(),
          better.empty() ? ""
                         : fmt::format("it takes this processor for an older one; nibble sets "
                                       "OPENBLAS_CORETYPE={} where it needs it, programs that use "
                                       "libnibble have to",
                                       better)};
}

Finding Gpu() {
  const bool present = std::filesystem::exists("/dev/nvidiactl");
  if (!HasGpu()) {
    return {"GPU", present ? "there, but not usable" : "none",
            present ? "build with the CUDA toolkit (cmake -DNIBBLE_CUDA=ON); GPUs of compute "
                      "capability 8.0 and newer run"
                    : ""};
  }
  try {
    const auto backend = MakeBackend("cuda:0", false);
    const auto free = static_cast<double>(backend->FreeMemory().value_or(0));
    return {"GPU", fmt::format("{}, {} free", backend->Name(), BytesText(free))};
  } catch (const Error& error) {  // taken by other programs, say
    return {"GPU", "there, but not usable", error.what()};
  }
}

Finding Caches() {
  const std::string cache = UserCache();
  if (cache.empty()) {
    return {"caches", "none",
            "neither HOME nor XDG_CACHE_HOME is set: models are rounded again at every start"};
  }
  return {"caches", fmt::format("{}/nibble; downloads in {}", cache, HubCache())};
}

std::vector<Finding> Peaks(const Common& common) {
  std::vector<Finding> findings;
  for (const cpu::Peak& peak : MeasurePeaks(common)) {
    const bool bytes = peak.name == "memory read";
    findings.push_back(
        {std::string(peak.name),
         fmt::format("{:.2f} {}", peak.median / (bytes ? 1e9 : 1e12), bytes ? "GB/s" : "TOPS")});
  }
  return findings;
}

}  // namespace

void RunDoctor(const BenchArguments&, const Common& common) {
  std::vector<Finding> findings = {{"nibble", NIBBLE_VERSION},
                                   Processor(),
                                   Kernels(),
                                   ThreadCount(),
                                   Memory(),
                                   HugePages(),
                                   Blas(),
                                   Gpu(),
                                   Caches()};
  for (Finding& peak : Peaks(common)) findings.push_back(std::move(peak));
  Json json = Json::object(), advice = Json::array();
  std::vector<std::vector<std::string>> table = {{"what", "here"}};
  for (const Finding& finding : findings) {
    json[finding.name] = Printable(finding.value);
    table.push_back({finding.name, finding.value});
    if (!finding.advice.empty()) advice.push_back(finding.name + ": " + finding.advice);
  }
  json["advice"] = advice;
  if (common.json) return PrintJson(json);
  fmt::print("{}", Table(table));
  for (const Json& line : advice) fmt::print("-> {}\n", line.get<std::string>());
  if (advice.empty()) fmt::print("-> all is as it should be\n");
}

}  // namespace nibble::cli
