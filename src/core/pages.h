// Memory that asks for pages of 2 MiB. Rows of a tensor that are far apart lie each on a page of
// its own where pages have 4 KiB, and finding those takes a few per cent of an attention's time.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace sirdar {

enum class Pages { small, huge };  // of the system's usual size; of 2 MiB where the system has some

template <class T>
struct PageAllocator {
  using value_type = T;
  using propagate_on_container_move_assignment = std::true_type;
  Pages pages = Pages::small;

  PageAllocator() = default;
  explicit PageAllocator(Pages wanted) : pages(wanted) {}
  template <class U>
  PageAllocator(const PageAllocator<U>& other) : pages(other.pages) {}

  T* allocate(size_t count) {
    void* memory = ::operator new(bytes_of(count), alignment(count));
#ifdef __linux__
    // A wish: where it is not granted the memory is as good as any.
    if (alignment(count) == kHuge) (void)madvise(memory, bytes_of(count), MADV_HUGEPAGE);
#endif
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t count) { ::operator delete(memory, alignment(count)); }

  friend bool operator==(const PageAllocator&, const PageAllocator&) = default;

 private:
  static constexpr std::align_val_t kHuge{size_t{2} << 20};
  bool is_large(size_t count) const {
    return pages == Pages::huge && count * sizeof(T) >= static_cast<size_t>(kHuge);
  }
  std::align_val_t alignment(size_t count) const {
    return is_large(count) ? kHuge : std::align_val_t{64};
  }
  // Whole pages, so that the last one may be huge as well.
  size_t bytes_of(size_t count) const {
    const size_t unit = is_large(count) ? static_cast<size_t>(kHuge) : 64;
    return (count * sizeof(T) + unit - 1) / unit * unit;
  }
};

}  // namespace sirdar
