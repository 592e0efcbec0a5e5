#include "fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <boost/context/detail/fcontext.hpp>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#define SIRDAR_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIRDAR_ASAN 1
#endif
#endif
#ifdef SIRDAR_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace sirdar::emulator {
namespace {

constexpr size_t kStackBytes = 256 << 10;  // debug builds and sanitizers need far more than -O2

void start_switch([[maybe_unused]] void** save, [[maybe_unused]] const void* bottom,
                  [[maybe_unused]] size_t size) {
#ifdef SIRDAR_ASAN
  __sanitizer_start_switch_fiber(save, bottom, size);
#endif
}

void finish_switch([[maybe_unused]] void* saved, [[maybe_unused]] const void** bottom,
                   [[maybe_unused]] size_t* size) {
#ifdef SIRDAR_ASAN
  __sanitizer_finish_switch_fiber(saved, bottom, size);
#endif
}

}  // namespace

Stack::Stack() {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  mapping_ = mmap(nullptr, kStackBytes + page, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED) throw std::bad_alloc();
  mprotect(mapping_, page, PROT_NONE);
  bottom_ = static_cast<char*>(mapping_) + page;
}

Stack::~Stack() {
  forget();
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  munmap(mapping_, kStackBytes + page);
}

size_t Stack::size() const { return kStackBytes; }

void Stack::forget() {
#ifdef SIRDAR_ASAN
  ASAN_UNPOISON_MEMORY_REGION(bottom_, kStackBytes);
#endif
}

struct Trampoline {
  static void run(boost::context::detail::transfer_t from) {
    Context* context = static_cast<Context*>(from.data);
    context->caller_ = from.fctx;
    context->enter();
    context->entry_(context->argument_);
    context->leave_for_good();
  }
};

void Context::start(Stack& stack, void (*entry)(void*), void* argument) {
  stack.forget();
  stack_ = &stack;
  entry_ = entry;
  argument_ = argument;
  self_fake_ = nullptr;
  self_ = boost::context::detail::make_fcontext(static_cast<char*>(stack.bottom()) + stack.size(),
                                                stack.size(), Trampoline::run);
}

void Context::resume() {
  start_switch(&caller_fake_, stack_->bottom(), stack_->size());
  self_ = boost::context::detail::jump_fcontext(self_, this).fctx;
  finish_switch(caller_fake_, nullptr, nullptr);
}

void Context::enter() { finish_switch(self_fake_, &caller_bottom_, &caller_size_); }

void Context::back() {
  start_switch(&self_fake_, caller_bottom_, caller_size_);
  caller_ = boost::context::detail::jump_fcontext(caller_, this).fctx;
  finish_switch(self_fake_, &caller_bottom_, &caller_size_);
}

void Context::leave_for_good() {
  start_switch(nullptr, caller_bottom_, caller_size_);
  boost::context::detail::jump_fcontext(caller_, this);
  __builtin_unreachable();
}

}  // namespace sirdar::emulator
