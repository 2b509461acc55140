// Undefined behaviour in kernel text - an index past an array, a misaligned vector, a shift too far
// - as an error of the emulator. clang calls these where its checks fail; the first thing that each
// is given is the place. Weak: in a build with a sanitizer the handlers of its library take over.
#include "threadgroup.h"

namespace {

void report(const char* what, const void* data) {
  const auto* site = static_cast<const moeblas::emu::Site*>(data);
  moeblas::emu::Threadgroup* group = moeblas::emu::Threadgroup::running();
  if (group) group->fail_at(moeblas::emu::ErrorKind::undefined, what, *site);
}

}  // namespace

#define MOEBLAS_EMU_UNDEFINED(handler, what)                                                       \
  extern "C" __attribute__((weak)) void __ubsan_handle_##handler(const void* data, void*, void*) { \
    report(what, data);                                                                            \
  }

MOEBLAS_EMU_UNDEFINED(out_of_bounds, "an index past the end of an array")
MOEBLAS_EMU_UNDEFINED(type_mismatch_v1, "an access at a misaligned address")
MOEBLAS_EMU_UNDEFINED(shift_out_of_bounds, "a shift by too much, or of a negative number")
MOEBLAS_EMU_UNDEFINED(divrem_overflow, "a division by zero, or one that overflows")
MOEBLAS_EMU_UNDEFINED(add_overflow, "an addition of signed integers that overflows")
MOEBLAS_EMU_UNDEFINED(sub_overflow, "a subtraction of signed integers that overflows")
MOEBLAS_EMU_UNDEFINED(mul_overflow, "a product of signed integers that overflows")
MOEBLAS_EMU_UNDEFINED(negate_overflow, "a negation that overflows")
MOEBLAS_EMU_UNDEFINED(float_cast_overflow, "a conversion to an integer that cannot hold the value")
MOEBLAS_EMU_UNDEFINED(load_invalid_value, "a bool that is neither true nor false")
MOEBLAS_EMU_UNDEFINED(builtin_unreachable, "a place that is marked unreachable")
MOEBLAS_EMU_UNDEFINED(missing_return, "the end of a function without its return")
