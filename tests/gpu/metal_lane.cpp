#include "metal_lane.h"

#include <sys/mman.h>

#include <cstring>

namespace moeblas::gpu {

void MetalLane::clear() {
  if (base_ == nullptr) return;
  if (memory_ == Memory::library) {
    moeblas_buffer_free({kMetal.type, kMetal.id}, base_);
  } else {
    munmap(base_, bytes_);
  }
  base_ = nullptr;
}

void MetalLane::send(const Block& block) {
  if (block.size() > bytes_) {
    clear();
    bytes_ = block.size();
    if (memory_ == Memory::library) {
      void* memory = nullptr;
      check(moeblas_buffer_alloc({kMetal.type, kMetal.id}, bytes_, &memory));
      base_ = static_cast<uint8_t*>(memory);
    } else {
      void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
      if (memory == MAP_FAILED) throw std::runtime_error("mmap gave no memory");
      base_ = static_cast<uint8_t*>(memory);
    }
  }
  std::memcpy(base_, block.bytes(), block.size());
}

std::vector<uint8_t> MetalLane::fetch(const Block& block) {
  std::vector<uint8_t> bytes(block.size());
  check(moeblas_buffer_copy({MOEBLAS_CPU, 0}, bytes.data(), {kMetal.type, kMetal.id}, base_,
                            bytes.size()));
  return bytes;
}

}  // namespace moeblas::gpu
