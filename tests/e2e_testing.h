// SPDX-License-Identifier: Apache-2.0
// Running the program as a user does, and a small model made from samples/tiny by a reader and
// writer of safetensors that are independent of the program's.
#pragma once

#include <fcntl.h>
#include <malloc.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <thread>
#include <vector>

#include "base/json.h"
#include "io/io_testing.h"

namespace nibble {

inline const std::string kTiny = NIBBLE_SOURCE_DIR "/samples/tiny";
inline const std::string kEvaluationText = NIBBLE_SOURCE_DIR "/samples/evaluation.txt";

using Arguments = std::vector<std::string>;

inline Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The arguments in a text, which spaces separate.
inline Arguments Words(const std::string& text) {
  std::istringstream stream(text);
  return Arguments(std::istream_iterator<std::string>(stream), {});
}

inline std::string Slurp(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

inline void Spill(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

struct Result {
  int code = -1;  // 128 + signal for a killed process, as in shells
  std::string out, err;
  double seconds = 0, peak_bytes = 0;  // processor time, resident memory

  Json json() const { return ParseJson(out, "standard output"); }
};

// A running process. Its output is collected in files, so that no pipe can fill up.
class Process {
 public:
  // `environment` has NAME=VALUE entries, which win over those of this process.
  Process(const Arguments& arguments, const std::string& input, const Arguments& environment) {
    std::string name = (std::filesystem::temp_directory_path() / "nibble_run_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    files_ = name;
    Spill(files_ / "in", input);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    const char* names[] = {"in", "out", "err"};
    for (int fd = 0; fd < 3; ++fd) {
      posix_spawn_file_actions_addopen(&actions, fd, (files_ / names[fd]).c_str(),
                                       fd == 0 ? O_RDONLY : O_WRONLY | O_CREAT, 0600);
    }
    std::vector<char*> argv, env;
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    for (const std::string& e : environment) env.push_back(const_cast<char*>(e.c_str()));
    std::string cache = "XDG_CACHE_HOME=" + (files_ / "cache").string();  // not the user's
    env.push_back(cache.data());
    for (char** e = environ; *e != nullptr; ++e) env.push_back(*e);  // equal names: the first wins
    argv.push_back(nullptr);
    env.push_back(nullptr);
    // The new process begins in this one's memory, whose peak would count as its own. So the peak
    // is set to the memory in use, after freed memory is given back.
    malloc_trim(0);
    std::ofstream("/proc/self/clear_refs") << 5;
    if (posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), env.data()) != 0) {
      throw std::runtime_error(arguments[0] + " does not start");
    }
    posix_spawn_file_actions_destroy(&actions);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    if (pid_ > 0) {
      Signal(SIGKILL);
      Wait();
    }
    std::filesystem::remove_all(files_);
  }

  void Signal(int signal) const { kill(pid_, signal); }
  std::string Output() const { return Slurp(files_ / "out"); }  // so far
  std::string Errors() const { return Slurp(files_ / "err"); }

  Result Wait() {
    int status = 0;
    rusage used{};
    wait4(pid_, &status, 0, &used);
    pid_ = -1;
    const auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    };
    return {.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
            .out = Slurp(files_ / "out"),
            .err = Slurp(files_ / "err"),
            .seconds = seconds(used.ru_utime) + seconds(used.ru_stime),
            .peak_bytes = static_cast<double>(used.ru_maxrss) * 1024};
  }

 private:
  std::filesystem::path files_;
  pid_t pid_ = -1;
};

// Runs the program. `quantize` measures its loss only where a test asks for it: on these models
// that takes longer than all else, under sanitizers above all.
inline Result Nibble(const Arguments& arguments, const std::string& input = "",
                     const Arguments& environment = {}) {
  Arguments all = Arguments{NIBBLE_PROGRAM} + arguments;
  if (!arguments.empty() && arguments[0] == "quantize" &&
      std::ranges::count(arguments, "--loss-windows") == 0) {
    all = all + Arguments{"--loss-windows", "0"};
  }
  return Process(all, input, environment).Wait();
}

// Checks the condition every millisecond, for at most a minute.
template <typename Condition>
bool WaitUntil(Condition condition) {
  for (int i = 0; i < 60'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

// Header and data of a safetensors file: u64 length, JSON, bytes.
struct RawTensors {
  Json header;
  std::string data;

  static RawTensors Read(const std::string& path) {
    const std::string bytes = Slurp(path);
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof(length));
    return {ParseJson(bytes.substr(8, length), path), bytes.substr(8 + length)};
  }
  // Writes tensors at odd addresses, which the format allows although most writers align.
  void Write(const std::string& path) const {
    std::string text = header.dump();
    text.append(text.size() % 2 == 0 ? 1 : 2, ' ');
    Spill(path, FileOf(text, 0) + data);
  }
};

// The first 3 layers of samples/tiny with 384 of their 688 inner channels: a model in every
// respect (though not a good one) that quantizes in half a second and that groups of 128 divide.
inline void MakeSmallModel(const std::string& directory) {
  constexpr size_t kHidden = 256, kOldInner = 688, kInner = 384, kBytes = 2;  // bf16
  constexpr int kLayers = 3;
  const RawTensors tiny = RawTensors::Read(kTiny + "/model.safetensors");
  RawTensors small = {.header = Json::object()};
  for (const auto& [name, entry] : tiny.header.items()) {
    if (!entry.contains("data_offsets")) continue;
    if (name.starts_with("model.layers.") && name[std::strlen("model.layers.")] - '0' >= kLayers) {
      continue;
    }
    const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    std::string bytes = tiny.data.substr(begin, end - begin);
    Json shape = entry["shape"];
    if (name.find("gate_proj") != std::string::npos || name.find("up_proj") != std::string::npos) {
      bytes.resize(kInner * kHidden * kBytes);
      shape[0] = kInner;
    } else if (name.find("down_proj") != std::string::npos) {
      std::string columns;
      for (size_t row = 0; row < kHidden; ++row) {
        columns += bytes.substr(row * kOldInner * kBytes, kInner * kBytes);
      }
      bytes = columns;
      shape[1] = kInner;
    }
    const size_t at = small.data.size();
    small.data += bytes;
    small.header[name] = {
        {"dtype", entry["dtype"]}, {"shape", shape}, {"data_offsets", {at, at + bytes.size()}}};
  }
  std::filesystem::create_directories(directory);
  small.Write(directory + "/model.safetensors");
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    std::filesystem::copy_file(kTiny + "/" + name, directory + "/" + name);
  }
  Json config = ParseJson(Slurp(kTiny + "/config.json"), "config.json");
  config["num_hidden_layers"] = kLayers;
  config["intermediate_size"] = kInner;
  Spill(directory + "/config.json", config.dump());
}

// The small model as a Mixtral of three experts: those of layer i are the FFNs of layers i, i + 1
// and i + 2, counted around, behind a router of random numbers.
inline void MakeSmallMixture(const std::string& directory) {
  constexpr int kLayers = 3, kHidden = 256;
  MakeSmallModel(directory);
  const RawTensors dense = RawTensors::Read(directory + "/model.safetensors");
  RawTensors mixture = {.header = Json::object()};
  const auto add = [&](const std::string& name, const Json& shape, const std::string& bytes) {
    const size_t at = mixture.data.size();
    mixture.data += bytes;
    mixture.header[name] = {
        {"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {at, at + bytes.size()}}};
  };
  const std::map<std::string, std::string> names = {
      {"gate_proj", "w1"}, {"down_proj", "w2"}, {"up_proj", "w3"}};
  for (const auto& [name, entry] : dense.header.items()) {
    const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    const std::string bytes = dense.data.substr(begin, end - begin);
    const size_t mlp = name.find(".mlp.");
    if (mlp == std::string::npos) {
      add(name, entry["shape"], bytes);
      continue;
    }
    const int of = name[std::strlen("model.layers.")] - '0';
    const std::string kind = name.substr(mlp + 5, name.find(".weight") - mlp - 5);
    for (int expert = 0; expert < kLayers; ++expert) {
      const int layer = (of + kLayers - expert) % kLayers;
      add("model.layers." + std::to_string(layer) + ".block_sparse_moe.experts." +
              std::to_string(expert) + "." + names.at(kind) + ".weight",
          entry["shape"], bytes);
    }
  }
  for (int layer = 0; layer < kLayers; ++layer) {
    std::string bytes;
    for (int i = 0; i < kLayers * kHidden; ++i) {  // bf16 of 2^-5 to 2^-4, either sign
      const auto hash = static_cast<uint32_t>(i * 2654435761u) >> 16;
      bytes += static_cast<char>(hash & 0x7F);
      bytes += static_cast<char>((hash & 0x80) | 0x3D);
    }
    add("model.layers." + std::to_string(layer) + ".block_sparse_moe.gate.weight",
        {kLayers, kHidden}, bytes);
  }
  mixture.Write(directory + "/model.safetensors");
  Json config = ParseJson(Slurp(directory + "/config.json"), "config.json");
  config["model_type"] = "mixtral";
  config["num_local_experts"] = kLayers;
  config["num_experts_per_tok"] = 2;
  Spill(directory + "/config.json", config.dump());
}

// A fresh directory with the small model in it.
class EndToEnd : public TemporaryDirectoryTest {
 protected:
  void SetUp() override {
    TemporaryDirectoryTest::SetUp();
    small_ = Path("small");
    MakeSmallModel(small_);
  }

  // Quantizes the small model by the recipe quarot unless `options` name another. Returns the JSON
  // report.
  Json Quantize(const std::string& out, const Arguments& options) const {
    Arguments quantize = {"quantize", small_, "-o", Path(out), "--json"};
    if (std::ranges::count(options, "--recipe") == 0) {
      quantize.insert(quantize.end(), {"--recipe", "quarot"});
    }
    const Result r = Nibble(quantize + options);
    EXPECT_EQ(r.code, 0) << r.err;
    return r.code == 0 ? r.json() : Json();
  }

  // Runs `eval VERB MODEL` on the first windows of the evaluation text.
  Json Eval(const std::string& verb, const std::string& model, const Arguments& options = {},
            const Arguments& environment = {}) const {
    const Result r = Nibble(Arguments{"eval", verb, model, "--text", kEvaluationText, "--json",
                                      "--windows", "2", "--context", "128"} +
                                options,
                            "", environment);
    EXPECT_EQ(r.code, 0) << r.err;
    return r.code == 0 ? r.json() : Json();
  }

  // The content of every file by its name.
  std::map<std::string, std::string> Files(const std::string& directory) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(Path(directory))) {
      files[entry.path().filename().string()] = Slurp(entry.path());
    }
    return files;
  }

  void ExpectSameFiles(const std::string& a, const std::string& b) const {
    const auto left = Files(a), right = Files(b);
    EXPECT_EQ(left.size(), right.size());
    for (const auto& [name, bytes] : left) {
      EXPECT_TRUE(right.contains(name) && right.at(name) == bytes) << b << "/" << name;
    }
  }

  std::string small_;
};

}  // namespace nibble
