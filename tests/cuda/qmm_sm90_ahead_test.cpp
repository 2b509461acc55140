// Rows that the products of qmm_sm90 write ahead of their tiles: the kernels' own text on thread
// blocks of the host, one after the other, where who waited for another one's rows would never end,
// and in turns.
#include "cuda/device/ptx.cuh"
#include "cuda/qmm_sm90/ahead.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace moeblas::test {
namespace {

constexpr uint32_t kUnwritten = 0x07070707, kUnits = 16;  // bytes of what is compared

struct Layer {
  uint32_t rows, without;  // a matrix, the last
  uint32_t first;          // those before are not these warps' to write
  uint32_t row_bytes;
};

template <uint32_t kPieces, uint32_t kBytes>
void expect_rows_of(const Layer& of, const Grid& grid) {
  SCOPED_TRACE(testing::Message() << of.rows << " rows of " << of.row_bytes << " bytes and "
                                  << of.without << " without a matrix, from " << of.first << " on, "
                                  << grid.blocks << " blocks" << (grid.together ? " in turns" : "")
                                  << ", seed " << grid.seed);
  const uint32_t all = of.rows + of.without, x_rows = all / 2 + 3, units = of.row_bytes / kUnits;
  const uint32_t pitch = units + all % 3;  // of rows as they lie
  std::vector<uint32_t> runs = {0};
  std::vector<int32_t> matrices;
  const auto add_run = [&](uint32_t begin, uint32_t end, int32_t matrix) {
    if (begin >= end) return;
    runs.push_back(begin);
    matrices.push_back(matrix);
  };
  const uint32_t border = std::min(7u, of.rows);
  add_run(0, border, 3);
  add_run(border, of.rows, 5);
  add_run(of.rows, all, -1);
  runs[0] = static_cast<uint32_t>(matrices.size());
  runs.push_back(all);
  std::vector<uint4> from(size_t{x_rows} * pitch),
      to(size_t{all + 1} * units, uint4{kUnwritten, 0, 0, 0});
  for (uint32_t i = 0; i < from.size(); ++i) from[i] = {i, 3 * i, 1, 2};
  std::vector<uint32_t> sources(all), counters(2 + all / cuda::kReadyRows + 1, 0);
  for (uint32_t i = 0; i < all; ++i) sources[i] = (i * 2654435761u >> 8) % x_rows;

  cuda::Runs listed{};
  listed.runs = runs.data();
  listed.matrices = matrices.data();
  listed.rows_per_pair = 1;
  cuda::RowsAhead rows_ahead{};
  rows_ahead.from = reinterpret_cast<const uint8_t*>(from.data());
  rows_ahead.to = reinterpret_cast<uint8_t*>(to.data());
  rows_ahead.sources = sources.data();
  rows_ahead.from_pitch = pitch * sizeof(uint4);
  rows_ahead.row_bytes = of.row_bytes;
  rows_ahead.first = of.first;
  rows_ahead.claimed = counters.data();
  rows_ahead.ready = counters.data() + 1;
  const auto is_there = [&](uint32_t row) {
    for (uint32_t i = 0; i < units; ++i) {
      const uint4 &a = to[size_t{row} * units + i], &b = from[size_t{sources[row]} * pitch + i];
      if (a.x != b.x || a.y != b.y || a.z != b.z || a.w != b.w) return false;
    }
    return true;
  };

  Grid g = grid;
  g.threads = 32;
  g.shared_bytes = kPieces * (kBytes + 8);
  run_grid(g, [&] {
    const uint32_t slots = cuda::device::shared_address(cuda::device::dynamic_shared());
    const uint32_t barriers = slots + kPieces * kBytes;
    if (thread_index() < kPieces) cuda::device::barrier_init(barriers + thread_index() * 8, 1);
    cuda::device::__syncwarp();
    cuda::WriteAhead<kPieces, kBytes> ahead(rows_ahead, listed, slots, barriers);
    // As who sends tiles, which ask for more and more rows.
    uint32_t checked = std::min(of.first, of.rows), end = std::min(of.rows, 200u);
    for (bool rows = true; rows || checked < of.rows;) {
      if (ahead.ready(end)) {
        for (; checked < end; ++checked) ASSERT_TRUE(is_there(checked)) << "row " << checked;
        end = std::min(of.rows, end + 150);
      }
      const bool more = ahead.step(true);
      if (!more && !rows && !ahead.ready(end)) look_again();
      rows = more;
    }
  });
  const auto untouched = [&](uint32_t row) { return to[size_t{row} * units].x == kUnwritten; };
  for (uint32_t row = 0; row <= all; ++row) {
    if (row >= of.first && row < of.rows) {
      ASSERT_TRUE(is_there(row)) << "row " << row;
    } else {
      ASSERT_TRUE(untouched(row)) << "row " << row;
    }
  }
  for (uint32_t row = 0; row < all; row += cuda::kReadyRows) {
    const uint32_t written =
        row < of.first || row >= of.rows ? 0 : std::min(cuda::kReadyRows, of.rows - row);
    ASSERT_EQ(rows_ahead.ready[row / cuda::kReadyRows], written) << "rows from " << row << " on";
  }
}

// Every row once, none twice, none that is not theirs; and what is said to be there is.
TEST(QmmAhead, RowsAreThereBeforeTheyAreSaidToBe) {
  uint64_t seed = 0;
  for (const bool together : {false, true}) {
    for (const uint32_t blocks : {1u, 5u}) {
      const auto grid = [&] { return Grid{blocks, 32, 0, ++seed, 0xff, together}; };
      for (const uint32_t without : {0u, 50u}) {
        for (const uint32_t rows : {0u, 1u, 255u, 256u, 700u, 1025u}) {
          for (const uint32_t first : {0u, 256u, 1024u}) {
            expect_rows_of<5, 512>({rows, without, first, 256}, grid());
            expect_rows_of<5, 512>({rows, without, first, 1280}, grid());
            expect_rows_of<3, 256>({rows, without, first, 768}, grid());
          }
        }
      }
      expect_rows_of<5, 4096>({300, 1, 0, 4096}, grid());
      expect_rows_of<8, 256>({600, 0, 0, 256 * 45}, grid());
    }
  }
}

}  // namespace
}  // namespace moeblas::test
