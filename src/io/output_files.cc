#include "io/output_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

namespace sirdar::io {
namespace {

namespace fs = std::filesystem;

Status error(const std::string& path, const std::string& sentence) {
  return Status(StatusCode::invalid_argument, path + ": " + sentence, path);
}

Status system_error(const std::string& path, std::string_view what, int code) {
  return error(path, fmt::format("{} ({}), and nothing was written; make room or name another "
                                 "file.",
                                 what, std::strerror(code)));
}

// Where the file itself is: a link's target.
fs::path place_of(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_symlink(path, ignored)) return path;
  const fs::path target = fs::weakly_canonical(path, ignored);
  return target.empty() ? fs::path(path) : target;
}

fs::path folder_of(const fs::path& place) {
  return place.has_parent_path() ? place.parent_path() : fs::path(".");
}

// A file beside its final place; removed unless it was moved there.
class Draft {
 public:
  explicit Draft(const OutputFile& file) : file_(file), place_(place_of(file.path)) {}
  Draft(Draft&& other) noexcept
      : file_(other.file_),
        place_(std::move(other.place_)),
        draft_(std::exchange(other.draft_, {})),
        descriptor_(std::exchange(other.descriptor_, -1)) {}
  ~Draft() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!draft_.empty()) ::unlink(draft_.c_str());
  }

  Status write() {
    if (Status status = create(); !status.ok()) return status;
    for (std::span<const std::byte> piece : file_.pieces) {
      while (!piece.empty()) {
        constexpr size_t kLargestWrite = size_t{1} << 30;
        const ssize_t put =
            ::write(descriptor_, piece.data(), std::min(piece.size(), kLargestWrite));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return system_error(file_.path, "cannot be written", errno);
        piece = piece.subspan(static_cast<size_t>(put));
      }
    }
    // The data must be on the disk before the name is.
    const bool is_synced = ::fsync(descriptor_) == 0;
    const int sync_error = errno;
    const bool is_closed = ::close(std::exchange(descriptor_, -1)) == 0;
    if (!is_synced) return system_error(file_.path, "cannot be written", sync_error);
    if (!is_closed) return system_error(file_.path, "cannot be written", errno);
    return {};
  }

  Status move_into_place() {
    if (::rename(draft_.c_str(), place_.c_str()) != 0) {
      return error(file_.path,
                   fmt::format("cannot be replaced ({}); it is as it was.", std::strerror(errno)));
    }
    draft_.clear();
    return {};
  }

 private:
  Status create() {
    for (int attempt = 0; descriptor_ < 0; ++attempt) {
      constexpr int kMostAttempts = 1000;  // names left over by killed processes
      draft_ = folder_of(place_) / fmt::format(".sirdar-{}-{}.tmp", ::getpid(), attempt);
      descriptor_ = ::open(draft_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (descriptor_ < 0 && (errno != EEXIST || attempt == kMostAttempts)) {
        draft_.clear();
        return system_error(file_.path, "cannot be created", errno);
      }
    }
    struct stat old {};
    if (::stat(place_.c_str(), &old) == 0) {
      // Keeps who may read the file that is replaced; where that is not allowed the default serves.
      [[maybe_unused]] const int ignored = ::fchmod(descriptor_, old.st_mode & 0777);
    }
    return {};
  }

  const OutputFile& file_;
  fs::path place_, draft_;
  int descriptor_ = -1;
};

}  // namespace

Status check_writable(const std::string& path) {
  std::error_code code;
  const fs::path place = place_of(path);
  const fs::path folder = folder_of(place);
  if (!fs::is_directory(folder, code)) {
    return error(path, fmt::format("there is no folder {}; create it first.", folder.string()));
  }
  const long longest = ::pathconf(folder.c_str(), _PC_NAME_MAX);
  const size_t length = place.filename().native().size();
  if (longest > 0 && length > static_cast<size_t>(longest)) {
    return error(
        path, fmt::format("its name has {} bytes and the folder takes {}; name it shorter.", length,
                          longest));
  }
  const fs::file_status status = fs::status(place, code);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    return error(path, "exists and is not a regular file; name another file.");
  }
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    return error(path, fmt::format("the folder {} may not be written to ({}); name another.",
                                   folder.string(), std::strerror(errno)));
  }
  if (fs::exists(status) && ::access(place.c_str(), W_OK) != 0) {
    return error(path, fmt::format("exists and may not be written to ({}); name another file.",
                                   std::strerror(errno)));
  }
  return {};
}

Status write_files(std::span<const OutputFile> files,
                   const std::function<Status()>& before_moving) {
  const auto flagged = [](const OutputFile& file, const Status& status) {
    return Status(status.code(), fmt::format("{}: {}", file.flag, status.message()), file.flag);
  };
  std::vector<Draft> drafts;
  drafts.reserve(files.size());
  for (const OutputFile& file : files) {
    if (Status status = check_writable(file.path); !status.ok()) return flagged(file, status);
    drafts.emplace_back(file);
    if (Status status = drafts.back().write(); !status.ok()) return flagged(file, status);
  }
  if (before_moving) {
    if (Status status = before_moving(); !status.ok()) return status;
  }
  for (size_t n = 0; n < drafts.size(); ++n) {
    if (Status status = drafts[n].move_into_place(); !status.ok()) return flagged(files[n], status);
  }
  return {};
}

bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code code;
  if (fs::equivalent(a, b, code)) return true;
  // Of a relative path without a part that exists, weakly_canonical() makes no absolute one.
  const auto place = [&](const std::string& path) {
    return fs::weakly_canonical(fs::absolute(path, code), code);
  };
  const fs::path place_a = place(a), place_b = place(b);
  return !place_a.empty() && place_a == place_b;
}

}  // namespace sirdar::io
