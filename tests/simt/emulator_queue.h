// A Queue over the emulator. Memory must be made known: what a step's pointers lead to has bounds
// there, and inputs cannot be written.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "emu/emulator.h"
#include "simt/plan.h"

namespace moeblas::test {

class EmulatorQueue final : public simt::Queue {
 public:
  explicit EmulatorQueue(emu::Schedule schedule = emu::Schedule::forward) {
    options_.schedule = schedule;
    options_.seed = 7;
  }
  virtual ~EmulatorQueue() = default;

  void input(const void* data, size_t bytes) { add(data, bytes, false); }
  void output(void* data, size_t bytes) { add(data, bytes, true); }
  const std::vector<std::string>& kernels() const { return kernels_; }
  // Replaces the names of kernels by others, for planted copies.
  void rename(std::string from, std::string to) { from_ = std::move(from), to_ = std::move(to); }

  void run(const simt::Step& step) override {
    const std::string name = step.kernel == from_ ? to_ : step.kernel;
    kernels_.push_back(name);
    emu::Command command(name);
    for (unsigned i = 0; i < step.pointer_count; ++i) bind(command, i, step.pointers[i]);
    command.set_bytes(static_cast<unsigned>(step.pointer_count), step.params.data(),
                      step.param_bytes);
    command.dispatch({step.groups[0], step.groups[1], step.groups[2]},
                     {step.threads[0], step.threads[1], step.threads[2]}, options_);
  }

 private:
  struct Region {
    uintptr_t begin;
    size_t bytes;
    bool writable;
  };
  void add(const void* data, size_t bytes, bool writable) {
    if (bytes > 0) regions_.push_back({reinterpret_cast<uintptr_t>(data), bytes, writable});
  }
  void bind(emu::Command& command, unsigned index, void* pointer) const {
    if (pointer == nullptr) {
      command.bind(index, pointer, 0);  // an error if the kernel touches it
      return;
    }
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
    throw std::logic_error("pointer " + std::to_string(index) + " leads to unknown memory");
  }

  emu::DispatchOptions options_;
  std::vector<Region> regions_;
  std::vector<std::string> kernels_;
  std::string from_, to_;
};

}  // namespace moeblas::test
