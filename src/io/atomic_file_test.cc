// SPDX-License-Identifier: Apache-2.0
// This program replaces the system calls that publish data by ones that can fail or kill the
// process, so that every moment between two of them is tested.
#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "io/io_testing.h"
#include "io/mmap_file.h"
#include "io/publish.h"
#include "io/sha256.h"

namespace {

struct Faults {
  int calls_until_death = -1;  // of write, fsync, rename and renameat2 together
  int64_t disk_bytes = -1;     // then ENOSPC
  int64_t max_per_write = INT64_MAX;
  bool interrupt_next_write = false;
  bool plain_rename_only = false;
} faults;

void CountCall() {
  if (faults.calls_until_death == 0) _exit(9);
  if (faults.calls_until_death > 0) --faults.calls_until_death;
}

}  // namespace

extern "C" ssize_t write(int fd, const void* data, size_t size) {
  CountCall();
  if (std::exchange(faults.interrupt_next_write, false)) {
    errno = EINTR;
    return -1;
  }
  auto allowed = std::min(static_cast<int64_t>(size), faults.max_per_write);
  if (faults.disk_bytes >= 0) {
    if (faults.disk_bytes == 0) {
      errno = ENOSPC;
      return -1;
    }
    allowed = std::min(allowed, faults.disk_bytes);
    faults.disk_bytes -= allowed;
  }
  return syscall(SYS_write, fd, data, static_cast<size_t>(allowed));
}

extern "C" int fsync(int fd) {
  CountCall();
  return static_cast<int>(syscall(SYS_fsync, fd));
}

extern "C" int rename(const char* from, const char* to) noexcept {
  CountCall();
  return static_cast<int>(syscall(SYS_rename, from, to));
}

extern "C" int renameat2(int from_fd, const char* from, int to_fd, const char* to,
                         unsigned flags) noexcept {
  CountCall();
  if (flags != 0 && faults.plain_rename_only) {
    errno = EINVAL;
    return -1;
  }
  return static_cast<int>(syscall(SYS_renameat2, from_fd, from, to_fd, to, flags));
}

namespace nibble {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class AtomicFileTest : public TemporaryDirectoryTest {
 protected:
  void TearDown() override {
    faults = {};
    TemporaryDirectoryTest::TearDown();
  }

  // Relative path -> content of every file of a directory; nullopt if it does not exist.
  using Tree = std::map<std::string, std::string>;
  std::optional<Tree> Read(const std::string& name) const {
    if (!fs::exists(root_ / name)) return std::nullopt;
    Tree tree;
    for (const auto& entry : fs::recursive_directory_iterator(root_ / name)) {
      if (!entry.is_regular_file()) continue;
      tree[fs::relative(entry.path(), root_ / name).string()] =
          ReadFile(entry.path().string(), 1 << 20);
    }
    return tree;
  }
  void Make(const std::string& name, const Tree& tree) const {
    for (const auto& [file, text] : tree) {
      fs::create_directories((root_ / name / file).parent_path());
      WriteFileAtomic(Path(name + "/" + file), text);
    }
  }
  // Runs `action` in a child that dies before its n-th call; true if the child survived.
  template <typename Action>
  bool SurvivesWithDeathAt(int n, Action action) {
    const pid_t child = fork();
    if (child == 0) {
      faults.calls_until_death = n;
      action();
      _exit(0);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 9));
    return WEXITSTATUS(status) == 0;
  }

  const Tree old_ = {{"a", "old"}, {"o", "x"}};
  const Tree new_ = {{"a", "new!"}, {"b", "new b"}};
};

TEST_F(AtomicFileTest, WritesAndReplaces) {
  WriteFileAtomic(Path("a"), "first");
  EXPECT_EQ(ReadFile(Path("a"), 100), "first");
  const mode_t mask = umask(022);
  umask(mask);
  struct stat info;
  ASSERT_EQ(stat(Path("a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0666 & ~mask);
  WriteFileAtomic(Path("a"), "");
  EXPECT_EQ(Read(""), (Tree{{"a", ""}}));
}

TEST_F(AtomicFileTest, WithoutCommitLeavesNothing) {
  {
    AtomicFile file(Path("a"));
    file.Write("half");
    EXPECT_EQ(Read("")->size(), 1);
    EXPECT_FALSE(fs::exists(Path("a")));
  }
  EXPECT_EQ(Read(""), Tree{});
  WriteFileAtomic(Path("a"), "kept");
  { AtomicFile(Path("a")).Write("dropped"); }
  EXPECT_EQ(Read(""), (Tree{{"a", "kept"}}));
}

TEST_F(AtomicFileTest, ShortAndInterruptedWritesAreContinued) {
  faults.max_per_write = 7;
  faults.interrupt_next_write = true;
  std::string text;
  Rng rng(1);
  for (int i = 0; i < 1000; ++i) text.push_back(static_cast<char>(rng.Next()));
  WriteFileAtomic(Path("a"), text);
  EXPECT_EQ(ReadFile(Path("a"), 1000), text);
}

TEST_F(AtomicFileTest, DiskFullIsOneLineAndKeepsTheOldFile) {
  WriteFileAtomic(Path("a"), "kept");
  faults.disk_bytes = 10;
  const std::string error = ErrorOf([&] { WriteFileAtomic(Path("a"), std::string(100, 'x')); });
  faults = {};
  EXPECT_THAT(error, AllOf(HasSubstr(Path("a")), HasSubstr("disk full"), Not(HasSubstr("\n"))));
  EXPECT_EQ(Read(""), (Tree{{"a", "kept"}}));
}

TEST_F(AtomicFileTest, UnwritableTargetsNameThePath) {
  EXPECT_THAT(ErrorOf([&] { WriteFileAtomic(Path("none/a"), "x"); }),
              AllOf(HasSubstr(Path("none/a")), HasSubstr("No such file")));
  fs::create_directory(Path("d"));
  EXPECT_THAT(ErrorOf([&] { WriteFileAtomic(Path("d"), "x"); }),
              AllOf(HasSubstr(Path("d")), HasSubstr("is a directory")));
}

TEST_F(AtomicFileTest, DeathAtEveryCallLeavesOldOrNew) {
  int n = 0, new_seen = 0;
  for (bool survived = false; !survived; ++n) {
    WriteFileAtomic(Path("a"), "old");
    survived = SurvivesWithDeathAt(n, [&] {
      AtomicFile file(Path("a"));
      file.Write("new ");
      file.Write("content");
      file.Commit();
    });
    const std::string text = ReadFile(Path("a"), 100);
    EXPECT_TRUE(text == "old" || text == "new content") << "call " << n << ": " << text;
    new_seen += text != "old";
  }
  EXPECT_EQ(n, 6);         // two writes, fsync, rename, fsync of the directory; all survived
  EXPECT_EQ(new_seen, 2);  // dead before the last fsync, and survived
}

// Names of one letter belong to the owner of the directory.
bool Known(std::string_view name) {
  return name.size() == 1;
}

TEST_F(AtomicFileTest, PublishMovesACleanedDirectory) {
  Make("from", new_);
  Make("from", {{"a.12-0.tmp", "torn"}});
  {
    const DirectoryLock lock(Path("from"));
    PublishDirectory(Path("from"), Path("to"), false, Known);
  }
  EXPECT_EQ(Read("to"), new_);
  EXPECT_EQ(Read("from"), std::nullopt);
}

TEST_F(AtomicFileTest, PublishRefusesWhatExistsAndWhatIsNotItsOwn) {
  for (const bool plain : {false, true}) {
    faults.plain_rename_only = plain;
    Make("from", new_);
    Make("to", old_);
    EXPECT_THAT(ErrorOf([&] { PublishDirectory(Path("from"), Path("to"), false, Known); }),
                AllOf(HasSubstr(Path("to")), HasSubstr("exists")));
    for (const char* where : {"from/", "to/"}) {
      for (const char* name : {"thesis", "a.tmp", "thesis.12-0.tmp", "sub/a"}) {
        Make(where, {{name, "of the user"}});
        const std::string first = Path(where + std::string(name).substr(0, 3));
        EXPECT_THAT(ErrorOf([&] { PublishDirectory(Path("from"), Path("to"), true, Known); }),
                    AllOf(HasSubstr(first), HasSubstr("not made by nibble")));
        EXPECT_EQ(ReadFile(Path(where + std::string(name)), 100), "of the user");
        fs::remove_all(Path(where + std::string(name)));
        fs::remove_all(Path(where + std::string("sub")));
      }
    }
    EXPECT_EQ(Read("from"), new_);
    EXPECT_EQ(Read("to"), old_);
  }
  EXPECT_THAT(ErrorOf([&] { PublishDirectory(Path("none"), Path("x"), false, Known); }),
              HasSubstr("not a directory"));
  EXPECT_THAT(ErrorOf([&] { PublishDirectory(Path("from"), Path("no/x"), false, Known); }),
              HasSubstr(Path("no/x")));
  EXPECT_EQ(Read("from"), new_);
  // Where names cannot be exchanged, a folder that is in the way stays.
  Make("to.old", {{"a", "of the user"}});
  EXPECT_THAT(ErrorOf([&] { PublishDirectory(Path("from"), Path("to"), true, Known); }),
              HasSubstr(Path("to.old")));
  EXPECT_EQ(Read("to"), old_);
  EXPECT_EQ(Read("to.old"), (Tree{{"a", "of the user"}}));
}

TEST_F(AtomicFileTest, DeathAtEveryCallOfPublishLeavesAWholeDirectoryAndIsCleanedUp) {
  for (const bool plain : {false, true}) {
    int n = 0, old_seen = 0;
    for (bool survived = false; !survived; ++n) {
      for (const char* name : {"from", "to", "to.old"}) fs::remove_all(root_ / name);
      Make("from", new_);
      Make("to", old_);
      survived = SurvivesWithDeathAt(n, [&] {
        faults.plain_rename_only = plain;
        PublishDirectory(Path("from"), Path("to"), true, Known);
      });
      auto tree = Read("to");
      if (tree) tree->erase("replaced");
      EXPECT_TRUE(tree == old_ || tree == new_ || (plain && !tree)) << "call " << n;
      if (!tree) {
        EXPECT_EQ(Read("to.old"), old_);
      }
      old_seen += tree == old_;
      // The next run finds a finished `from`, or nothing of the old content.
      faults.plain_rename_only = plain;
      FinishPublishing(Path("from"), Path("to"), Known);
      if (fs::exists(Path("from"))) PublishDirectory(Path("from"), Path("to"), true, Known);
      faults = {};
      EXPECT_EQ(Read("to"), new_) << "call " << n;
      EXPECT_EQ(Read("from"), std::nullopt);
      EXPECT_EQ(Read("to.old"), std::nullopt);
    }
    // The note: write, sync, rename, sync. 3 files and the directory synced, exchange (or its
    // refusal and two renames).
    EXPECT_EQ(old_seen, plain ? 10 : 9);
    // Then the directory above synced, and OUT once more when the note is gone; the last survived.
    EXPECT_EQ(n, (plain ? 11 : 9) + 2 + 1);
  }
}

TEST_F(AtomicFileTest, OnlyKnownFilesAreRemoved) {
  Make("d", new_);
  Make("d", {{"a.12-0.tmp", "torn"}, {"thesis", "of the user"}});
  RemoveKnownFiles(Path("d"), Known);
  EXPECT_EQ(Read("d"), (Tree{{"thesis", "of the user"}}));
  fs::remove(Path("d/thesis"));
  RemoveKnownFiles(Path("d"), Known);
  EXPECT_FALSE(fs::exists(Path("d")));
}

TEST_F(AtomicFileTest, OnlyTheReplacedDirectoryIsRemoved) {
  Make("to", new_);
  Make("from", old_);
  for (const char* note : {"1:1\n", "", "to\n"}) {
    Make("to", {{"replaced", note}});
    FinishPublishing(Path("from"), Path("to"), Known);
    EXPECT_EQ(Read("from"), old_) << note;
    EXPECT_EQ(Read("to"), new_) << note;
  }
}

TEST_F(AtomicFileTest, LockIsRefusedTwice) {
  {
    const DirectoryLock lock(root_.string());
    for (int i = 0; i < 2; ++i) {
      EXPECT_THAT(ErrorOf([&] { DirectoryLock second(root_.string()); }),
                  AllOf(HasSubstr(root_.string()), HasSubstr("in use")));
    }
  }
  const DirectoryLock again(root_.string());
  EXPECT_THAT(ErrorOf([&] { DirectoryLock none(Path("none")); }), HasSubstr(Path("none/lock")));
}

TEST_F(AtomicFileTest, MappedFileShowsTheBytes) {
  WriteFileAtomic(Path("a"), "bytes");
  MappedFile first(Path("a"));
  const MappedFile moved = std::move(first);
  EXPECT_THAT(moved.bytes(), ElementsAre(std::byte{'b'}, std::byte{'y'}, std::byte{'t'},
                                         std::byte{'e'}, std::byte{'s'}));
  WriteFileAtomic(Path("empty"), "");
  EXPECT_TRUE(MappedFile(Path("empty")).bytes().empty());
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  for (const char* name : {"none", "fifo", ""}) {
    EXPECT_THAT(ErrorOf([&] { MappedFile file(Path(name)); }), HasSubstr(Path(name)));
  }
}

// Resident pages of mapped files, of the whole process.
int64_t MappedKilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "RssFile:") return (status >> word, std::stoll(word));
  }
  return -1;
}

TEST_F(AtomicFileTest, DroppedPagesGiveBackMemoryAndComeBack) {
  constexpr int64_t kKilobytes = 16 << 10;
  std::string text(kKilobytes << 10, 'x');
  for (size_t i = 0; i < text.size(); i += 1000) text[i] = static_cast<char>('a' + i % 26);
  WriteFileAtomic(Path("a"), text);
  const MappedFile file(Path("a"));
  EXPECT_TRUE(std::ranges::equal(file.bytes(), Bytes(text)));
  const int64_t before = MappedKilobytes();
  file.DropPages();
  EXPECT_LT(MappedKilobytes(), before - kKilobytes / 2);
  EXPECT_TRUE(std::ranges::equal(file.bytes(), Bytes(text)));
  WriteFileAtomic(Path("empty"), "");
  MappedFile(Path("empty")).DropPages();
}

// FIPS 180-4 examples (NIST CAVP) and a million "a".
TEST_F(AtomicFileTest, Sha256KnownDigests) {
  const std::map<std::string, std::string> digests = {
      {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
      {std::string(1'000'000, 'a'),
       "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"}};
  for (const auto& [text, digest] : digests) {
    EXPECT_EQ(Sha256(Bytes(text)), digest);
    WriteFileAtomic(Path("a"), text);
    EXPECT_EQ(Sha256File(Path("a")), digest);
    EXPECT_EQ(Sha256FileOnce(Path("a")), digest);  // however new it is
  }
  EXPECT_THROW(Sha256FileOnce(Path("none")), Error);
}

// The CPU time that `function` takes on this thread, in nanoseconds; other load does not count.
int64_t CpuTimeOf(const std::function<void()>& function) {
  const auto now = [] {
    timespec time = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return int64_t{1'000'000'000} * time.tv_sec + time.tv_nsec;
  };
  const int64_t start = now();
  function();
  return now() - start;
}

TEST_F(AtomicFileTest, Sha256OfAnOldFileIsTakenOnce) {
  std::string text(64 << 20, 'a');
  WriteFileAtomic(Path("a"), text);
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));
  std::string digest;
  const auto take = [&] { digest = Sha256FileOnce(Path("a")); };
  const int64_t reading = CpuTimeOf(take);
  EXPECT_EQ(digest, Sha256(Bytes(text)));
  EXPECT_LT(CpuTimeOf(take), reading / 10);  // some 1/1000
  EXPECT_EQ(digest, Sha256(Bytes(text)));
  const auto times = std::filesystem::last_write_time(Path("a"));
  text[12345] = 'b';
  std::fstream(Path("a"), std::ios::in | std::ios::out).seekp(12345).put('b');
  std::filesystem::last_write_time(Path("a"), times);  // size, inode and time as they were
  EXPECT_EQ(Sha256FileOnce(Path("a")), Sha256(Bytes(text)));
}

}  // namespace
}  // namespace nibble
