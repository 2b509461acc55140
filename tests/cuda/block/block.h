// A thread block of CUDA on the host, for kernels whose instructions stand in a thin header
// (src/cuda/device/ptx.cuh) that tests/cuda/shadow replaces: every thread is a fiber, warps meet at
// collectives, bulk copies arrive at a random time after they are asked for, in some runs when
// nothing else can go on, and until then what they will overwrite is spoilt. Which warp goes on is
// drawn too, so that what is ordered only by luck comes out wrong with some seed.
//
// The blocks of a grid run one after the other, or, if they wait for each other, in turns of random
// length, each in a thread of its own, so that what kernels declare as shared is a block's: all of
// the grid, or a cluster's, one cluster after the other. In a cluster blocks arrive at each other's
// barriers and copy into each other's memory, which is spoilt until then like their own.
//
// It finds wrong indices, missing waits, slots that are given back too early, addresses that are
// not aligned, and what reaches for a block that has ended; it does not know what the hardware does
// out of order within a warp, and no fences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace moeblas::test {

struct Grid {
  uint32_t blocks = 1;
  uint32_t threads = 1;
  size_t shared_bytes = 0;  // the dynamic part
  uint64_t seed = 0;        // of the order in which things happen
  uint8_t spoilt = 0xff;    // what stands in shared memory that nothing was written to
  bool together = false;    // blocks take turns
  uint32_t cluster = 1;     // blocks of a cluster
};

// Runs kernel() once for every thread of every block. Throws std::runtime_error if a thread does
// what hardware would not take, or if all of them wait.
void run_grid(const Grid& grid, const std::function<void()>& kernel);

// ---- What a thread calls --------------------------------------------------------------------

uint32_t thread_index();
uint32_t block_index();
uint32_t block_count();
uint32_t block_threads();
// Another number for each block that has ever run.
uint64_t block_serial();
unsigned char* dynamic_memory();

// A 32-bit address of anything that the block's threads share, and back.
uint32_t shared_address_of(const void* p);
unsigned char* at_shared(uint32_t address, size_t alignment);

// What a copy under way will overwrite.
void spoil_shared(uint32_t to, size_t bytes);

// All 32 lanes of a warp bring `bytes` (up to 32) and see what the others brought: lane i's from
// 32 * i on, valid until the next collective. `name` must be the same for all.
const unsigned char* meet(const char* name, const void* value, size_t bytes);

// Barriers that count arrivals and bytes.
void barrier_init_at(uint32_t barrier, uint32_t arrivals);
void barrier_arrive_at(uint32_t barrier, uint32_t bytes_to_come);
void barrier_wait_at(uint32_t barrier, uint32_t parity);
bool barrier_passed_at(uint32_t barrier, uint32_t parity);

// Barriers by number.
void numbered_arrive(uint32_t id, uint32_t threads);
void numbered_wait(uint32_t id, uint32_t threads);

// A copy that will arrive: `bytes` at `to`, a multiple of `alignment`, brought by write(), reported
// at `barrier`. Returns its number.
uint64_t copy_later(uint32_t to, size_t bytes, std::function<void(unsigned char*)> write,
                    uint32_t barrier, size_t alignment = 16);
// At another barrier as well: so many bytes, or none, if it is there.
size_t report_also(uint64_t copy, uint32_t barrier);

// ---- In a cluster

uint32_t cluster_rank();
// What lies at this address of a block's dynamic memory, in the block of this rank.
uint32_t cluster_address_of(uint32_t address, uint32_t rank);
// The barrier of all threads that have not ended.
void cluster_arrive();
void cluster_wait();
// The same as above, at a cluster's addresses. A copy reports in the block that it goes to.
void barrier_arrive_in_cluster(uint32_t barrier, uint32_t bytes_to_come);
void copy_later_in_cluster(uint32_t to, size_t bytes, std::function<void(unsigned char*)> write,
                           uint32_t barrier, size_t alignment = 16);

// ---- Time

// At a random time from now on, when no thread runs; and until something is so.
void happen_later(std::function<void()> act);
void wait_until(std::function<bool()> so);

// Between two looks at what another block is to write.
void look_again();

[[noreturn]] void block_fails(const char* what);

}  // namespace moeblas::test
