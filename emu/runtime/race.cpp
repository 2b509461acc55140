#include "race.h"

namespace moeblas::emu {

bool RaceShadow::after_writes(const Byte& b, const Accessor& by, bool atomic) {
  if (b.write_group_epoch != by.group_epoch) return true;
  if (atomic && b.write_atomic) return true;
  if (b.atomic_by_groups) return false;
  if (b.writer / 32u != by.simdgroup()) return false;
  if (b.write_simd_epoch != by.simd_epoch) return true;
  return b.writer == by.thread && !b.atomic_by_lanes;
}

bool RaceShadow::after_reads(const Byte& b, const Accessor& by, unsigned& reader) {
  if (b.read_group_epoch != by.group_epoch) return true;
  if (b.read_simdgroup != by.simdgroup()) {
    reader = b.read_simdgroup * 32u + static_cast<unsigned>(__builtin_ctz(b.read_lanes));
    return false;
  }
  if (b.other_read) {
    reader = b.other_reader;
    return false;
  }
  if (b.read_simd_epoch != by.simd_epoch) return true;
  const std::uint32_t others = b.read_lanes & ~(1u << by.lane());
  if (others == 0) return true;
  reader = by.simdgroup() * 32u + static_cast<unsigned>(__builtin_ctz(others));
  return false;
}

void RaceShadow::note_read(Byte& b, const Accessor& by) {
  const bool same_epoch = b.read_group_epoch == by.group_epoch;
  if (same_epoch && b.read_simdgroup == by.simdgroup()) {
    if (b.read_simd_epoch != by.simd_epoch) b.read_lanes = 0;
  } else {
    // Of the simdgroup that read before, one lane is enough: any writer but that simdgroup's own
    // lanes is in conflict with it, and those are in conflict with this read.
    b.other_read = same_epoch;
    if (same_epoch)
      b.other_reader = static_cast<std::uint16_t>(
          b.read_simdgroup * 32u + static_cast<unsigned>(__builtin_ctz(b.read_lanes)));
    b.read_group_epoch = by.group_epoch;
    b.read_simdgroup = static_cast<std::uint8_t>(by.simdgroup());
    b.read_lanes = 0;
  }
  b.read_simd_epoch = by.simd_epoch;
  b.read_lanes |= 1u << by.lane();
}

void RaceShadow::note_write(Byte& b, const Accessor& by, bool atomic) {
  const bool joins = atomic && b.write_atomic && b.write_group_epoch == by.group_epoch;
  if (joins) {
    if (b.writer / 32u != by.simdgroup()) {
      b.atomic_by_groups = true;
    } else if (b.write_simd_epoch != by.simd_epoch) {
      b.atomic_by_lanes = false;
    } else if (b.writer != by.thread) {
      b.atomic_by_lanes = true;
    }
  } else {
    b.atomic_by_lanes = b.atomic_by_groups = false;
  }
  b.write_group_epoch = by.group_epoch;
  b.write_simd_epoch = by.simd_epoch;
  b.writer = static_cast<std::uint16_t>(by.thread);
  b.write_atomic = atomic;
}

Conflict RaceShadow::check(std::size_t offset, std::size_t bytes, Access access,
                           const Accessor& by) {
  Conflict conflict;
  const bool atomic = access == Access::atomic;
  for (unsigned i = 0; i < bytes; ++i) {
    Byte& b = bytes_[offset + i];
    conflict.byte = i;
    if (!after_writes(b, by, atomic)) {
      conflict.kind = Conflict::race;
      conflict.other_thread = b.writer;
      conflict.other_wrote = true;
      return conflict;
    }
    if (access == Access::read) {
      if (b.write_group_epoch < by.first_epoch) conflict.kind = Conflict::never_written;
      note_read(b, by);
      continue;
    }
    if (!after_reads(b, by, conflict.other_thread)) {
      conflict.kind = Conflict::race;
      return conflict;
    }
    note_write(b, by, atomic);
  }
  return conflict;
}

}  // namespace moeblas::emu
