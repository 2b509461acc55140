// Metal's side of jobs: memory that the CPU and the GPU share, of the library's or of this
// program's.
#pragma once

#include "job.h"

namespace moeblas::gpu {

inline constexpr Device kMetal{MOEBLAS_METAL, 0};

class MetalLane final : public Lane {
 public:
  enum class Memory {
    library,  // of moeblas_buffer_alloc
    pages     // of mmap, which the library wraps
  };

  explicit MetalLane(Memory memory, void* queue = nullptr) : memory_(memory), queue_(queue) {}
  ~MetalLane() override { clear(); }
  MetalLane(const MetalLane&) = delete;
  MetalLane& operator=(const MetalLane&) = delete;

  Device device() const override { return kMetal; }
  void* stream() const override { return queue_; }
  void send(const Block& block) override;
  uint8_t* base() const override { return base_; }
  std::vector<uint8_t> fetch(const Block& block) override;

 private:
  void clear();

  Memory memory_;
  void* queue_;
  uint8_t* base_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace moeblas::gpu
