// Rows whose work list is the portable kernels': the emulator runs those, thread blocks of the host
// the row's own kernel.
#pragma once

#include <string>
#include <string_view>

#include "cases_on_blocks.h"
#include "simt/emulator_queue.h"
#include "support/generator.h"

namespace moeblas::test {

class BlockQueue final : public simt::Queue {
 public:
  // Kernels whose names begin so run by `run_on_blocks`.
  BlockQueue(std::string_view name, void (*run_on_blocks)(const simt::Step&, uint64_t seed),
             const Operands& o, uint64_t seed)
      : name_(name), run_on_blocks_(run_on_blocks), seed_(seed) {
    for (const Operand* index : {&o.lhs, &o.rhs, &o.ranges}) {
      lists.input(index->memory.data(), index->memory.size());
    }
  }
  EmulatorQueue lists;
  std::string kernel;  // the last that ran on blocks

  void run(const simt::Step& step) override {
    if (!std::string_view(step.kernel).starts_with(name_)) return lists.run(step);
    kernel = step.kernel;
    run_on_blocks_(step, seed_);
  }

 private:
  std::string_view name_;
  void (*run_on_blocks_)(const simt::Step&, uint64_t seed);
  uint64_t seed_;
};

// The emulator knows nothing before the address that a kernel is given.
inline Case with_plain_indices(Case c) {
  for (Layout* index : {&c.lhs, &c.rhs, &c.ranges}) {
    if (index->present) *index = plain(index->dtype, index->shape);
  }
  return c;
}

// A product of any kind.
inline Case any_case(uint64_t seed) {
  constexpr Op kProducts[] = {Op::quantized_matmul, Op::gather_qmm, Op::gather_qmv,
                              Op::grouped_qmm};
  return with_plain_indices(
      make_case(kProducts[seed % std::size(kProducts)], seed / std::size(kProducts)));
}

}  // namespace moeblas::test
