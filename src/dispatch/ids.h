// Indices as callers store them: any integer dtype; and the words for one that is out of range.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "moeblas/error.h"
#include "moeblas/tensor.h"

namespace moeblas::dispatch {

// Element i of an integer array; unsigned values beyond int64 become its largest value, which is
// out of every range.
inline int64_t load_integer(const void* p, DType dtype, int64_t i) {
  const auto load = [&]<class T>(T value) {
    std::memcpy(&value, static_cast<const char*>(p) + i * static_cast<int64_t>(sizeof value),
                sizeof value);
    return value;
  };
  switch (dtype) {
    case DType::i8:
      return load(int8_t{});
    case DType::i16:
      return load(int16_t{});
    case DType::i32:
      return load(int32_t{});
    case DType::u8:
      return load(uint8_t{});
    case DType::u16:
      return load(uint16_t{});
    case DType::u32:
      return load(uint32_t{});
    case DType::u64: {
      const uint64_t u = load(uint64_t{});
      constexpr auto most = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
      return static_cast<int64_t>(u < most ? u : most);
    }
    default:
      return load(int64_t{});
  }
}

// For options.check_ids.
inline void require_in_range(const char* op, const char* array, int64_t position, int64_t value,
                             int64_t least, int64_t most) {
  if (value >= least && value <= most) return;
  throw Error(MOEBLAS_INVALID_ARGUMENT, std::string("[") + op + "] " + array + " holds " +
                                            std::to_string(value) + " at position " +
                                            std::to_string(position) + ", expected " +
                                            std::to_string(least) + " to " + std::to_string(most));
}

}  // namespace moeblas::dispatch
