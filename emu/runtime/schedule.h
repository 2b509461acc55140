// Which ready lane runs next.
#pragma once

#include <array>
#include <cstdint>

#include "../emulator.h"

namespace moeblas::emu {

class LaneQueue {
 public:
  void start(unsigned threads, Schedule schedule, std::uint64_t seed);

  void make_ready(unsigned thread) { ready_[thread / 32] |= 1u << (thread % 32); }
  void make_ready_simdgroup(unsigned simdgroup, std::uint32_t lanes) { ready_[simdgroup] |= lanes; }

  // Takes the next lane out of the queue; -1 if none is ready.
  int take();

  // A coin for the random schedule: where a lane need not wait, whether it steps back anyway.
  bool flip() { return schedule_ == Schedule::random && (next_random() & 1) != 0; }

 private:
  std::uint64_t next_random();
  int take_ascending(unsigned from);
  int take_descending(unsigned from);
  int take_random();
  int take_greedy();
  int take_lane(unsigned simdgroup, unsigned lane);

  std::array<std::uint32_t, 32> ready_{};
  unsigned simdgroups_ = 0;
  unsigned last_ = 0;
  Schedule schedule_ = Schedule::forward;
  std::uint64_t random_ = 1;
};

}  // namespace moeblas::emu
