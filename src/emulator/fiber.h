// Contexts with stacks of their own, by Boost.Context.
#pragma once

#include <cstddef>

namespace sirdar::emulator {

// A stack with a page below it that may not be touched.
class Stack {
 public:
  Stack();
  ~Stack();
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  void* bottom() const { return bottom_; }
  size_t size() const;
  // What an abandoned context left poisoned for the address sanitizer is forgotten.
  void forget();

 private:
  void* mapping_;
  void* bottom_;
};

// Entry functions run on the stack of the context and never return; they leave by leave_for_good().
class Context {
 public:
  void start(Stack& stack, void (*entry)(void*), void* argument);
  // Runs the context until it calls back() or leave_for_good().
  void resume();
  // Called on the context's own stack.
  void back();
  [[noreturn]] void leave_for_good();
  void enter();  // first thing the entry function does

 private:
  friend struct Trampoline;
  void* self_ = nullptr;
  void* caller_ = nullptr;
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
  // What the address sanitizer wants to know about the two stacks.
  const void* caller_bottom_ = nullptr;
  size_t caller_size_ = 0;
  void* caller_fake_ = nullptr;
  void* self_fake_ = nullptr;
  const Stack* stack_ = nullptr;
};

}  // namespace sirdar::emulator
