// A Queue over the emulator. Memory must be made known: what a step's pointers lead to has bounds
// there, and inputs cannot be written.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "emu/emulator.h"
#include "simt/plan.h"

namespace moeblas::test {

inline constexpr uint8_t kEmulatorPoison = 0xa5;

class EmulatorQueue final : public simt::Queue {
 public:
  explicit EmulatorQueue(emu::Schedule schedule = emu::Schedule::forward) {
    options_.schedule = schedule;
    options_.seed = 7;
  }

  EmulatorQueue& input(const void* data, size_t bytes) { return add(data, bytes, false); }
  EmulatorQueue& output(void* data, size_t bytes) { return add(data, bytes, true); }
  // Arrays, whole.
  template <class A>
  EmulatorQueue& input(const A& array) {
    return add(array.bytes().data(), array.bytes().size(), false);
  }
  template <class A>
  EmulatorQueue& output(const A& array) {
    return add(array.bytes().data(), array.bytes().size(), true);
  }
  // Poisoned memory of exactly these bytes, for the time of the test.
  dispatch::Workspace workspace(size_t bytes) {
    workspace_.assign(bytes + 64, kEmulatorPoison);
    void* data = workspace_.data();
    size_t room = workspace_.size();
    std::align(64, bytes, data, room);
    add(data, bytes, true);
    return {data, bytes};
  }

  // Replaces the names of kernels by others, for planted copies.
  void rename(std::string from, std::string to) { from_ = std::move(from), to_ = std::move(to); }

  void run(const simt::Step& step) override {
    const std::string name = step.kernel == from_ ? to_ : step.kernel;
    for (size_t i = 1; i < 3; ++i) EXPECT_LE(step.groups[i], simt::kMaxGroupsYZ);
    emu::Command command(name);
    for (unsigned i = 0; i < step.pointer_count; ++i) bind(command, i, step.pointers[i]);
    if (step.param_bytes > 0) {
      command.set_bytes(static_cast<unsigned>(step.pointer_count), step.params.data(),
                        step.param_bytes);
    }
    if (step.groups[0] == 0 || step.groups[1] == 0 || step.groups[2] == 0) return;
    command.dispatch({step.groups[0], step.groups[1], step.groups[2]},
                     {step.threads[0], step.threads[1], step.threads[2]}, options_);
  }

 private:
  struct Region {
    uintptr_t begin;
    size_t bytes;
    bool writable;
  };

  EmulatorQueue& add(const void* data, size_t bytes, bool writable) {
    if (bytes > 0) regions_.push_back({reinterpret_cast<uintptr_t>(data), bytes, writable});
    return *this;
  }
  void bind(emu::Command& command, unsigned index, void* pointer) const {
    const auto at = reinterpret_cast<uintptr_t>(pointer);
    for (const Region& r : regions_) {
      if (at < r.begin || at >= r.begin + r.bytes) continue;
      const size_t bytes = r.begin + r.bytes - at;
      if (r.writable) {
        command.bind(index, pointer, bytes);
      } else {
        command.bind(index, static_cast<const void*>(pointer), bytes);
      }
      return;
    }
    // Null, or memory of no bytes: an error if the kernel touches it.
    command.bind(index, static_cast<const void*>(nullptr), 0);
  }

  emu::DispatchOptions options_;
  std::vector<Region> regions_;
  std::vector<uint8_t> workspace_;
  std::string from_, to_;
};

}  // namespace moeblas::test
