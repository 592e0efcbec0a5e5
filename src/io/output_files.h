// Files written whole or not at all.
#pragma once

#include <sirdar/status.hpp>

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace sirdar::io {

struct OutputFile {
  std::string flag;  // who asked for it: errors begin with it
  std::string path;
  std::vector<std::span<const std::byte>> pieces;  // what it will hold, in order
};

// Would write_files() find a folder and permission there? Asked before a long computation.
Status check_writable(const std::string& path);

// Each file is written beside its place and moved there once all of them are complete, so an error
// leaves what was there before, and readers never see half a file. A symbolic link is followed.
// `before_moving` runs in between: where it fails, nothing is moved.
Status write_files(std::span<const OutputFile> files,
                   const std::function<Status()>& before_moving = {});

// Do two paths lead to one file? Paths of files that do not exist yet are compared as names.
bool is_same_file(const std::string& a, const std::string& b);

}  // namespace sirdar::io
