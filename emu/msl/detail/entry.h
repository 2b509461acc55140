// The emulator's side of simt/portable_kernel.h: how a kernel is named, and how it gets its
// arguments.
//
// clang ignores the language's attributes, so an argument says where it comes from in its default
// value instead: a lane runs a kernel by calling it with no arguments.
#pragma once

#include "address_space.h"
#include "runtime.h"
#include "types.h"

#if defined(MOEBLAS_EMU_CHECK)

#define MB_ARG(attribute)
// A reference, since a variable would want a constructor of that address space.
namespace moeblas {
namespace emu {
threadgroup void* threadgroup_array();
}
}  // namespace moeblas
#define MB_TG_ARRAY(type, name, extents) \
  threadgroup type(&name) extents =      \
      *static_cast<threadgroup type(*) extents>(::moeblas::emu::threadgroup_array())
#define MB_INSTANTIATE(name, ...) template decltype(__VA_ARGS__) __VA_ARGS__
#define MB_ENTRY(name) static_assert(sizeof(&name) != 0, "")

#else

namespace moeblas {
namespace emu {

template <class T>
struct is_pointer {
  enum { value = false };
};
template <class T>
struct is_pointer<T*> {
  enum { value = true };
};

struct BufferArgument {
  unsigned index;
  template <class T>
  operator T*() const {
    return static_cast<T*>(buffer_argument(index, 0, alignof(T)));
  }
  template <class T, metal::detail::require<!is_pointer<T>::value> = 0>
  operator T&() const {
    return *static_cast<T*>(buffer_argument(index, sizeof(T), alignof(T)));
  }
};
constexpr BufferArgument argument_buffer(unsigned index) { return BufferArgument{index}; }

struct ThreadgroupArgument {
  unsigned index;
  template <class T>
  operator T*() const {
    return static_cast<T*>(threadgroup_argument(index, alignof(T)));
  }
};
constexpr ThreadgroupArgument argument_threadgroup(unsigned index) {
  return ThreadgroupArgument{index};
}

// A position may be taken as a scalar or a vector, of 16 or 32 bits.
template <Position which>
struct VectorPosition {
  template <class S>
  static S at(unsigned axis) {
    return static_cast<S>(position(which, axis));
  }
  operator uint() const { return at<uint>(0); }
  operator ushort() const { return at<ushort>(0); }
  operator metal::uint2() const { return metal::uint2{at<uint>(0), at<uint>(1)}; }
  operator metal::uint3() const { return metal::uint3{at<uint>(0), at<uint>(1), at<uint>(2)}; }
  operator metal::ushort2() const { return metal::ushort2{at<ushort>(0), at<ushort>(1)}; }
  operator metal::ushort3() const {
    return metal::ushort3{at<ushort>(0), at<ushort>(1), at<ushort>(2)};
  }
};
template <Position which>
struct ScalarPosition {
  operator uint() const { return position(which, 0); }
  operator ushort() const { return static_cast<ushort>(position(which, 0)); }
};

constexpr VectorPosition<Position::thread_in_grid> argument_thread_position_in_grid{};
constexpr VectorPosition<Position::thread_in_threadgroup> argument_thread_position_in_threadgroup{};
constexpr VectorPosition<Position::threadgroup_in_grid> argument_threadgroup_position_in_grid{};
constexpr VectorPosition<Position::threads_per_threadgroup> argument_threads_per_threadgroup{};
constexpr VectorPosition<Position::threadgroups_per_grid> argument_threadgroups_per_grid{};
constexpr VectorPosition<Position::threads_per_grid> argument_threads_per_grid{};
constexpr ScalarPosition<Position::thread_index_in_threadgroup>
    argument_thread_index_in_threadgroup{};
constexpr ScalarPosition<Position::thread_index_in_simdgroup> argument_thread_index_in_simdgroup{};
constexpr ScalarPosition<Position::simdgroup_index_in_threadgroup>
    argument_simdgroup_index_in_threadgroup{};
constexpr ScalarPosition<Position::simdgroups_per_threadgroup>
    argument_simdgroups_per_threadgroup{};
constexpr ScalarPosition<Position::threads_per_simdgroup> argument_threads_per_simdgroup{};

}  // namespace emu
}  // namespace moeblas

// Pasted, so that threadgroup(0) is not taken for the address space.
#define MB_ARG(attribute) = ::moeblas::emu::argument_##attribute

#define MB_TG_ARRAY(type, name, extents)                                                 \
  type(&name) extents = *static_cast<type(*) extents>(::moeblas::emu::threadgroup_array( \
      #name, sizeof(type extents), alignof(type), ::moeblas::emu::here()))

#define MB_EMU_ROW(identifier, name, ...)                                                         \
  static ::moeblas::emu::KernelRow identifier = {name, [] { __VA_ARGS__(); }, __FILE__, nullptr}; \
  static const bool identifier##_added = ::moeblas::emu::add_kernel(&identifier)
#define MB_INSTANTIATE(name, ...) MB_EMU_ROW(mb_row_##name, #name, __VA_ARGS__)
#define MB_ENTRY(name) MB_EMU_ROW(mb_row_##name, #name, name)

#endif
