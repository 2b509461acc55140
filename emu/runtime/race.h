// The shadow of threadgroup memory: who touched each byte last, and in which epoch.
//
// A threadgroup_barrier with mem_threadgroup opens a new epoch of the threadgroup, a
// simdgroup_barrier with mem_threadgroup a new epoch of its simdgroup. Two accesses of one byte by
// different lanes, at least one of them a plain write, must be in different epochs: of the
// threadgroup, or, within one simdgroup, of that simdgroup. Shuffles and reductions order nothing:
// neither language promises it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace moeblas::emu {

enum class Access { read, write, atomic };

struct Accessor {
  unsigned thread;            // in the threadgroup
  std::uint32_t first_epoch;  // what is older was another threadgroup's; never 0
  std::uint32_t group_epoch;
  std::uint32_t simd_epoch;
  unsigned simdgroup() const { return thread / 32; }
  unsigned lane() const { return thread % 32; }
};

struct Conflict {
  enum Kind { none, race, never_written } kind = none;
  unsigned byte = 0;  // of the access
  unsigned other_thread = 0;
  bool other_wrote = false;
};

class RaceShadow {
 public:
  explicit RaceShadow(std::size_t bytes) : bytes_(bytes) {}
  Conflict check(std::size_t offset, std::size_t bytes, Access access, const Accessor& by);

 private:
  struct Byte {
    // The last write, plain or atomic.
    std::uint32_t write_group_epoch = 0;
    std::uint32_t write_simd_epoch = 0;
    std::uint16_t writer = 0;
    bool write_atomic = false;
    bool atomic_by_lanes = false;   // other lanes of the writer's simdgroup did, unordered
    bool atomic_by_groups = false;  // other simdgroups did, in this epoch
    // The last reads: lanes of one simdgroup, and any lane of another one.
    std::uint8_t read_simdgroup = 0;
    bool other_read = false;
    std::uint16_t other_reader = 0;
    std::uint32_t read_group_epoch = 0;
    std::uint32_t read_simd_epoch = 0;
    std::uint32_t read_lanes = 0;
  };
  static bool after_writes(const Byte& b, const Accessor& by, bool atomic);
  static bool after_reads(const Byte& b, const Accessor& by, unsigned& reader);
  static void note_read(Byte& b, const Accessor& by);
  static void note_write(Byte& b, const Accessor& by, bool atomic);

  std::vector<Byte> bytes_;
};

}  // namespace moeblas::emu
