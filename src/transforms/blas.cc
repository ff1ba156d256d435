// SPDX-License-Identifier: Apache-2.0
#include "transforms/blas.h"

#include <cblas.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <mutex>
#include <vector>

#include "base/cpu_features.h"
#include "base/error.h"
#include "base/progress.h"
#include "base/thread_pool.h"

// OpenBLAS's own, in no header: a free buffer of its table, mapped if it is new, and its return.
extern "C" void* blas_memory_alloc(int);
extern "C" void blas_memory_free(void*);

namespace nibble {
namespace {

// 128 MiB and what aligns them in OpenBLAS for x86-64. Address space: only pages in use take
// memory.
constexpr size_t kBufferBytes = size_t{129} << 20;

void RequireAddressSpace(int buffers) {
  const size_t bytes = static_cast<size_t>(buffers) * kBufferBytes;
  void* room = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) {
    Fail(
        "out of memory: OpenBLAS needs {} of address space for {} threads; raise the limit "
        "(ulimit -v) or use fewer --threads",
        BytesText(static_cast<double>(bytes)), Threads());
  }
  munmap(room, bytes);
}

}  // namespace

void PrepareBlas() {
  static std::mutex mutex;
  static int prepared = 0;
  const std::lock_guard<std::mutex> lock(mutex);
  openblas_set_num_threads(1);
  const int threads = Threads();
  if (threads <= prepared) return;
  RequireAddressSpace(threads - prepared);
  std::vector<void*> buffers(static_cast<size_t>(threads));
  for (void*& buffer : buffers) buffer = blas_memory_alloc(0);
  const bool all = std::ranges::find(buffers, nullptr) == buffers.end();
  for (void* buffer : buffers) {
    if (buffer != nullptr) blas_memory_free(buffer);
  }
  if (!all) Fail("OpenBLAS cannot serve {} threads; use fewer --threads", threads);
  prepared = threads;
}

std::string BetterBlasCore() {
  constexpr std::array kWithAvx2 = {"HASWELL",  "EXCAVATOR",  "ZEN",
                                    "SKYLAKEX", "COOPERLAKE", "SAPPHIRERAPIDS"};
  std::string core = openblas_get_corename();
  for (char& c : core) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  const bool known = std::ranges::find(kWithAvx2, core) != kWithAvx2.end();
  if (known || !MachineHas(Isa::kAvx2)) return "";
  return MachineHas(Isa::kAvx512) ? "SkylakeX" : "Haswell";
}

void Multiply(const Matrix<double>& a, const Matrix<double>& b, bool turned, Matrix<double>& out,
              double factor, double keep) {
  NIBBLE_CHECK(a.cols == (turned ? b.cols : b.rows) && out.rows == a.rows &&
                   out.cols == (turned ? b.rows : b.cols),
               "[{}, {}] by [{}, {}] is no [{}, {}]", a.rows, a.cols, b.rows, b.cols, out.rows,
               out.cols);
  constexpr int64_t kRows = 128;  // of a task; BLAS arranges b anew for each
  ParallelFor(static_cast<size_t>((a.rows + kRows - 1) / kRows), [&](size_t task) {
    const int64_t first = static_cast<int64_t>(task) * kRows;
    cblas_dgemm(CblasRowMajor, CblasNoTrans, turned ? CblasTrans : CblasNoTrans,
                static_cast<int>(std::min(kRows, a.rows - first)), static_cast<int>(out.cols),
                static_cast<int>(a.cols), factor, a.row(first).data(), static_cast<int>(a.cols),
                b.data.data(), static_cast<int>(b.cols), keep, out.row(first).data(),
                static_cast<int>(out.cols));
  });
}

}  // namespace nibble
