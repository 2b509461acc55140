// One threadgroup at a time: its lanes, where they meet, the memory they share.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "../emulator.h"
#include "../msl/detail/runtime.h"
#include "fiber.h"
#include "race.h"
#include "schedule.h"

namespace moeblas::emu {

class Threadgroup {
 public:
  Threadgroup(const Command& command, const DispatchOptions& options, Size threadgroups,
              Size threads);

  // Runs the threadgroup at this position of the grid; throws Error.
  void run(Size position);

  // The threadgroup whose lane is running on this thread of the CPU, or null.
  static Threadgroup* running() { return running_group_; }

  // What lanes call. Each returns to the lane, or abandons it for an error.
  const unsigned char* exchange(const char* operation, const Site& site, const void* value,
                                unsigned bytes, unsigned parameter);
  void simdgroup_barrier(unsigned flags, const Site& site);
  void threadgroup_barrier(unsigned flags, const Site& site);
  void before_atomic();
  void* shared_array(const char* name, std::size_t bytes, std::size_t alignment, const Site& site);
  void* threadgroup_argument(unsigned index, std::size_t alignment);
  void* buffer_argument(unsigned index, std::size_t bytes, std::size_t alignment);
  unsigned position(Position which, unsigned axis) const;
  unsigned lane_index() const { return running_ % 32; }
  void check_access(std::size_t address, std::size_t bytes, Access access);
  void check_aligned_access(std::size_t address, std::size_t bytes, Access access);
  bool in_threadgroup_memory(std::size_t address) const {
    return address - reinterpret_cast<std::size_t>(arena_.data()) < arena_.size();
  }
  [[noreturn]] void fail_at(ErrorKind kind, const char* what, const Site& site);
  [[noreturn]] void fail(ErrorKind kind, const char* what, unsigned long number, const Site& site);

 private:
  enum class Wait { none, collective, barrier, done };
  struct Lane {
    Fiber fiber;
    Threadgroup* group = nullptr;
    Wait wait = Wait::none;
    const char* operation = nullptr;
    Site site{nullptr, 0, 0};
    unsigned parameter = 0;
    Site last_met{nullptr, 0, 0};
  };
  struct Simdgroup {
    alignas(16) unsigned char slots[2][kSimdWidth * kSlotBytes];
    unsigned turn = 0;  // which half of slots is being filled: slow lanes still read the other
    unsigned lanes = 0;
    unsigned waiting = 0;        // at a collective, all at the same one
    unsigned first_waiting = 0;  // any of those
    unsigned elsewhere = 0;      // at a barrier or done
    std::uint32_t epoch = 1;
  };
  struct Shared {
    std::string name;
    std::size_t offset, bytes;
    Site site;
    int argument;  // its index, or -1
  };

  static void lane_main(void* lane);
  void finish();
  void step_aside();
  void leave_for(int next);
  [[noreturn]] void abandon();
  Lane& self() { return *lanes_[running_]; }

  Simdgroup& group_of_self() { return simdgroups_[running_ / 32]; }

  // These build the message in a frame of their own, since an abandoned lane destroys nothing.
  void report_meeting(const char* operation, const Site& site, unsigned parameter);
  void report_barrier(const Site& site);
  void report_return();
  bool add_shared(const char* name, std::size_t bytes, std::size_t alignment, const Site& site,
                  int argument, std::size_t& offset);
  bool allowed(std::size_t address, std::size_t bytes, Access access);
  bool allowed_in_arena(std::size_t address, std::size_t bytes, Access access);
  bool report_unwritten();
  void set_failure(ErrorKind kind, const std::string& what);
  void report_bounds(std::size_t address, std::size_t bytes, Access access);
  std::string place(unsigned thread) const;
  std::string by_self() const { return ", by " + who(running_) + ", which " + place(running_); }
  std::string who(unsigned thread) const;

  // Read before every access: a plain thread variable, without the wrapper of thread_local.
  static __thread Threadgroup* running_group_;

  const Command& command_;
  const DispatchOptions options_;
  const Size groups_, threads_;
  const unsigned thread_count_;
  Size at_;

  std::vector<std::unique_ptr<Lane>>& lanes_;
  std::vector<Simdgroup> simdgroups_;
  LaneQueue queue_;
  Fiber main_;
  unsigned running_ = 0;
  unsigned done_ = 0;
  unsigned at_barrier_ = 0;
  unsigned first_at_barrier_ = 0;  // any thread of those
  std::uint32_t epoch_ = 0;
  std::uint32_t first_epoch_ = 1;

  std::vector<unsigned char> arena_;
  std::size_t arena_used_ = 0;
  std::size_t shared_bytes_ = 0;
  std::vector<Shared> shared_;
  RaceShadow shadow_;
  const void* last_binding_ = nullptr;

  // The first read of what none had written, told when its epoch ends: if the write still comes in
  // that epoch, a race is the better name.
  std::string unwritten_;

  bool failed_ = false;
  ErrorKind failure_kind_ = ErrorKind::usage;
  std::string failure_;
};

}  // namespace moeblas::emu
