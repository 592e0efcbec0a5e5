#include "jit/cache.h"

#include "jit/digest.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>

namespace sirdar::jit {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr std::string_view kTemporary = "tmp-", kLockSuffix = ".lock";
constexpr off_t kMaxFileBytes = 64 << 20;
// What a killed process left is swept by whoever publishes this much later.
constexpr std::chrono::hours kAbandonedAfter{24};

// The files of an entry except the last, digest.txt.
struct Part {
  const char* file;
  std::string Entry::*content;
};
constexpr Part kParts[] = {
    {"kernel.cubin", &Entry::cubin}, {"kernel.cu", &Entry::source}, {"report.txt", &Entry::report}};
constexpr const char* kDigestFile = "digest.txt";

class File {
 public:
  explicit File(int handle) : handle_(handle) {}
  ~File() {
    if (handle_ >= 0) close(handle_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return handle_; }
  bool is_open() const { return handle_ >= 0; }

 private:
  int handle_;
};

bool is_entry_name(std::string_view name) {
  return name.size() > 64 && name[64] == '-' && !name.ends_with(kLockSuffix) &&
         std::all_of(name.begin(), name.begin() + 64,
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// What the cache itself needs beside entries: locks, and entries that are being written.
bool is_rest(std::string_view name) {
  return name.starts_with(kTemporary) ||
         (name.ends_with(kLockSuffix) &&
          is_entry_name(name.substr(0, name.size() - kLockSuffix.size())));
}

// Relative to an open directory: all parts come from one entry even if its name is given to another
// meanwhile.
std::optional<std::string> read_file(int dir, const char* name) {
  const File file(openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat facts;
  if (!file.is_open() || fstat(file.get(), &facts) != 0 || !S_ISREG(facts.st_mode) ||
      facts.st_size > kMaxFileBytes)
    return std::nullopt;
  std::string bytes(static_cast<size_t>(facts.st_size), '\0');
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t got = read(file.get(), bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    done += static_cast<size_t>(got);
  }
  return bytes;
}

// errno, 0 for success.
int write_file(const fs::path& path, std::string_view bytes) {
  const File file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file.is_open()) return errno;
  while (!bytes.empty()) {
    const ssize_t written = write(file.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return fsync(file.get()) == 0 ? 0 : errno;
}

// The name is part of it: an entry under another's name is not that entry.
std::string digest_text(const std::string& name, const Entry& entry) {
  std::string text = fmt::format("{}\n", name);
  for (const Part& part : kParts)
    text += fmt::format("{} {}\n", sha256(entry.*part.content), part.file);
  return text;
}

int write_parts(const fs::path& dir, const std::string& name, const Entry& entry) {
  for (const Part& part : kParts)
    if (const int error = write_file(dir / part.file, entry.*part.content)) return error;
  if (const int error = write_file(dir / kDigestFile, digest_text(name, entry))) return error;
  const File handle(open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return handle.is_open() && fsync(handle.get()) == 0 ? 0 : errno;
}

// A new directory of ours alone, on the file system of `dir`; empty on an error, which errno tells.
fs::path make_temporary(const fs::path& dir) {
  std::string pattern = dir / fmt::format("{}{}-XXXXXX", kTemporary, getpid());
  return mkdtemp(pattern.data()) == nullptr ? fs::path() : fs::path(pattern);
}

void remove_quietly(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
}

// Moves a damaged entry aside before it is removed: readers see all of an entry or none.
void set_aside(const fs::path& dir, const std::string& name) {
  const fs::path aside = make_temporary(dir);
  if (aside.empty()) return;
  std::error_code error;
  fs::rename(dir / name, aside / name, error);
  remove_quietly(aside);
}

template <class F>
void for_each_child(const fs::path& dir, F&& f) {
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error))
    f(*it, it->path().filename().string());
}

// Left by a process that was killed; what is younger may be at work.
bool is_abandoned(const fs::directory_entry& temporary) {
  std::error_code error;
  const auto written = temporary.last_write_time(error);
  return !error && fs::file_time_type::clock::now() - written > kAbandonedAfter;
}

void sweep(const fs::path& dir) {
  for_each_child(dir, [](const fs::directory_entry& child, const std::string& name) {
    if (name.starts_with(kTemporary) && is_abandoned(child)) remove_quietly(child.path());
  });
}

Status unwritable(const fs::path& dir, int error) {
  return Status(StatusCode::invalid_argument,
                fmt::format("cache_dir: {} cannot be written ({}); kernels are compiled again by "
                            "every process until SIRDAR_CACHE_DIR names a directory that can.",
                            dir.string(), std::generic_category().message(error)),
                "cache_dir");
}

// errno of giving `from` the name `to`, 0 for success.
int rename_path(const fs::path& from, const fs::path& to) {
  return std::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

}  // namespace

std::optional<Entry> read_entry(const fs::path& dir, const std::string& name) {
  if (!is_entry_name(name)) return std::nullopt;
  const File handle(open((dir / name).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!handle.is_open()) return std::nullopt;
  Entry entry;
  for (const Part& part : kParts) {
    std::optional<std::string> content = read_file(handle.get(), part.file);
    if (!content) return std::nullopt;
    entry.*part.content = std::move(*content);
  }
  const std::optional<std::string> digests = read_file(handle.get(), kDigestFile);
  if (!digests || entry.cubin.empty() || *digests != digest_text(name, entry)) return std::nullopt;
  return entry;
}

std::vector<std::string> entry_names(const fs::path& dir, std::string_view prefix) {
  std::vector<std::string> names;
  for_each_child(dir, [&](const fs::directory_entry&, const std::string& name) {
    if (is_entry_name(name) && name.starts_with(prefix)) names.push_back(name);
  });
  std::sort(names.rbegin(), names.rend());
  return names;
}

std::vector<std::string> foreign_names(const fs::path& dir) {
  std::vector<std::string> names;
  for_each_child(dir, [&](const fs::directory_entry&, const std::string& name) {
    if (!is_entry_name(name) && !is_rest(name)) names.push_back(name);
  });
  std::sort(names.begin(), names.end());
  return names;
}

std::error_code check_readable(const fs::path& dir) {
  std::error_code error;
  const fs::directory_iterator it(dir, error);
  return error == std::errc::no_such_file_or_directory ? std::error_code() : error;
}

Status publish_entry(const fs::path& dir, const std::string& name, const Entry& entry) {
  const std::error_code error = write_entry(dir, name, entry);
  return error ? unwritable(dir, error.value()) : Status();
}

std::error_code write_entry(const fs::path& dir, const std::string& name, const Entry& entry) {
  std::error_code error;
  fs::create_directories(dir, error);
  const fs::path temporary = make_temporary(dir);
  if (temporary.empty()) return error ? error : std::error_code(errno, std::generic_category());
  chmod(temporary.c_str(), 0755);
  int code = write_parts(temporary, name, entry);
  if (code == 0) {
    code = rename_path(temporary, dir / name);
    if ((code == EEXIST || code == ENOTEMPTY || code == ENOTDIR) && !read_entry(dir, name)) {
      set_aside(dir, name);
      code = rename_path(temporary, dir / name);
    }
  }
  remove_quietly(temporary);
  sweep(dir);
  const bool is_other_there = code == EEXIST || code == ENOTEMPTY;
  return {is_other_there ? 0 : code, std::generic_category()};
}

Result<int> clear_entries(const fs::path& dir) {
  int count = 0;
  std::error_code first;
  for_each_child(dir, [&](const fs::directory_entry& child, const std::string& name) {
    const bool is_entry = is_entry_name(name);
    if (!is_entry && !is_rest(name)) return;
    if (name.starts_with(kTemporary) && !is_abandoned(child)) return;
    std::error_code error;
    fs::remove_all(child.path(), error);
    if (error && !first) first = error;
    if (!error && is_entry) ++count;
  });
  if (first)
    return Status(StatusCode::invalid_argument,
                  fmt::format("cache_dir: {} has entries that cannot be removed ({}); let whoever "
                              "owns them do it.",
                              dir.string(), first.message()),
                  "cache_dir");
  return count;
}

EntryLock::EntryLock(const fs::path& dir, const std::string& name, milliseconds limit)
    : path_(dir / (name + std::string(kLockSuffix))) {
  std::error_code error;
  fs::create_directories(dir, error);
  const int file = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) return;
  const auto end = std::chrono::steady_clock::now() + limit;
  milliseconds pause{2};
  while (flock(file, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK || std::chrono::steady_clock::now() >= end) {
      close(file);
      return;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, milliseconds{50});
  }
  file_ = file;
}

// A file that goes while others wait for it costs them one compilation at most.
EntryLock::~EntryLock() {
  if (file_ < 0) return;
  unlink(path_.c_str());
  close(file_);
}

}  // namespace sirdar::jit
