// Problems through the portable kernels on the emulator, next to the same call on the CPU backend.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cpu/elements.h"
#include "emu/emulator.h"
#include "moeblas/ops.h"
#include "simt/plan.h"

namespace moeblas::test {

inline constexpr uint8_t kPoison = 0xa5;

// Memory with a strided view; what lies between the view's elements stays poisoned.
class Strided {
 public:
  Strided() = default;
  Strided(DType dtype, const Shape& shape, const Shape& strides, int64_t offset = 0) {
    int64_t extent = offset + 1;
    for (int i = 0; i < shape.ndim(); ++i)
      extent += std::max<int64_t>(shape[i] - 1, 0) * strides[i];
    bytes_.assign(static_cast<size_t>(shape.numel() > 0 ? extent : offset) * size_of(dtype),
                  kPoison);
    view_ = TensorView(bytes_.data() + static_cast<size_t>(offset) * size_of(dtype), dtype, shape,
                       strides);
  }
  Strided(DType dtype, const Shape& shape) : Strided(dtype, shape, contiguous_strides(shape)) {}
  Strided(const Strided& other) { *this = other; }
  Strided& operator=(const Strided& other) {
    const auto offset = static_cast<uint8_t*>(other.view_.data) - other.bytes_.data();
    bytes_ = other.bytes_;
    view_ = other.view_;
    if (view_) view_.data = bytes_.data() + offset;
    return *this;
  }

  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }
  std::vector<uint8_t>& bytes() { return bytes_; }
  const std::vector<uint8_t>& bytes() const { return bytes_; }
  int64_t numel() const { return view_.numel(); }
  // Element `flat` in row-major order.
  int64_t at(int64_t flat) const {
    return dispatch::strided_offset(flat, view_.shape, view_.strides);
  }
  float get(int64_t flat) const { return cpu::load_float(view_.data, view_.dtype, at(flat)); }
  void set(int64_t flat, float v) { cpu::store_float(view_.data, view_.dtype, at(flat), v); }
  int64_t integer(int64_t flat) const {
    return cpu::load_integer(view_.data, view_.dtype, at(flat));
  }
  void set_integer(int64_t flat, int64_t v) {
    std::memcpy(
        static_cast<char*>(view_.data) + at(flat) * static_cast<int64_t>(size_of(view_.dtype)), &v,
        size_of(view_.dtype));
  }
  template <class F>
  Strided& fill(F&& f) {
    for (int64_t i = 0; i < numel(); ++i) set(i, f(i));
    return *this;
  }
  template <class F>
  Strided& fill_integers(F&& f) {
    for (int64_t i = 0; i < numel(); ++i) set_integer(i, f(i));
    return *this;
  }

 private:
  std::vector<uint8_t> bytes_;
  TensorView view_;
};

// Runs steps on the emulator. Every pointer of a step must lie in memory that was named before;
// kernels may not store to what was named as an input.
class EmulatorQueue final : public simt::Queue {
 public:
  explicit EmulatorQueue(emu::Schedule schedule = emu::Schedule::forward, uint64_t seed = 1) {
    options_.schedule = schedule;
    options_.seed = seed;
  }

  EmulatorQueue& input(const Strided& s) { return name(s.bytes(), false); }
  EmulatorQueue& output(const Strided& s) { return name(s.bytes(), true); }
  EmulatorQueue& memory(const void* data, size_t bytes, bool writable) {
    if (bytes > 0) memory_.push_back({static_cast<const char*>(data), bytes, writable});
    return *this;
  }
  // Poisoned memory for the time of the test.
  dispatch::Workspace workspace(size_t bytes) {
    workspace_.assign(bytes + 64, kPoison);
    void* data = workspace_.data();
    size_t room = workspace_.size();
    std::align(64, bytes, data, room);
    memory(data, bytes, true);
    return {data, bytes};
  }

  void run(const simt::Step& step) override {
    kernels.emplace_back(step.kernel);
    for (int i = 1; i < 3; ++i) EXPECT_LE(step.groups[i], simt::kMaxGroupsYZ);
    emu::Command command(step.kernel);
    for (unsigned i = 0; i < step.pointer_count; ++i) bind(command, i, step.pointers[i]);
    if (step.param_bytes > 0) {
      command.set_bytes(static_cast<unsigned>(step.pointer_count), step.params.data(),
                        step.param_bytes);
    }
    if (step.groups[0] == 0 || step.groups[1] == 0 || step.groups[2] == 0) return;
    command.dispatch({step.groups[0], step.groups[1], step.groups[2]},
                     {step.threads[0], step.threads[1], step.threads[2]}, options_);
  }

  std::vector<std::string> kernels;  // in the order in which they ran

 private:
  struct Memory {
    const char* data;
    size_t bytes;
    bool writable;
  };

  EmulatorQueue& name(const std::vector<uint8_t>& bytes, bool writable) {
    return memory(bytes.data(), bytes.size(), writable);
  }
  void bind(emu::Command& command, unsigned index, void* pointer) const {
    if (pointer == nullptr) return void(command.bind(index, pointer, 0));
    for (const Memory& m : memory_) {
      const auto offset = static_cast<size_t>(static_cast<const char*>(pointer) - m.data);
      if (static_cast<const char*>(pointer) < m.data || offset >= m.bytes) continue;
      if (m.writable) {
        command.bind(index, pointer, m.bytes - offset);
      } else {
        command.bind(index, static_cast<const void*>(pointer), m.bytes - offset);
      }
      return;
    }
    // Memory of no bytes: an error if the kernel touches it.
    command.bind(index, static_cast<const void*>(nullptr), 0);
  }

  emu::DispatchOptions options_;
  std::vector<Memory> memory_;
  std::vector<uint8_t> workspace_;
};

inline constexpr emu::Schedule kSchedules[] = {emu::Schedule::forward, emu::Schedule::reverse,
                                               emu::Schedule::random, emu::Schedule::greedy};

// Both outputs were poisoned alike, so this also says that nothing around the view was touched.
inline void expect_same_bytes(const Strided& got, const Strided& expected, const char* what) {
  ASSERT_EQ(got.bytes().size(), expected.bytes().size());
  if (got.bytes() == expected.bytes()) return;
  size_t i = 0;
  while (got.bytes()[i] == expected.bytes()[i]) ++i;
  ADD_FAILURE() << what << ": byte " << i << " of " << got.bytes().size() << " is "
                << int(got.bytes()[i]) << ", expected " << int(expected.bytes()[i]);
}

}  // namespace moeblas::test
