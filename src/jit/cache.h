// Compiled kernels on disk. A cache is a directory with one directory per entry, named by its key;
// packs are the same. Any number of processes may read, write, die and damage files at the same
// time: what is not exactly as it was published is as if it were not there.
#pragma once

#include <sirdar/status.hpp>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

namespace sirdar::jit {

// Counts the meanings that the files of an entry have had.
inline constexpr int kCacheFormat = 1;

// What one entry holds: kernel.cubin, kernel.cu and report.txt, and digest.txt with their SHA-256.
struct Entry {
  std::string cubin, source, report;
};

// The entry `name` of `dir`, or nothing.
std::optional<Entry> read_entry(const std::filesystem::path& dir, const std::string& name);

// Names in `dir` that begin with `prefix`, last first. Nothing is said about what they hold.
std::vector<std::string> entry_names(const std::filesystem::path& dir,
                                     std::string_view prefix = "");

// Other names in `dir`: neither entries nor what the cache needs beside them. Sorted.
std::vector<std::string> foreign_names(const std::filesystem::path& dir);

// Ok, also where `dir` is missing; or why its names cannot be read.
std::error_code check_readable(const std::filesystem::path& dir);

// Writes an entry aside, then gives it its name at once. Where a whole entry of that name is
// already there it stays; a damaged one is replaced. Ok also if another process was faster.
Status publish_entry(const std::filesystem::path& dir, const std::string& name, const Entry& entry);
// The same, for whoever names the directory in words of his own.
std::error_code write_entry(const std::filesystem::path& dir, const std::string& name,
                            const Entry& entry);

// Removes every entry, and what killed processes left a day ago; nothing else, not what others are
// writing, and never `dir` itself. How many entries went.
Result<int> clear_entries(const std::filesystem::path& dir);

// The lock beside an entry: one process compiles while the others wait for its result. It saves
// work and is not needed for anything else, so whoever cannot have it in time goes on without.
class EntryLock {
 public:
  EntryLock(const std::filesystem::path& dir, const std::string& name,
            std::chrono::milliseconds limit);
  ~EntryLock();
  EntryLock(const EntryLock&) = delete;
  EntryLock& operator=(const EntryLock&) = delete;

  bool is_held() const { return file_ >= 0; }

 private:
  std::filesystem::path path_;
  int file_ = -1;
};

}  // namespace sirdar::jit
