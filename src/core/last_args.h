// Calls that repeat: what was found out about the arguments of one holds for the next if they
// describe the same memory.
#pragma once

#include <sirdar/plan.hpp>

#include <array>
#include <memory>
#include <mutex>
#include <optional>

namespace sirdar {

// Same views, names, scalars and presence of a dropout seed. What the memory holds may differ.
bool describe_same_memory(const Args& a, const Args& b);

// Where a call is looked for among those that are kept.
inline constexpr size_t kLastArgs = 64;
size_t place_of(const Args& args);

// The last calls, as of the layers of a model, and what was made of each. Threads that meet here do
// not wait: whoever comes second makes its own.
template <class T>
class LastArgs {
 public:
  std::optional<T> find(const Args& args) const {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return std::nullopt;
    const Entry* entry = entries_[place_of(args)].get();
    if (entry == nullptr || !describe_same_memory(args, entry->args)) return std::nullopt;
    return entry->made;
  }
  void keep(const Args& args, const T& made) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock.owns_lock()) entries_[place_of(args)].reset(new Entry{args, made});
  }

 private:
  struct Entry {
    Args args;
    T made;
  };
  mutable std::mutex mutex_;
  std::array<std::unique_ptr<Entry>, kLastArgs> entries_;
};

}  // namespace sirdar
