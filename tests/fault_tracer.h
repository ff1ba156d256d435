// SPDX-License-Identifier: Apache-2.0
// Runs the program under ptrace and spoils one of its system calls: the n-th of those that touch
// files below a directory. A seccomp filter stops it at such calls alone, so the rest runs at full
// speed; nothing is preloaded, so every build of the program can be tried.
#pragma once

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>

#include <cerrno>
#include <cstddef>

#include "tests/e2e_testing.h"

namespace nibble {

enum class Fault { kNone, kKill, kIoError, kDiskFull, kShort, kInterrupted };

// A system call on files: which arguments are its path, descriptor and size, and whether it changes
// something on disk.
struct FileCall {
  int number;
  int path, descriptor, size;  // index of the argument, -1 = none
  bool changes;
};
inline constexpr FileCall kFileCalls[] = {
    {SYS_openat, 1, -1, -1, true},     {SYS_open, 0, -1, -1, true},
    {SYS_read, -1, 0, 2, false},       {SYS_pread64, -1, 0, 2, false},
    {SYS_readv, -1, 0, -1, false},     {SYS_write, -1, 0, 2, true},
    {SYS_writev, -1, 0, -1, true},     {SYS_pwrite64, -1, 0, 2, true},
    {SYS_fsync, -1, 0, -1, true},      {SYS_fdatasync, -1, 0, -1, true},
    {SYS_rename, 1, -1, -1, true},     {SYS_renameat, 3, -1, -1, true},
    {SYS_renameat2, 3, -1, -1, true},  {SYS_unlink, 0, -1, -1, true},
    {SYS_unlinkat, 1, -1, -1, true},   {SYS_rmdir, 0, -1, -1, true},
    {SYS_mkdir, 0, -1, -1, true},      {SYS_mkdirat, 1, -1, -1, true},
    {SYS_flock, -1, 0, -1, true},      {SYS_sendfile, -1, 0, 3, true},
    {SYS_ftruncate, -1, 0, -1, true},  {SYS_copy_file_range, -1, 2, 4, true},
    {SYS_chmod, 0, -1, -1, true},      {SYS_fchmod, -1, 0, -1, true},
    {SYS_fchmodat, 1, -1, -1, true},   {SYS_mmap, -1, 4, -1, false},
    {SYS_getdents64, -1, 0, -1, false}};

class FaultTracer {
 public:
  // `directory`: absolute, without a slash at its end.
  FaultTracer(Arguments arguments, std::string directory)
      : arguments_(std::move(arguments)), directory_(std::move(directory)) {}

  // The number of calls in the last run, and whether the call with this number, from 0 on, changes
  // something.
  int64_t calls() const { return static_cast<int64_t>(changes_.size()); }
  bool changes(int64_t call) const { return changes_[static_cast<size_t>(call)]; }

  Result Run(Fault fault, int64_t at) {
    char name[] = "/tmp/nibble_trace_XXXXXX";
    const int errors = mkstemp(name);
    changes_.clear();
    const pid_t child = fork();
    if (child == 0) Start(errors);
    close(errors);
    int status = 0;
    waitpid(child, &status, 0);
    ptrace(PTRACE_SETOPTIONS, child, 0,
           PTRACE_O_TRACESECCOMP | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL);
    ptrace(PTRACE_CONT, child, 0, 0);
    pid_t stopped = 0;
    while ((stopped = waitpid(-1, &status, __WALL)) > 0) {
      if (!WIFSTOPPED(status)) {
        if (stopped == child) break;
        continue;  // a thread has ended
      }
      int signal = WSTOPSIG(status);
      if (status >> 8 == (SIGTRAP | PTRACE_EVENT_SECCOMP << 8)) Spoil(stopped, fault, at);
      if (signal == SIGTRAP || signal == SIGSTOP) signal = 0;  // the tracer's own
      ptrace(PTRACE_CONT, stopped, 0, signal);
    }
    Result result;
    result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    result.err = Slurp(name);
    unlink(name);
    return result;
  }

 private:
  [[noreturn]] void Start(int errors) const {
    const int nothing = open("/dev/null", O_RDWR);
    dup2(nothing, 0);
    dup2(nothing, 1);
    dup2(errors, 2);
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);  // its leak check would need to trace
    std::vector<sock_filter> filter = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
    for (const FileCall& call : kFileCalls) {
      filter.push_back(
          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call.number), 0, 1));
      filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE));
    }
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    sock_fprog program = {static_cast<unsigned short>(filter.size()), filter.data()};
    std::vector<char*> argv;
    for (const std::string& a : arguments_) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    raise(SIGSTOP);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
    execv(argv[0], argv.data());
    _exit(127);
  }

  // Reads a page at a time, since the next one may not be mapped.
  static std::string PathAt(pid_t process, uint64_t address) {
    constexpr uint64_t kPage = 4096;
    std::string path;
    while (path.find('\0') == path.npos) {
      char text[kPage];
      const size_t bytes = kPage - address % kPage;
      const iovec here = {text, bytes}, there = {reinterpret_cast<void*>(address), bytes};
      const ssize_t got = process_vm_readv(process, &here, 1, &there, 1, 0);
      if (got <= 0) break;
      path.append(text, static_cast<size_t>(got));
      address += static_cast<uint64_t>(got);
    }
    return path.substr(0, path.find('\0'));
  }

  void Spoil(pid_t process, Fault fault, int64_t at) {
    user_regs_struct r;
    ptrace(PTRACE_GETREGS, process, 0, &r);
    const unsigned long long arguments[] = {r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9};
    for (const FileCall& call : kFileCalls) {
      if (call.number != static_cast<int>(r.orig_rax)) continue;
      std::string path;
      if (call.path >= 0) {
        path = PathAt(process, arguments[call.path]);
      } else {
        std::error_code ignored;
        const auto descriptor = static_cast<int>(arguments[call.descriptor]);
        path = std::filesystem::read_symlink(
            "/proc/" + std::to_string(process) + "/fd/" + std::to_string(descriptor), ignored);
      }
      if (!path.starts_with(directory_)) return;
      const bool opens = call.number == SYS_openat || call.number == SYS_open;
      const auto flags = opens ? arguments[call.path + 1] : 0;
      changes_.push_back(call.changes && (!opens || (flags & O_CREAT) != 0));
      if (calls() - 1 != at) return;
      if (fault == Fault::kKill) kill(process, SIGKILL);
      const int error = fault == Fault::kIoError       ? EIO
                        : fault == Fault::kDiskFull    ? ENOSPC
                        : fault == Fault::kInterrupted ? EINTR
                                                       : 0;
      if (error != 0) {
        r.orig_rax = static_cast<unsigned long long>(-1);  // the call is not made; its result:
        r.rax = static_cast<unsigned long long>(-error);
        ptrace(PTRACE_SETREGS, process, 0, &r);
      }
      if (fault == Fault::kShort && call.size >= 0 && arguments[call.size] > 1) {
        unsigned long long* registers[] = {&r.rdi, &r.rsi, &r.rdx, &r.r10, &r.r8, &r.r9};
        *registers[call.size] /= 2;
        ptrace(PTRACE_SETREGS, process, 0, &r);
      }
    }
  }

  const Arguments arguments_;
  const std::string directory_;
  std::vector<bool> changes_;
};

}  // namespace nibble
