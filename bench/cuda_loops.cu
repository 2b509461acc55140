// Loops of the CUDA clock. The tensor cores are driven by wgmma where the code is for sm_90a, both
// operands in shared memory, and by mma.sync from registers elsewhere; each loop says which it is.
#include <algorithm>

#include "bench/cuda_loops.h"
#include "moeblas/error.h"

namespace moeblas::bench::cuda_loops {
namespace {

constexpr int kThreads = 256;
constexpr int kSharedBytes = 48 << 10;  // what every device has without being asked

__global__ void generate_elements(char* to, Source source, int64_t first, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    source.write(first + i, to, i);
  }
}

__device__ uint4 load_past_l1(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// Eight loads in flight per thread.
__global__ void __launch_bounds__(kThreads)
    read_words(const uint4* from, int64_t words, uint32_t* sink) {
  constexpr int kInFlight = 8;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  uint32_t seen = 0;
  for (; i + (kInFlight - 1) * step < words; i += kInFlight * step) {
    uint4 v[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) v[j] = load_past_l1(from + i + j * step);
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) seen |= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  for (; i < words; i += step) seen |= from[i].x;
  if (seen == 0x12345) *sink = seen;  // so that no load can be left out
}

__global__ void __launch_bounds__(kThreads)
    copy_words(uint4* to, const uint4* from, int64_t words) {
  constexpr int kInFlight = 4;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + (kInFlight - 1) * step < words; i += kInFlight * step) {
    uint4 v[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) v[j] = load_past_l1(from + i + j * step);
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) __stcs(to + i + j * step, v[j]);
  }
  for (; i < words; i += step) to[i] = from[i];
}

__device__ void report(Arithmetic* done, double flop_per_group, int32_t instruction) {
  if (blockIdx.x == 0 && threadIdx.x == 0) *done = {flop_per_group * gridDim.x, instruction};
}

__global__ void __launch_bounds__(kThreads) multiply_add(int32_t steps, Arithmetic* done) {
  constexpr int kChains = 16;
  float sum[kChains];
#pragma unroll
  for (int i = 0; i < kChains; ++i) sum[i] = static_cast<float>(threadIdx.x + i);
  for (int32_t step = 0; step < steps; ++step) {
#pragma unroll
    for (int i = 0; i < kChains; ++i) sum[i] = fmaf(sum[i], 0.999f, 0.5f);
  }
  float total = 0;
#pragma unroll
  for (int i = 0; i < kChains; ++i) total += sum[i];
  report(done, 2.0 * kChains * steps * blockDim.x, total == 1e30f ? 0 : 1);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// clang-format off
#define T(t) "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9, "
#define O(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define WGMMA(shape_and_types, transposes) \
  asm volatile("{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned." shape_and_types " " \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " T(1) T(2) T(3) T(4) T(5) T(6) T(7) T(8) T(9) T(10) T(11) "%120, %121, %122, %123, %124, %125, %126, %127}, %128, %129, p, 1, 1" transposes ";}" \
      : O(0), O(8), O(16), O(24), O(32), O(40), O(48), O(56), O(64), O(72), O(80), O(88), O(96), O(104), O(112), O(120) : "l"(a), "l"(b))
// clang-format on

template <Unit unit>
__device__ void wgmma(float (&d)[128], uint64_t a, uint64_t b) {
  if constexpr (unit == Unit::bf16) WGMMA("m64n256k16.f32.bf16.bf16", ", 0, 0");
  if constexpr (unit == Unit::f16) WGMMA("m64n256k16.f32.f16.f16", ", 0, 0");
  if constexpr (unit == Unit::fp8) WGMMA("m64n256k32.f32.e4m3.e4m3", "");
}

#undef WGMMA
#undef O
#undef T

// Rows of 32 bytes in eight-row pieces of two 128-byte halves, not swizzled.
__device__ uint64_t descriptor(const void* tile) {
  const auto address = static_cast<uint64_t>(__cvta_generic_to_shared(tile));
  return (address >> 4 & 0x3fff) | uint64_t{128 >> 4} << 16 | uint64_t{256 >> 4} << 32;
}
#endif

// Random operands, since zeros would take less power; small enough for every sum to stay finite.
template <Unit unit>
__device__ uint32_t operand(uint32_t i) {
  uint32_t word = i * 2654435761u;
  word = (word ^ word >> 15) * 2246822519u;
  word ^= word >> 13;
  // Magnitudes below 2: the exponent's upper half cleared where it is above that of 1.
  if constexpr (unit == Unit::bf16) return (word & 0x807f807f) | 0x3f003f00;
  if constexpr (unit == Unit::f16) return (word & 0x83ff83ff) | 0x38003800;
  return (word & 0x8f8f8f8f) | 0x28282828;
}

template <Unit unit>
__global__ void __launch_bounds__(kThreads, 1) multiply_matrices(int32_t steps, Arithmetic* done) {
  extern __shared__ __align__(128) uint32_t shared[];
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  // Each warpgroup: 64 rows of its own times 256 that both share, over 128 bytes of K.
  constexpr int kSlices = 4, kBytesA = 64 * 32, kBytesB = 256 * 32;
  static_assert(2 * kSlices * kBytesA + kSlices * kBytesB == kSharedBytes);
  for (uint32_t i = threadIdx.x; i < kSharedBytes / 4; i += blockDim.x) {
    shared[i] = operand<unit>(i);
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  const char* tiles = reinterpret_cast<const char*>(shared);
  const char* a = tiles + threadIdx.x / 128 * kSlices * kBytesA;
  const char* b = tiles + 2 * kSlices * kBytesA;
  float d[128];
#pragma unroll
  for (int i = 0; i < 128; ++i) d[i] = 0;
  for (int32_t step = 0; step < steps; ++step) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int slice = 0; slice < 4 * kSlices; ++slice) {
      wgmma<unit>(d, descriptor(a + slice % kSlices * kBytesA),
                  descriptor(b + slice % kSlices * kBytesB));
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }
  float total = 0;
#pragma unroll
  for (int i = 0; i < 128; ++i) total += d[i];
  constexpr double kFlop = 2.0 * 64 * 256 * (unit == Unit::fp8 ? 32 : 16);
  report(done, kFlop * 4 * kSlices * steps * (blockDim.x / 128),
         total == 1e30f      ? 0
         : unit == Unit::fp8 ? 4
                             : 3);
#else
  if constexpr (unit == Unit::fp8) {
    report(done, 0, 0);
  } else {
    constexpr int kTiles = 8;
    const uint32_t first = threadIdx.x * 32;
    uint32_t a[4], b[kTiles][2];
    float d[kTiles][4] = {};
    for (int i = 0; i < 4; ++i) a[i] = operand<unit>(first + i);
    for (int i = 0; i < 2 * kTiles; ++i) b[i / 2][i % 2] = operand<unit>(first + 4 + i);
    for (int32_t step = 0; step < steps; ++step) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        if constexpr (unit == Unit::bf16) {
          asm volatile(
              "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
              "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
              : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
              : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[i][0]), "r"(b[i][1]));
        } else {
          asm volatile(
              "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
              "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
              : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
              : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[i][0]), "r"(b[i][1]));
        }
      }
    }
    float total = 0;
    for (int i = 0; i < kTiles; ++i) total += d[i][0] + d[i][1] + d[i][2] + d[i][3];
    if (total == 1e30f) shared[0] = 1;
    report(done, 2.0 * 16 * 8 * 16 * kTiles * steps * (blockDim.x / 32), total == 1e30f ? 0 : 2);
  }
#endif
}

int processors() {
  int device = 0, count = 0;
  check(cudaGetDevice(&device), "asking for the device");
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
        "asking for the number of multiprocessors");
  return count;
}

// As many groups as are resident at once.
template <class Kernel>
int resident(Kernel kernel, int shared_bytes) {
  int groups = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&groups, kernel, kThreads,
                                                      static_cast<size_t>(shared_bytes)),
        "asking for the occupancy");
  return groups * processors();
}

template <class Kernel>
void launch_arithmetic(Kernel kernel, int shared_bytes, int32_t steps, Arithmetic* done,
                       cudaStream_t stream) {
  kernel<<<resident(kernel, shared_bytes), kThreads, shared_bytes, stream>>>(steps, done);
  check(cudaGetLastError(), "an arithmetic loop");
}

}  // namespace

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw Error(MOEBLAS_DEVICE_ERROR,
              std::string("[bench] ") + what + ": " + cudaGetErrorString(status));
}

void generate(void* to, const Source& source, int64_t first, int64_t count, cudaStream_t stream) {
  if (count == 0) return;
  const int64_t groups = (count + kThreads - 1) / kThreads;
  generate_elements<<<static_cast<unsigned>(std::min<int64_t>(groups, 16 * processors())), kThreads,
                      0, stream>>>(static_cast<char*>(to), source, first, count);
  check(cudaGetLastError(), "making data");
}

void read(const void* from, int64_t words, void* sink, cudaStream_t stream) {
  read_words<<<8 * processors(), kThreads, 0, stream>>>(static_cast<const uint4*>(from), words,
                                                        static_cast<uint32_t*>(sink));
  check(cudaGetLastError(), "the read loop");
}

void copy(void* to, const void* from, int64_t words, cudaStream_t stream) {
  copy_words<<<8 * processors(), kThreads, 0, stream>>>(static_cast<uint4*>(to),
                                                        static_cast<const uint4*>(from), words);
  check(cudaGetLastError(), "the copy loop");
}

void arithmetic(Unit unit, int32_t steps, Arithmetic* done, cudaStream_t stream) {
  switch (unit) {
    case Unit::f32:
      return launch_arithmetic(multiply_add, 0, steps, done, stream);
    case Unit::bf16:
      return launch_arithmetic(multiply_matrices<Unit::bf16>, kSharedBytes, steps, done, stream);
    case Unit::f16:
      return launch_arithmetic(multiply_matrices<Unit::f16>, kSharedBytes, steps, done, stream);
    case Unit::fp8:
      return launch_arithmetic(multiply_matrices<Unit::fp8>, kSharedBytes, steps, done, stream);
  }
}

}  // namespace moeblas::bench::cuda_loops
