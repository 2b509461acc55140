// What a thread block of the host is while it runs; for block.cpp alone.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "block/block.h"
#include "emu/runtime/fiber.h"
#include "support/random.h"

namespace moeblas::test::running {

inline constexpr uint32_t kLanes = 32;
inline constexpr size_t kMostBytes = 32;  // of a lane, at a collective

struct Thread {
  emu::Fiber fiber;
  bool done = false;
  bool looks = false;           // at what another block is to write
  uint64_t met = 0;             // barriers of the cluster that it came to
  std::function<bool()> ready;  // none: it can go on
};

struct Warp {
  std::array<std::array<unsigned char, kLanes * kMostBytes>, 2> slots;
  uint64_t turn = 0;  // collectives so far
  uint32_t met = 0;
  const char* name = nullptr;
};

struct Barrier {
  uint32_t arrivals = 0, pending = 0;
  int64_t bytes = 0;
  uint64_t phase = 0;
};

struct Numbered {
  uint32_t threads = 0, arrived = 0;
  uint64_t generation = 0;
};

struct Copy {
  uint32_t to;
  size_t bytes;
  std::function<void(unsigned char*)> write;
  std::vector<uint32_t> barriers;  // at which it reports
  uint64_t number = 0;
};

struct Block;

// Blocks that run together and share a barrier.
struct Cluster {
  std::vector<Block*> blocks;  // by rank
  uint32_t threads = 0;        // that have not ended
  uint32_t arrived = 0;
  uint64_t generation = 0;

  void arrive(uint32_t count) {
    arrived += count;
    if (arrived < threads || arrived == 0) return;
    arrived = 0;
    ++generation;
  }
  // A thread, which has come to so many barriers.
  void leave(uint64_t met) {
    if (met > generation) --arrived;
    --threads;
    arrive(0);
  }
};

struct Block {
  const Grid& grid;
  const std::function<void()>& kernel;
  Random random;
  uint32_t index = 0;
  uint64_t serial = 0;
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Warp> warps;
  std::map<uint32_t, Barrier> barriers;
  std::map<uint32_t, Numbered> numbered;
  std::vector<Copy> copies;
  uint64_t copies_begun = 0;
  int64_t copies_late = 0;  // one in so many rounds has a copy, or a product
  uint64_t slow = 0;        // which barriers' copies come behind all others
  std::vector<std::function<void()>> acts;
  emu::Fiber scheduler;
  uint32_t running = 0, ended = 0;
  std::string failure;
  Cluster* cluster = nullptr;
  unsigned char* const memory;  // shared

  Block(const Grid& g, const std::function<void()>& k, unsigned char* shared, uint64_t seed)
      : grid(g), kernel(k), random(seed), memory(shared) {
    for (uint32_t i = 0; i < g.threads; ++i) threads.push_back(std::make_unique<Thread>());
  }
  void start();
  bool done() const { return ended == threads.size(); }
  void end_thread();
  unsigned char* at(uint32_t address, size_t alignment) const;
  Barrier& barrier_at(uint32_t address, const char* none);
  void arrive(uint32_t barrier, uint32_t bytes_to_come);
  void spoil(uint32_t to, size_t bytes) const;
  uint64_t copy_later(Copy copy, size_t alignment);
  bool go_on(int64_t rounds);
  void wait_for(std::function<bool()> ready);
  bool is_slow(const Copy& copy) const;
  bool advance_copies(bool slow_ones);
  bool advance_warps();
};

}  // namespace moeblas::test::running
