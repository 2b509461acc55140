// Tiles of AMX: sixteen rows of x times a panel of 64 outputs, whose pairs of bfloat16 lie in
// memory as the instruction takes them. Sums are float32, formed by 32 values of K at a time: even
// places by themselves, odd ones, then both and the sum before. What is subnormal counts as 0.
//
// Sixteen cycles a product; four sums hide its latency, and the panel comes from the first cache:
// one tile load for a product, and one of x for four.
#include <immintrin.h>

#include "cpu/mm_kernels.h"

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

constexpr int kRowBytes = 64, kCols = 64, kPanelRow = kCols * 4;
constexpr int kTileBytes = kMatrixRows * kRowBytes;

// Eight tiles alike. In memory once and for all: the operand of g++'s intrinsic is the first eight
// bytes, so that what is stored behind them just before may be left out.
struct alignas(64) Config {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
  constexpr Config() {
    for (int i = 0; i < 8; ++i) {
      row_bytes[i] = kRowBytes;
      rows[i] = kMatrixRows;
    }
  }
};
constexpr Config kConfig;

void begin() { _tile_loadconfig(&kConfig); }
void end() { _tile_release(); }

void multiply(const MatrixProduct& p) {
  if (p.first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, p.sums, kPanelRow);
    _tile_loadd(1, p.sums + 16, kPanelRow);
    _tile_loadd(2, p.sums + 32, kPanelRow);
    _tile_loadd(3, p.sums + 48, kPanelRow);
  }
  const auto* x = static_cast<const char*>(p.x);
  const auto* w = static_cast<const char*>(p.panel);
  for (int64_t i = 0; i < p.steps; ++i) {
    _tile_loadd(4, x, kRowBytes);
    // x comes from the second cache.
    for (int byte = 0; byte < kTileBytes; byte += 64)
      _mm_prefetch(x + kTileBytes + byte, _MM_HINT_T0);
    _tile_loadd(5, w, kPanelRow);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, w + 64, kPanelRow);
    _tile_dpbf16ps(1, 4, 6);
    _tile_loadd(7, w + 128, kPanelRow);
    _tile_dpbf16ps(2, 4, 7);
    _tile_loadd(5, w + 192, kPanelRow);
    _tile_dpbf16ps(3, 4, 5);
    x += kTileBytes;
    w += kMatrixStep / 2 * kPanelRow;
  }
  _tile_stored(0, p.sums, kPanelRow);
  _tile_stored(1, p.sums + 16, kPanelRow);
  _tile_stored(2, p.sums + 32, kPanelRow);
  _tile_stored(3, p.sums + 48, kPanelRow);
}

void copy_rows(const uint8_t* const* x, int64_t rows, int64_t k, void* tile) {
  auto* const to = static_cast<char*>(tile);
  for (int64_t r = 0; r < kMatrixRows; ++r) {
    char* at = to + r * kRowBytes;
    for (int64_t i = 0; i < k; i += kMatrixStep, at += kTileBytes) {
      const int64_t left = r < rows ? k - i : 0;
      const auto there = left >= kMatrixStep ? ~__mmask32{0} : (__mmask32{1} << left) - 1;
      const __m512i v =
          r < rows ? _mm512_maskz_loadu_epi16(there, x[r] + i * 2) : _mm512_setzero_si512();
      _mm512_store_si512(at, v);
    }
  }
}

}  // namespace

extern const MatrixKernels matrix_kernels;
constinit const MatrixKernels matrix_kernels = {begin, end, multiply, copy_rows};

}  // namespace moeblas::cpu::MOEBLAS_TIER
