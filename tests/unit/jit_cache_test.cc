// The cache of compiled kernels among processes that write, die and damage files.
#include <gtest/gtest.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "jit/cache.h"
#include "support/scratch.h"

namespace sirdar::jit {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using testing::Scratch;

const std::string kName = std::string(64, 'a') + "-nvrtc13.0";
const Entry kEntry{std::string("\x7f"
                               "ELF\0code",
                               9),
                   "source text\n", "entry k\n"};

void expect_is(const std::optional<Entry>& found, const Entry& wanted) {
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->cubin, wanted.cubin);
  EXPECT_EQ(found->source, wanted.source);
  EXPECT_EQ(found->report, wanted.report);
}

size_t count_children(const fs::path& dir) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(dir), fs::directory_iterator()));
}

// Runs `work` in a process of its own, which never returns into the tests.
template <class F>
pid_t in_child(F work) {
  const pid_t child = fork();
  if (child != 0) return child;
  work();
  _exit(0);
}

int exit_code(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(JitCache, GivesBackWhatWasPublished) {
  const Scratch dir;
  const fs::path cache = dir / "not/there/yet";
  EXPECT_FALSE(read_entry(cache, kName).has_value());
  ASSERT_TRUE(publish_entry(cache, kName, kEntry).ok());
  expect_is(read_entry(cache, kName), kEntry);
  EXPECT_EQ(count_children(cache), 1u) << "nothing temporary is left";
  EXPECT_EQ(entry_names(cache), std::vector<std::string>{kName});
  EXPECT_EQ(entry_names(cache, std::string(64, 'b')), std::vector<std::string>{});
}

TEST(JitCache, TakesAnEntryThatIsNotAsPublishedForNone) {
  const Scratch dir;
  for (const char* file : {"kernel.cubin", "kernel.cu", "report.txt", "digest.txt"}) {
    const auto damaged = [&](const char* how, auto damage) {
      clear_entries(dir.path()).value();
      ASSERT_TRUE(publish_entry(dir.path(), kName, kEntry).ok());
      const fs::path path = dir.path() / kName / file;
      damage(path);
      EXPECT_FALSE(read_entry(dir.path(), kName).has_value()) << file << " " << how;
      // Whoever compiles it again replaces it.
      ASSERT_TRUE(publish_entry(dir.path(), kName, kEntry).ok());
      expect_is(read_entry(dir.path(), kName), kEntry);
    };
    damaged("gone", [](const fs::path& path) { fs::remove(path); });
    damaged("empty", [](const fs::path& path) { fs::resize_file(path, 0); });
    damaged("short", [](const fs::path& path) { fs::resize_file(path, fs::file_size(path) - 1); });
    damaged("longer", [](const fs::path& path) { fs::resize_file(path, fs::file_size(path) + 1); });
    damaged("a folder", [](const fs::path& path) {
      fs::remove(path);
      fs::create_directory(path);
    });
    damaged("a link", [](const fs::path& path) {
      fs::rename(path, path.string() + ".moved");
      fs::create_symlink(path.string() + ".moved", path);
    });
    damaged("one bit flipped", [](const fs::path& path) {
      std::string bytes = testing::read_text(path);
      bytes[bytes.size() / 2] ^= 1;
      testing::write_text(path, bytes);
    });
  }
}

TEST(JitCache, TakesAnEntryUnderAnothersNameForNone) {
  const Scratch dir;
  ASSERT_TRUE(publish_entry(dir.path(), kName, kEntry).ok());
  const std::string other = std::string(64, 'b') + "-nvrtc13.0";
  fs::rename(dir.path() / kName, dir.path() / other);
  EXPECT_FALSE(read_entry(dir.path(), other).has_value());
  EXPECT_FALSE(read_entry(dir.path(), "../" + other).has_value());
}

TEST(JitCache, ReplacesAFileThatHasTheNameOfAnEntry) {
  const Scratch dir;
  testing::write_text(dir / kName, "a file");
  ASSERT_TRUE(publish_entry(dir.path(), kName, kEntry).ok());
  expect_is(read_entry(dir.path(), kName), kEntry);
}

TEST(JitCache, KeepsTheEntryThatIsThere) {
  const Scratch dir;
  ASSERT_TRUE(publish_entry(dir.path(), kName, kEntry).ok());
  ASSERT_TRUE(publish_entry(dir.path(), kName, {"other code", "other", "other"}).ok());
  expect_is(read_entry(dir.path(), kName), kEntry);
}

TEST(JitCache, SaysThatItCannotBeWritten) {
  const Scratch dir;
  testing::write_text(dir / "file", "");
  const Status status = publish_entry(dir / "file/cache", kName, kEntry);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find((dir / "file/cache").string()), std::string::npos);
  EXPECT_NE(status.message().find("SIRDAR_CACHE_DIR"), std::string::npos);
  EXPECT_FALSE(read_entry(dir / "file/cache", kName).has_value());
  EXPECT_FALSE(EntryLock(dir / "file/cache", kName, milliseconds(1)).is_held());
}

TEST(JitCache, ShowsWholeEntriesWhileProcessesWriteAndAreKilled) {
  const Scratch dir;
  // Each writer has bytes of its own; a reader must see all parts of one.
  const auto entry_of = [](int writer) {
    const std::string text(200'000, static_cast<char>('A' + writer));
    return Entry{text, text, text};
  };
  std::vector<pid_t> writers;
  for (int writer = 0; writer < 3; ++writer)
    writers.push_back(in_child([&] {
      for (;;) {
        (void)publish_entry(dir.path(), kName, entry_of(writer));
        if (writer == 0) (void)clear_entries(dir.path());
      }
    }));
  int seen = 0;
  const auto end = std::chrono::steady_clock::now() + milliseconds(400);
  while (std::chrono::steady_clock::now() < end || seen == 0) {
    const std::optional<Entry> found = read_entry(dir.path(), kName);
    if (!found) continue;
    ++seen;
    const int writer = found->cubin[0] - 'A';
    ASSERT_TRUE(writer >= 0 && writer < 3);
    expect_is(found, entry_of(writer));
  }
  for (const pid_t writer : writers) kill(writer, SIGKILL);
  for (const pid_t writer : writers) exit_code(writer);
  // Whatever they left, the next process works with it, and clearing leaves nothing of what is old.
  ASSERT_TRUE(publish_entry(dir.path(), kName, entry_of(0)).ok());
  EXPECT_TRUE(read_entry(dir.path(), kName).has_value());
  for (const fs::directory_entry& child : fs::directory_iterator(dir.path()))
    fs::last_write_time(child, fs::file_time_type::clock::now() - std::chrono::hours(25));
  EXPECT_EQ(clear_entries(dir.path()).value(), 1);
  EXPECT_EQ(count_children(dir.path()), 0u);
}

TEST(JitCache, SweepsWhatWasLeftLongAgo) {
  const Scratch dir;
  testing::write_text(dir / "tmp-1-aaaaaa/kernel.cu", "half");
  testing::write_text(dir / "tmp-1-bbbbbb/kernel.cu", "half");
  fs::last_write_time(dir / "tmp-1-aaaaaa",
                      fs::file_time_type::clock::now() - std::chrono::hours(25));
  ASSERT_TRUE(publish_entry(dir.path(), kName, kEntry).ok());
  EXPECT_FALSE(fs::exists(dir / "tmp-1-aaaaaa"));
  EXPECT_TRUE(fs::exists(dir / "tmp-1-bbbbbb"));
}

TEST(JitCache, ClearsNothingElse) {
  const Scratch dir;
  testing::write_text(dir / "notes.txt", "mine");
  testing::write_text(dir / "photos/cat", "mine");
  testing::write_text(dir / "x.lock", "mine");
  ASSERT_TRUE(publish_entry(dir.path(), kName, kEntry).ok());
  testing::write_text(dir / "tmp-1-aaaaaa/kernel.cu", "being written");
  testing::write_text(dir / (std::string(kName) + ".lock"), "");
  const std::vector<std::string> foreign{"notes.txt", "photos", "x.lock"};
  EXPECT_EQ(foreign_names(dir.path()), foreign);
  EXPECT_EQ(clear_entries(dir.path()).value(), 1);
  EXPECT_TRUE(fs::exists(dir / "tmp-1-aaaaaa/kernel.cu"));
  EXPECT_EQ(count_children(dir.path()), 4u);
  EXPECT_EQ(foreign_names(dir.path()), foreign);
}

TEST(JitCache, SaysThatItCannotBeRead) {
  const Scratch dir;
  testing::write_text(dir / "file", "");
  EXPECT_FALSE(check_readable(dir / "none")) << "nothing was compiled yet";
  EXPECT_FALSE(check_readable(dir.path()));
  EXPECT_TRUE(check_readable(dir / "file"));
  EXPECT_TRUE(check_readable(dir / "file/cache"));
}

TEST(JitCache, LockIsHeldByOneAndFreedByDeath) {
  const Scratch dir;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t holder = in_child([&] {
    const EntryLock lock(dir.path(), kName, milliseconds(1000));
    const char answer = lock.is_held() ? 'y' : 'n';
    if (write(ready[1], &answer, 1) != 1) _exit(1);
    for (;;) pause();
  });
  char answer = 0;
  ASSERT_EQ(read(ready[0], &answer, 1), 1);
  ASSERT_EQ(answer, 'y');
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(EntryLock(dir.path(), kName, milliseconds(30)).is_held());
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(30));
  kill(holder, SIGKILL);
  exit_code(holder);
  {
    const EntryLock lock(dir.path(), kName, milliseconds(1000));
    EXPECT_TRUE(lock.is_held());
  }
  EXPECT_EQ(count_children(dir.path()), 0u) << "no lock file is left";
  close(ready[0]);
  close(ready[1]);
}

}  // namespace
}  // namespace sirdar::jit
