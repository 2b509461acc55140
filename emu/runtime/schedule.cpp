#include "schedule.h"

namespace moeblas::emu {

const char* name_of(Schedule schedule) {
  switch (schedule) {
    case Schedule::forward:
      return "forward";
    case Schedule::reverse:
      return "reverse";
    case Schedule::random:
      return "random";
    case Schedule::greedy:
      return "greedy";
  }
  return "?";
}

void LaneQueue::start(unsigned threads, Schedule schedule, std::uint64_t seed) {
  ready_.fill(0);
  simdgroups_ = (threads + 31) / 32;
  for (unsigned t = 0; t < threads; ++t) make_ready(t);
  schedule_ = schedule;
  random_ = seed * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du;
  last_ = schedule == Schedule::forward ? threads - 1 : 0;
  if (schedule == Schedule::greedy)
    last_ = static_cast<unsigned>(next_random() % simdgroups_) * 32u;
}

// splitmix64
std::uint64_t LaneQueue::next_random() {
  random_ += 0x9e3779b97f4a7c15u;
  std::uint64_t z = random_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

int LaneQueue::take() {
  switch (schedule_) {
    case Schedule::forward:
      return take_ascending((last_ + 1) % (simdgroups_ * 32));
    case Schedule::reverse:
      return take_descending((last_ + simdgroups_ * 32 - 1) % (simdgroups_ * 32));
    case Schedule::random:
      return take_random();
    case Schedule::greedy:
      return take_greedy();
  }
  return -1;
}

int LaneQueue::take_lane(unsigned simdgroup, unsigned lane) {
  ready_[simdgroup] &= ~(1u << lane);
  last_ = simdgroup * 32 + lane;
  return static_cast<int>(last_);
}

int LaneQueue::take_ascending(unsigned from) {
  const unsigned first = from / 32;
  const std::uint32_t at_or_above = ~0u << (from % 32);
  for (unsigned i = 0; i <= simdgroups_; ++i) {
    const unsigned s = (first + i) % simdgroups_;
    std::uint32_t lanes = ready_[s];
    if (i == 0) lanes &= at_or_above;
    if (lanes) return take_lane(s, static_cast<unsigned>(__builtin_ctz(lanes)));
  }
  return -1;
}

int LaneQueue::take_descending(unsigned from) {
  const unsigned first = from / 32;
  const std::uint32_t at_or_below = ~0u >> (31 - from % 32);
  for (unsigned i = 0; i <= simdgroups_; ++i) {
    const unsigned s = (first + simdgroups_ * 2 - i) % simdgroups_;
    std::uint32_t lanes = ready_[s];
    if (i == 0) lanes &= at_or_below;
    if (lanes) return take_lane(s, 31u - static_cast<unsigned>(__builtin_clz(lanes)));
  }
  return -1;
}

int LaneQueue::take_random() {
  const unsigned first = static_cast<unsigned>(next_random() % simdgroups_);
  for (unsigned i = 0; i < simdgroups_; ++i) {
    const unsigned s = (first + i) % simdgroups_;
    if (!ready_[s]) continue;
    // The ready lane at or after a random one.
    const unsigned turn = static_cast<unsigned>(next_random() % 32);
    const std::uint32_t lanes = ready_[s], later = lanes & (~0u << turn);
    return take_lane(s, static_cast<unsigned>(__builtin_ctz(later ? later : lanes)));
  }
  return -1;
}

int LaneQueue::take_greedy() {
  const unsigned s = last_ / 32;
  if (ready_[s]) return take_lane(s, static_cast<unsigned>(__builtin_ctz(ready_[s])));
  return take_ascending(s * 32);
}

}  // namespace moeblas::emu
