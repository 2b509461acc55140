// Tensor maps on the host: what they are made of, in the place of what the driver makes of that.
#pragma once

#include <cstring>

#include "block/block.h"
#include "cuda/tensor_map.h"

namespace moeblas::test {

struct MapOfHost {
  static constexpr uint32_t kIsOne = 0x6d617073;

  uint32_t is_one;
  uint32_t swizzle;
  uint64_t dims;
  const void* data;
  uint64_t size[cuda::TensorMapShape::kMaxDims], stride[cuda::TensorMapShape::kMaxDims];
  uint16_t box[cuda::TensorMapShape::kMaxDims];
};
static_assert(sizeof(MapOfHost) <= sizeof(CUtensorMap));

inline CUtensorMap map_of_host(const cuda::TensorMapShape& shape) {
  MapOfHost of{
      MapOfHost::kIsOne, static_cast<uint32_t>(shape.swizzle), shape.dims, shape.data, {}, {}, {}};
  for (size_t d = 0; d < shape.size.size(); ++d) {
    const bool has = d < shape.dims;
    of.size[d] = has ? shape.size[d] : 1;
    of.stride[d] = has ? shape.stride[d] : 0;
    of.box[d] = static_cast<uint16_t>(has ? shape.box[d] : 1);
  }
  CUtensorMap map{};
  std::memcpy(&map, &of, sizeof of);
  return map;
}
inline MapOfHost on_host(const CUtensorMap* map) {
  MapOfHost of;
  std::memcpy(&of, map, sizeof of);
  if (of.is_one != MapOfHost::kIsOne) block_fails("a copy by what is no tensor map");
  return of;
}

}  // namespace moeblas::test
