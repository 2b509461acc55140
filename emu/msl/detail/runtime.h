// What kernel text needs of the emulator: declarations only, no standard header, so that nothing
// but the language's own names is visible to a kernel. The other side is emu/runtime/.
#pragma once

namespace moeblas {
namespace emu {

// A place in kernel text. A column too, for two collectives on one line.
struct Site {
  const char* file;
  int line;
  int column;
};

#if defined(__clang__)  // kernel text alone needs it
constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE(),
                    int column = __builtin_COLUMN()) {
  return Site{file, line, column};
}
#endif

enum { kSlotBytes = 16, kSimdWidth = 32 };

// One row of the table of kernels; rows link themselves up as the program starts.
struct KernelRow {
  const char* name;
  void (*run_lane)();
  const char* file;
  KernelRow* next;
};
bool add_kernel(KernelRow* row);

// Publishes `bytes` at `value` and returns once all lanes of the simdgroup stand at `site`: the
// published values, kSlotBytes apart, in lane order. They stay valid until this lane's next
// collective. `parameter` must be the same in all lanes.
const unsigned char* exchange(const char* operation, const Site& site, const void* value,
                              unsigned bytes, unsigned parameter);
// A collective error that only its own function can see (a lane out of range).
[[noreturn]] void bad_collective(const char* operation, const Site& site, const char* what,
                                 unsigned long number);

void simdgroup_barrier(unsigned flags, const Site& site);
void threadgroup_barrier(unsigned flags, const Site& site);

enum class AtomicOperation { load, store, exchange, add, sub, min, max, bit_and, bit_or, bit_xor };
enum class AtomicType { int32, uint32, float32 };
// Returns the bits that stood there before.
unsigned atomic(AtomicOperation operation, AtomicType type, volatile void* address,
                unsigned operand, const Site& site);
bool atomic_compare_exchange(volatile void* address, unsigned* expected, unsigned desired,
                             const Site& site);

// Memory that the lanes of a threadgroup share, found by its declaration.
void* threadgroup_array(const char* name, unsigned long bytes, unsigned long alignment,
                        const Site& site);

void* buffer_argument(unsigned index, unsigned long bytes, unsigned long alignment);
void* threadgroup_argument(unsigned index, unsigned long alignment);

enum class Position {
  thread_in_grid,
  thread_in_threadgroup,
  threadgroup_in_grid,
  threads_per_threadgroup,
  threadgroups_per_grid,
  threads_per_grid,
  thread_index_in_threadgroup,
  thread_index_in_simdgroup,
  simdgroup_index_in_threadgroup,
  simdgroups_per_threadgroup,
  threads_per_simdgroup
};
unsigned position(Position which, unsigned axis);

unsigned lane_index();

}  // namespace emu
}  // namespace moeblas
