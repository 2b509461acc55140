// A fiber: a stack of its own and a place to go on from. Switching costs a few instructions, so
// that a threadgroup's thousand lanes can run as plain functions that stop at any collective.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define MOEBLAS_EMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MOEBLAS_EMU_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define MOEBLAS_EMU_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MOEBLAS_EMU_TSAN 1
#endif
#endif

namespace moeblas::emu {

class Fiber {
 public:
  // The fiber of the calling thread itself: it has no stack of ours.
  Fiber() = default;
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Arms the fiber to call entry(argument) when next switched to; entry never returns. Abandons
  // whatever the fiber was doing.
  void start(void (*entry)(void*), void* argument);

  // Leaves `from` (the running fiber) and goes on with `to`.
  static void switch_to(Fiber& from, Fiber& to);

  bool on_stack(std::size_t address, std::size_t bytes) const {
    return address - stack_low_ < stack_bytes_ && bytes <= stack_bytes_;
  }

 private:
  static void entered(Fiber& self);
  static void first_entry();

  std::size_t stack_low_ = 0;
  std::size_t stack_bytes_ = 0;
  void* mapping_ = nullptr;
  void* saved_ = nullptr;  // the stack pointer, or a ucontext_t
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
  [[maybe_unused]] void* fake_stack_ = nullptr;
  [[maybe_unused]] void* sanitizer_fiber_ = nullptr;
};

}  // namespace moeblas::emu
