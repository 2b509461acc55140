// The functions that kernel text calls, by way of the standard library of emu/msl.
#include <cstring>

#include "threadgroup.h"

namespace moeblas::emu {
namespace {

Threadgroup& group() { return *Threadgroup::running(); }

unsigned combine(AtomicOperation operation, AtomicType type, unsigned old, unsigned operand) {
  const auto as_int = [](unsigned u) { return static_cast<int>(u); };
  if (type == AtomicType::float32 &&
      (operation == AtomicOperation::add || operation == AtomicOperation::sub)) {
    float a, b;
    std::memcpy(&a, &old, 4);
    std::memcpy(&b, &operand, 4);
    const float sum = operation == AtomicOperation::add ? a + b : a - b;
    unsigned bits;
    std::memcpy(&bits, &sum, 4);
    return bits;
  }
  const bool is_signed = type == AtomicType::int32;
  const bool less = is_signed ? as_int(operand) < as_int(old) : operand < old;
  switch (operation) {
    case AtomicOperation::load:
      return old;
    case AtomicOperation::store:
    case AtomicOperation::exchange:
      return operand;
    case AtomicOperation::add:
      return old + operand;
    case AtomicOperation::sub:
      return old - operand;
    case AtomicOperation::min:
      return less ? operand : old;
    case AtomicOperation::max:
      return less ? old : operand;
    case AtomicOperation::bit_and:
      return old & operand;
    case AtomicOperation::bit_or:
      return old | operand;
    case AtomicOperation::bit_xor:
      return old ^ operand;
  }
  return old;
}

volatile unsigned* checked_word(volatile void* address, const Site& site) {
  const auto at = reinterpret_cast<std::size_t>(address);
  if (at % 4 != 0) group().fail(ErrorKind::bounds, "an atomic at a misaligned address", at, site);
  group().before_atomic();
  group().check_access(at, 4, Access::atomic);
  return static_cast<volatile unsigned*>(address);
}

}  // namespace

const unsigned char* exchange(const char* operation, const Site& site, const void* value,
                              unsigned bytes, unsigned parameter) {
  return group().exchange(operation, site, value, bytes, parameter);
}
void bad_collective(const char*, const Site& site, const char* what, unsigned long number) {
  group().fail(ErrorKind::collective, what, number, site);
}
void simdgroup_barrier(unsigned flags, const Site& site) { group().simdgroup_barrier(flags, site); }
void threadgroup_barrier(unsigned flags, const Site& site) {
  group().threadgroup_barrier(flags, site);
}

unsigned atomic(AtomicOperation operation, AtomicType type, volatile void* address,
                unsigned operand, const Site& site) {
  volatile unsigned* word = checked_word(address, site);
  if (type == AtomicType::float32 &&
      group().in_threadgroup_memory(reinterpret_cast<std::size_t>(address)))
    group().fail(ErrorKind::usage, "atomic_float is for device memory, not threadgroup memory:", 0,
                 site);
  // Other threadgroups may run on other threads of the CPU.
  unsigned old = __atomic_load_n(word, __ATOMIC_RELAXED);
  if (operation == AtomicOperation::load) return old;
  while (!__atomic_compare_exchange_n(word, &old, combine(operation, type, old, operand), false,
                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}

bool atomic_compare_exchange(volatile void* address, unsigned* expected, unsigned desired,
                             const Site& site) {
  volatile unsigned* word = checked_word(address, site);
  return __atomic_compare_exchange_n(word, expected, desired, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED);
}

void* threadgroup_array(const char* name, unsigned long bytes, unsigned long alignment,
                        const Site& site) {
  return group().shared_array(name, bytes, alignment, site);
}
void* buffer_argument(unsigned index, unsigned long bytes, unsigned long alignment) {
  return group().buffer_argument(index, bytes, alignment);
}
void* threadgroup_argument(unsigned index, unsigned long alignment) {
  return group().threadgroup_argument(index, alignment);
}
unsigned position(Position which, unsigned axis) { return group().position(which, axis); }
unsigned lane_index() { return group().lane_index(); }

}  // namespace moeblas::emu
