// Quantized rows and their values, walked in parts: what rows that quantize and dequantize share.
#pragma once

#include <algorithm>

#include "cpu/decode.h"
#include "threads/parallel.h"

namespace moeblas::cpu {

inline constexpr int64_t kConversionChunk = 4096;  // values; a multiple of every group

// Calls f(row, first, count) for parts of rows that together are all values: of every row of an
// item the longest part. A thread's items follow each other, so that what it reads and writes is a
// stream, of which nothing is fetched for others; an item is few enough chunks for every thread to
// have several. `end_of_item` is called after each.
template <class F, class End>
void for_each_part(int64_t rows, int64_t cols, F&& f, End&& end_of_item) {
  constexpr int64_t kItem = 128, kItemsPerThread = 8;  // chunks; measured
  const int64_t in_row = (cols + kConversionChunk - 1) / kConversionChunk;
  const int64_t chunks = rows * in_row, least = std::max<int64_t>(1, kConversionChunk / cols);
  const int64_t share = chunks / (threads::num_threads() * kItemsPerThread);
  const int64_t item_chunks = std::max(least, std::min(share, kItem * least));
  threads::for_each_item_and_next(
      (chunks + item_chunks - 1) / item_chunks, threads::num_threads(), [&](int64_t item, int64_t) {
        const int64_t end = std::min((item + 1) * item_chunks, chunks);
        for (int64_t chunk = item * item_chunks; chunk < end;) {
          const int64_t row = chunk / in_row, next = std::min(end, (row + 1) * in_row);
          const int64_t first = chunk % in_row * kConversionChunk;
          f(row, first, std::min((next - chunk) * kConversionChunk, cols - first));
          chunk = next;
        }
        end_of_item();
      });
}
template <class F>
void for_each_part(const dispatch::Rows& values, F&& f) {
  for_each_part(values.count(), values.cols, f, [] {});
}

// One direction of a problem: values and their packed form.
struct Side {
  const dispatch::QuantizeProblem& p;
  const dispatch::Rows& values;
  const dispatch::PackedRows& packed;
  int64_t rows_per_matrix;

  PackedRow row(int64_t r) const {
    const int64_t matrix = r / rows_per_matrix;
    const bool swizzled = p.scale_layout != ScaleLayout::rows;
    const dispatch::Rows& s = packed.scales;
    // Swizzled, a matrix is one piece that begins where its first row would.
    const int64_t padded_rows = swizzled ? s.lead[s.lead.ndim() - 1] : 1;
    return {static_cast<const uint8_t*>(start(packed.codes, r)),
            start(s, swizzled ? matrix * padded_rows : r),
            packed.biases.data != nullptr ? start(packed.biases, r) : nullptr,
            s.dtype,
            load_tensor_scale(p.tensor_scale, matrix),
            swizzled ? r % rows_per_matrix : -1,
            s.cols};
  }

  static void* start(const dispatch::Rows& rows, int64_t r) {
    return static_cast<char*>(rows.data) +
           rows.offset(r) * static_cast<int64_t>(size_of(rows.dtype));
  }
};

// Zeros wherever a swizzled matrix has no scale.
inline void clear_padding(const Side& side) {
  const dispatch::Rows& s = side.packed.scales;
  const int64_t rows = side.rows_per_matrix;
  const int64_t groups = side.values.cols / side.p.spec->group_size;
  const int64_t matrices = side.values.count() / rows;
  const int64_t padded_rows = s.lead[s.lead.ndim() - 1];
  for (int64_t matrix = 0; matrix < matrices; ++matrix) {
    PackedRow row = side.row(matrix * rows);
    for (row.swizzled_row = 0; row.swizzled_row < padded_rows; ++row.swizzled_row) {
      for (int64_t g = row.swizzled_row < rows ? groups : 0; g < s.cols; ++g) {
        store_as(const_cast<void*>(row.scales), row.scale_index(g), uint8_t{0});
      }
    }
  }
}

}  // namespace moeblas::cpu
