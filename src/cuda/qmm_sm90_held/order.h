// Where lanes of the kernels of qmm_sm90 that hold rows of x in registers read codes, scales and
// rows of x, which lie in the 128-byte swizzle of their boxes, and whose sums of a batch a block of
// a cluster adds up.
#pragma once

#include <cstdint>

#include "cuda/qmm_sm90/order.h"
#include "cuda/qmm_sm90_held/params.h"

namespace moeblas::cuda {

// A group is 64 k, which four products make: lane 4g + t has 16 of it, of rows g and g + 8 of a
// tile eight bytes of codes each. They are two runs of eight, whose words lie side by side or,
// where each half of a group has a scale of its own, in two halves. The same k of a token are words
// of B.
template <bool kHalves>
struct HeldOrder {
  // In bytes of a slot: of a slice's first group of row `row`; of further ones, and of the second
  // half of one, by exclusive or. A slice has `rows` of them together.
  static __host__ __device__ constexpr uint32_t codes(uint32_t row, uint32_t t, uint32_t slice,
                                                      uint32_t rows = kHeldRows) {
    const uint32_t line = (slice * rows + row) * kHeldPieces;
    if (kHalves) return line * 128 + line % 8 * 16 + t * 4;
    return line * 128 + (t / 2 ^ line % 8) * 16 + t % 2 * 8;
  }
  static __host__ __device__ constexpr uint32_t next_codes(uint32_t group) {
    return group % 4 * 32 ^ group / 4 * (128 + 16);
  }
  static constexpr uint32_t kSecondHalf = 16;
  // Those of a row's scales that are a slice's, in bytes, where a row has `row_bytes`.
  static __host__ __device__ constexpr uint32_t scales(uint32_t row, uint32_t slice,
                                                       uint32_t row_bytes = kHeldScaleBox) {
    const uint32_t line = row * row_bytes / 128;
    return row * row_bytes + (slice ^ line % (row_bytes / 16)) * 16;
  }
  // The k of a slice whose rows of x a lane loads at once, eight of them, the first or the second
  // of its runs of a group.
  static __host__ __device__ constexpr uint32_t rows(uint32_t t, uint32_t group, uint32_t second) {
    return kHalves ? group * 64 + second * 32 + t * 8 : group * 64 + t * 16 + second * 8;
  }
};

// Of eight neighbouring k from `k` on, a multiple of eight, where the k + g and k + g + 4 stand in
// a staged row: side by side.
__host__ __device__ constexpr uint32_t held_staged_word(uint32_t k, uint32_t g) {
  return k / 128 * 128 + (k / 8 % 4 * 2 + g / 2) * 16 + g % 2 * 8 + k / 32 % 4 * 2;
}
constexpr bool held_staged_words_are_in_order() {
  for (uint32_t k = 0; k < 256; k += 8) {
    for (uint32_t g = 0; g < 4; ++g) {
      const uint32_t at = held_staged_word(k, g), in_block = at % 128;
      if (at / 128 != k / 128 || at % 2 != 0) return false;
      if (NibbleOrder::natural_k(in_block) != k % 128 + g) return false;
      if (NibbleOrder::natural_k(in_block + 1) != k % 128 + g + 4) return false;
    }
  }
  return true;
}
static_assert(held_staged_words_are_in_order(), "activations lie as the next product reads them");

// Of a batch's units, the octets of tokens of each 16 rows of w: every shares-th is a block's.
struct HeldUnits {
  static __host__ __device__ constexpr uint32_t owner(uint32_t unit, uint32_t shares) {
    return unit % shares;
  }
  static __host__ __device__ constexpr uint32_t place(uint32_t unit, uint32_t shares) {
    return unit / shares;
  }
  static __host__ __device__ constexpr uint32_t unit(uint32_t place, uint32_t rank,
                                                     uint32_t shares) {
    return place * shares + rank;
  }
  static __host__ __device__ constexpr uint32_t count(uint32_t units, uint32_t rank,
                                                      uint32_t shares) {
    return units / shares + (units % shares > rank ? 1 : 0);
  }
};

// What blocks make of a matrix of `tiles` whose rows of x are so many passes, a block's share of
// all being `each` tiles: so many of one pass, then the same for the next one, whose codes come
// from the L2 cache then, since another block reads them at that time.
struct HeldPasses {
  uint32_t passes, each, tiles;

  struct Place {
    uint32_t pass, tile;
    uint32_t count;  // of neighbouring tiles of this pass from there on
  };
  __host__ __device__ constexpr Place place(uint32_t number) const {
    const uint32_t first = number / (each * passes) * each, within = number - first * passes;
    const uint32_t length = tiles - first < each ? tiles - first : each, pass = within / length;
    const uint32_t tile = within - pass * length;
    return {pass, first + tile, length - tile};
  }
};

// Quotients by products with 2^32 / divisor, rounded up: what a division says where number times
// divisor is less than 2^32, and beyond that not less. (Of 1 there is no such number: one less.)
__host__ __device__ constexpr uint32_t held_reciprocal(uint32_t divisor) {
  return divisor == 1 ? ~0u : ~0u / divisor + 1;
}
__host__ __device__ constexpr uint32_t held_quotient(uint32_t number, uint32_t reciprocal) {
  return static_cast<uint32_t>(uint64_t{number} * reciprocal >> 32);
}
// Which of x's rows a pair is of, of so many choices each: a half more than the pair's number, by
// twice as many, as there may be one.
__host__ __device__ constexpr uint32_t held_by_choices(uint32_t choices) {
  return held_reciprocal(2 * choices);
}
__host__ __device__ constexpr uint32_t held_row_of(uint32_t pair, uint32_t by_choices) {
  return held_quotient(2 * pair + 1, by_choices);
}

// A run's tiles, those of all its passes, among those of other runs: blocks share out what all
// cost. In front of its tiles stands what their rows of x do: who has but tiles of one run has more
// of them than who comes to it from another one.
struct HeldRun {
  uint32_t tiles, tile_cost, rows_cost;
  uint32_t by_tile_cost;  // held_reciprocal
  uint32_t cost_before;   // of the runs before it

  __host__ __device__ constexpr uint32_t cost() const {
    return tiles == 0 ? 0 : rows_cost + tiles * tile_cost;
  }
  // Of its tiles, those that begin within the first `cost` of all.
  __host__ __device__ constexpr uint32_t tiles_before(uint32_t cost) const {
    if (tiles == 0 || cost <= cost_before + rows_cost) return 0;
    const uint32_t before = held_quotient(cost - cost_before - rows_cost - 1, by_tile_cost) + 1;
    return before < tiles ? before : tiles;
  }
};
// A block's share of what all costs, by held_reciprocal of the number of blocks: enough, and at
// most one more than a division says, which takes ten times as long.
__host__ __device__ constexpr uint32_t held_share(uint32_t cost, uint32_t by_blocks) {
  return held_quotient(cost, by_blocks) + 1;
}
// What a tile of a run of `rows` costs, the mean of its passes, of which the last one may have
// fewer octets of tokens than `octets`: by what a tile times so many costs.
__host__ __device__ constexpr uint32_t held_tile_cost(uint32_t rows, uint32_t octets,
                                                      const uint32_t (&costs)[kHeldMostOctets]) {
  const uint32_t all = (rows + 7) / 8, passes = (all + octets - 1) / octets;
  if (passes == 0) return 0;
  if (passes == 1) return costs[all - 1];  // without a division
  const uint32_t last = all - (passes - 1) * octets;
  return (costs[last - 1] + (passes - 1) * costs[octets - 1] + passes - 1) / passes;
}

// What a cluster makes of its `tiles` of one matrix: in one pass, or one part of K of as many tiles
// as there is room for sums that wait, and the other part of the same. Of the next ones that comes
// first, since its rows of x are there. Which part is the very first, `turn` says.
struct HeldParts {
  uint32_t passes, tiles, turn;

  struct Place {
    uint32_t part, tile;
    uint32_t count;  // of neighbouring tiles of this part from there on
    bool has_sums, keeps_sums;
  };
  __host__ __device__ constexpr Place place(uint32_t number) const {
    static_assert(kHeldMostPasses == 2, "two visits of a tile");
    if (passes == 1) return {0, number, tiles - number, false, false};
    constexpr uint32_t kEach = kHeldKeptTiles;
    const uint32_t chunk = number / (2 * kEach), first = chunk * kEach;
    const uint32_t length = tiles - first < kEach ? tiles - first : kEach;
    const uint32_t within = number - 2 * first;
    const bool again = within >= length;
    const uint32_t tile = again ? within - length : within;
    return {(turn + chunk + again) % 2, first + tile, length - tile, again, !again};
  }
  // Where sums of a tile wait, of as many places.
  static __host__ __device__ constexpr uint32_t kept(uint32_t tile) {
    return tile % kHeldKeptTiles;
  }
};

// By what boxes write: which k stands in a place. Of `groups` of 16 rows, each has so many fewer
// slices.
template <bool kHalves>
constexpr bool held_order_is_of_the_same_k(uint32_t groups) {
  using Order = HeldOrder<kHalves>;
  const uint32_t rows = kHeldRows * groups, scale_row = kHeldScaleBox / groups;
  for (uint32_t slice = 0; slice < kHeldWarps / groups; ++slice) {
    for (uint32_t i = 0; i < rows * 4 * kHeldGroups * 2; ++i) {
      const uint32_t second = i % 2, group = i / 2 % kHeldGroups, t = i / 2 / kHeldGroups % 4;
      const uint32_t row = i / 2 / kHeldGroups / 4;
      const uint32_t k = slice * kHeldSlice + Order::rows(t, group, second);
      const uint32_t first = Order::codes(row, t, slice, rows) ^ Order::next_codes(group);
      const uint32_t codes = kHalves ? first ^ second * Order::kSecondHalf : first + second * 4;
      const uint32_t line = codes / 128;
      if (line / kHeldPieces % rows != row) return false;
      const uint32_t piece = line / kHeldPieces / rows * kHeldPieces + line % kHeldPieces;
      if (piece * 256 + (codes / 16 % 8 ^ line % 8) * 32 + codes % 16 * 2 != k) return false;
    }
    for (uint32_t row = 0; row < rows; ++row) {
      const uint32_t scales = Order::scales(row, slice, scale_row), pieces = scale_row / 16;
      if (scales / scale_row != row) return false;
      if ((scales / 16 % pieces ^ scales / 128 % pieces) != slice) return false;
    }
  }
  return true;
}
// What lanes read at once: a half warp eight bytes each, or four, and a quarter, two rows' scales
// or eight. (Four bytes could be a whole warp's; rows four further on are in the same banks.)
template <bool kHalves>
constexpr bool held_order_is_by_banks(uint32_t groups) {
  using Order = HeldOrder<kHalves>;
  constexpr uint32_t kBytes = kHalves ? 4 : 8, kBanks = 128 / kBytes;
  for (uint32_t first = 0; first < 32; first += 16) {
    bool found[kBanks] = {};
    for (uint32_t lane = first; lane < first + 16; ++lane) {
      bool& bank = found[Order::codes(lane / 4, lane % 4, 1, kHeldRows * groups) / kBytes % kBanks];
      if (bank) return false;
      bank = true;
    }
  }
  bool found[8] = {};
  for (uint32_t row = 0; row < 8; ++row) {
    found[Order::scales(row, 1, kHeldScaleBox / groups) / 16 % 8] = true;
  }
  for (const bool bank : found) {
    if (!bank) return false;
  }
  return true;
}
constexpr bool held_units_are_someones() {
  using Memory = HeldMemory<false, kHeldOctets>;
  for (uint32_t shares = 1; shares <= kHeldMostShares; shares *= 2) {
    for (uint32_t tiles = 1; tiles <= Memory::kBatch; ++tiles) {
      uint32_t all = 0;
      for (uint32_t rank = 0; rank < shares; ++rank) {
        const uint32_t count = HeldUnits::count(2 * tiles, rank, shares);
        if (count * shares * kHeldPlace * kHeldWarps > Memory::kSumsBytes) return false;
        for (uint32_t place = 0; place < count; ++place) {
          const uint32_t unit = HeldUnits::unit(place, rank, shares);
          if (unit >= 2 * tiles || HeldUnits::owner(unit, shares) != rank) return false;
          if (HeldUnits::place(unit, shares) != place) return false;
        }
        all += count;
      }
      if (all != 2 * tiles) return false;
    }
  }
  return true;
}
constexpr bool held_passes_take_all() {
  for (const HeldPasses p : {HeldPasses{1, 5, 13}, HeldPasses{2, 5, 13}, HeldPasses{3, 4, 8},
                             HeldPasses{3, 20, 7}, HeldPasses{2, 1, 3}}) {
    bool taken[3][16] = {};
    for (uint32_t number = 0; number < p.passes * p.tiles;) {
      const HeldPasses::Place at = p.place(number);
      if (at.count == 0 || at.count > p.each || at.pass >= p.passes) return false;
      if (at.tile + at.count > p.tiles) return false;
      for (uint32_t i = 0; i < at.count; ++i, ++number) {
        const HeldPasses::Place same = p.place(number);
        if (same.pass != at.pass || same.tile != at.tile + i) return false;
        if (taken[at.pass][same.tile]) return false;
        taken[at.pass][same.tile] = true;
      }
    }
  }
  return true;
}
constexpr bool held_shares_take_all() {
  constexpr uint32_t kRuns = 4, kTiles[kRuns] = {7, 0, 12, 24}, kCosts[kRuns] = {8, 9, 11, 10};
  constexpr uint32_t kRowsCost = 13;
  HeldRun runs[kRuns] = {};
  uint32_t all = 0, most = 0;
  for (uint32_t i = 0; i < kRuns; ++i) {
    runs[i] = {kTiles[i], kCosts[i], kRowsCost, held_reciprocal(kCosts[i]), all};
    all += runs[i].cost();
    most = most < kCosts[i] ? kCosts[i] : most;
  }
  for (uint32_t blocks = 1; blocks < 50; blocks += blocks < 6 ? 1 : 7) {
    const uint32_t each = held_share(all, held_reciprocal(blocks));
    if (each > (all + blocks - 1) / blocks + 1) return false;
    for (const HeldRun& run : runs) {
      if (run.tiles_before(0) != 0 || run.tiles_before(blocks * each) != run.tiles) return false;
    }
    for (uint32_t block = 0; block < blocks; ++block) {
      uint32_t cost = 0;
      for (const HeldRun& run : runs) {
        const uint32_t begin = run.tiles_before(block * each);
        const uint32_t end = run.tiles_before((block + 1) * each);
        if (end < begin) return false;
        cost += (end - begin) * run.tile_cost;
      }
      if (cost >= each + most) return false;
    }
  }
  return true;
}
constexpr bool held_parts_take_all() {
  constexpr uint32_t kMost = 2 * kHeldKeptTiles + 2;
  for (uint32_t passes = 1; passes <= kHeldMostPasses; ++passes) {
    for (uint32_t tiles = 1; tiles <= kMost; tiles += tiles < 3 ? 1 : 12) {
      for (uint32_t turn = 0; turn < 2; ++turn) {
        const HeldParts p{passes, tiles, turn};
        uint32_t had[kMost] = {};  // parts of a tile
        uint32_t waits[kHeldKeptTiles] = {}, part = kHeldMostPasses, changes = 0;
        for (uint32_t number = 0; number < passes * tiles;) {
          const HeldParts::Place at = p.place(number);
          if (at.count == 0 || at.tile + at.count > tiles || at.part >= passes) return false;
          if (number > 0 && at.has_sums != (at.part != part)) return false;
          changes += at.part != part ? 1 : 0;
          part = at.part;
          for (uint32_t i = 0; i < at.count; ++i, ++number) {
            const HeldParts::Place same = p.place(number);
            if (same.part != part || same.tile != at.tile + i || same.tile >= tiles) return false;
            if (same.has_sums != (had[same.tile] != 0)) return false;
            had[same.tile] |= 1u << part;
            if (same.keeps_sums == (had[same.tile] + 1 == 1u << passes)) return false;
            uint32_t& waiting = waits[HeldParts::kept(same.tile)];
            if (waiting != (same.has_sums ? same.tile + 1 : 0)) return false;
            waiting = same.keeps_sums ? same.tile + 1 : 0;
          }
        }
        for (uint32_t tile = 0; tile < tiles; ++tile) {
          if (had[tile] + 1 != 1u << passes) return false;
        }
        const uint32_t chunks = (tiles + kHeldKeptTiles - 1) / kHeldKeptTiles;
        if (changes != (passes == 1 ? 1 : 1 + chunks)) return false;
      }
    }
  }
  return true;
}
constexpr bool held_pairs_are_of_rows() {
  for (const uint32_t choices : {1u, 2u, 3u, 7u, 8u, 10u, 2048u}) {
    for (uint32_t pair = 0; pair < kHeldMostPairs; pair += pair < 32 ? 1 : 41) {
      if (held_row_of(pair, held_by_choices(choices)) != pair / choices) return false;
    }
  }
  return true;
}
static_assert(held_pairs_are_of_rows(), "every pair is of its row of x");
static_assert(held_passes_take_all(), "every pass has every tile once");
static_assert(held_shares_take_all(),
              "every tile is one block's, and no block has more than others");
static_assert(held_parts_take_all(), "every tile has every part once, and its sums a place");
static_assert(held_order_is_of_the_same_k<false>(1) && held_order_is_of_the_same_k<true>(1) &&
                  held_order_is_of_the_same_k<false>(2) && held_order_is_of_the_same_k<true>(2) &&
                  held_order_is_of_the_same_k<false>(4) && held_order_is_of_the_same_k<true>(4),
              "both factors of a product are of the same k");
static_assert(held_order_is_by_banks<false>(1) && held_order_is_by_banks<true>(1) &&
                  held_order_is_by_banks<false>(2) && held_order_is_by_banks<true>(2) &&
                  held_order_is_by_banks<false>(4) && held_order_is_by_banks<true>(4),
              "lanes meet in no bank");
static_assert(held_units_are_someones(), "every sum is added up once");

}  // namespace moeblas::cuda
