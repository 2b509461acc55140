// Which matrices of a stack the rows of a case meet, in each of its buffer sets.
//
// One routing is drawn per case, so that every call does the same work. The set decides which
// experts stand behind it: the distinct experts of the routing move to places of the stack that no
// other set uses, and to further stacks when the first is full. Only experts that some set uses are
// ever written.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "bench/random.h"
#include "bench/routing.h"

namespace moeblas::bench {

class Selection {
 public:
  // experts = 0: one matrix, which every row meets. sorted: rows lie in the order of their experts.
  Selection(Routing routing, int64_t experts, int64_t top_k, int64_t tokens, bool sorted,
            const Random& random);

  int64_t rows() const { return tokens_ * top_k_; }
  int64_t matrices() const { return experts_ > 0 ? experts_ : 1; }
  // Matrices that some row meets.
  int64_t distinct() const { return drawn().distinct; }
  // Of each row: 0 .. distinct() - 1.
  const std::vector<int32_t>& labels() const { return drawn().labels; }

  struct Place {
    int64_t stack = 0;
    std::vector<int32_t> experts;  // of each label
  };
  Place place(int64_t set) const;
  int64_t stacks(int64_t sets) const;
  // The expert of each row.
  std::vector<int32_t> experts(int64_t set) const;

 private:
  struct Drawn {
    std::vector<int32_t> labels;
    int64_t distinct = 1;
    std::vector<int32_t> order;  // of places in a stack
  };
  // At the first question: what only needs sizes costs no draw.
  const Drawn& drawn() const;

  Routing routing_;
  int64_t experts_, top_k_, tokens_;
  bool sorted_;
  Random random_;
  mutable std::optional<Drawn> drawn_;
};

}  // namespace moeblas::bench
