#include "fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <new>

#if defined(MOEBLAS_EMU_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(MOEBLAS_EMU_TSAN)
#include <sanitizer/tsan_interface.h>
#endif
#if !defined(__x86_64__) && !defined(__aarch64__) && !defined(MOEBLAS_EMU_UCONTEXT)
#define MOEBLAS_EMU_UCONTEXT 1
#endif

#if defined(MOEBLAS_EMU_UCONTEXT)
#include <ucontext.h>
#else
// Saves the callee-saved registers on the running stack, stores the stack pointer to *save, and
// takes up the other stack where it was left.
extern "C" void moeblas_emu_switch(void** save, void* to);
#endif

#if defined(__x86_64__)
asm(R"(
  .text
  .globl moeblas_emu_switch
  .hidden moeblas_emu_switch
  .type moeblas_emu_switch, @function
moeblas_emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size moeblas_emu_switch, .-moeblas_emu_switch
)");
#elif defined(__aarch64__)
asm(R"(
  .text
  .globl moeblas_emu_switch
  .hidden moeblas_emu_switch
  .type moeblas_emu_switch, %function
moeblas_emu_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
  .size moeblas_emu_switch, .-moeblas_emu_switch
)");
#endif

namespace moeblas::emu {
namespace {

#if defined(MOEBLAS_EMU_ASAN) || defined(MOEBLAS_EMU_TSAN)
constexpr std::size_t kStackBytes = 256 << 10;  // redzones make frames several times larger
#else
constexpr std::size_t kStackBytes = 64 << 10;
#endif

// The fiber being switched to; only its first entry needs it.
thread_local Fiber* t_starting = nullptr;
#if defined(MOEBLAS_EMU_ASAN)
thread_local Fiber* t_leaving = nullptr;
#endif

}  // namespace

Fiber::~Fiber() {
#if defined(MOEBLAS_EMU_UCONTEXT)
  delete static_cast<ucontext_t*>(saved_);
#endif
  if (!mapping_) return;
#if defined(MOEBLAS_EMU_TSAN)
  if (sanitizer_fiber_) __tsan_destroy_fiber(sanitizer_fiber_);
#endif
#if defined(MOEBLAS_EMU_ASAN)
  // What a lane left poisoned would still be where other memory comes to lie.
  ASAN_UNPOISON_MEMORY_REGION(reinterpret_cast<void*>(stack_low_), stack_bytes_);
#endif
  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  munmap(mapping_, kStackBytes + page);
}

void Fiber::start(void (*entry)(void*), void* argument) {
  if (!mapping_) {
    // The lowest page stays without access: running past the stack faults at once.
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    void* mapping = mmap(nullptr, kStackBytes + page, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) throw std::bad_alloc();
    mprotect(mapping, page, PROT_NONE);
    mapping_ = mapping;
    stack_low_ = reinterpret_cast<std::size_t>(mapping) + page;
    stack_bytes_ = kStackBytes;
#if defined(MOEBLAS_EMU_TSAN)
    sanitizer_fiber_ = __tsan_create_fiber(0);
#endif
  }
#if defined(MOEBLAS_EMU_ASAN)
  ASAN_UNPOISON_MEMORY_REGION(reinterpret_cast<void*>(stack_low_), stack_bytes_);
  fake_stack_ = nullptr;
#endif
  entry_ = entry;
  argument_ = argument;
#if defined(MOEBLAS_EMU_UCONTEXT)
  if (!saved_) saved_ = new ucontext_t;
  auto* context = static_cast<ucontext_t*>(saved_);
  getcontext(context);
  context->uc_stack.ss_sp = reinterpret_cast<void*>(stack_low_);
  context->uc_stack.ss_size = stack_bytes_;
  context->uc_link = nullptr;
  makecontext(context, &Fiber::first_entry, 0);
#else
  auto* top = reinterpret_cast<std::uintptr_t*>(stack_low_ + stack_bytes_);
  const auto code = reinterpret_cast<std::uintptr_t>(&Fiber::first_entry);
#if defined(__x86_64__)
  *--top = 0;  // a return address of nobody: the end of a backtrace, and the alignment of a call
  *--top = code;
  for (int i = 0; i < 6; ++i) *--top = 0;
#else
  top -= 20;
  for (int i = 0; i < 20; ++i) top[i] = 0;
  top[11] = code;  // x30
#endif
  saved_ = top;
#endif
}

void Fiber::first_entry() {
  Fiber& self = *t_starting;
  entered(self);
  self.entry_(self.argument_);
  __builtin_trap();
}

// Runs on the stack that was just switched to.
void Fiber::entered([[maybe_unused]] Fiber& self) {
#if defined(MOEBLAS_EMU_ASAN)
  const void* bottom = nullptr;
  std::size_t bytes = 0;
  __sanitizer_finish_switch_fiber(self.fake_stack_, &bottom, &bytes);
  // A thread's own fiber learns its bounds from the first switch away from it.
  if (t_leaving && !t_leaving->mapping_) {
    t_leaving->stack_low_ = reinterpret_cast<std::size_t>(bottom);
    t_leaving->stack_bytes_ = bytes;
  }
#endif
}

void Fiber::switch_to(Fiber& from, Fiber& to) {
  t_starting = &to;
#if defined(MOEBLAS_EMU_ASAN)
  t_leaving = &from;
  __sanitizer_start_switch_fiber(&from.fake_stack_, reinterpret_cast<const void*>(to.stack_low_),
                                 to.stack_bytes_);
#endif
#if defined(MOEBLAS_EMU_TSAN)
  if (!from.sanitizer_fiber_) from.sanitizer_fiber_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(to.sanitizer_fiber_, 0);
#endif
#if defined(MOEBLAS_EMU_UCONTEXT)
  if (!from.saved_) from.saved_ = new ucontext_t;
  swapcontext(static_cast<ucontext_t*>(from.saved_), static_cast<ucontext_t*>(to.saved_));
#else
  moeblas_emu_switch(&from.saved_, to.saved_);
#endif
  entered(from);
}

}  // namespace moeblas::emu
