// The rules of the shadow, access by access.
#include "emu/runtime/race.h"

#include <gtest/gtest.h>

namespace moeblas::emu {
namespace {

class Race : public testing::Test {
 protected:
  // Whether a lane's access of the one word is in conflict.
  bool touch(unsigned thread, Access access) {
    const Accessor by{thread, 1, group_epoch_, simd_epoch_};
    return shadow_.check(0, 4, access, by).kind == Conflict::race;
  }
  bool read(unsigned thread) { return touch(thread, Access::read); }
  bool write(unsigned thread) { return touch(thread, Access::write); }
  bool atomic(unsigned thread) { return touch(thread, Access::atomic); }

  RaceShadow shadow_{4};
  std::uint32_t group_epoch_ = 1, simd_epoch_ = 1;
};

TEST_F(Race, OneLaneIsInOrderWithItself) {
  EXPECT_FALSE(write(3));
  EXPECT_FALSE(read(3));
  EXPECT_FALSE(write(3));
  EXPECT_FALSE(atomic(3));
  EXPECT_FALSE(read(3));
}

TEST_F(Race, ManyMayRead) {
  for (unsigned thread = 0; thread < 100; ++thread) EXPECT_FALSE(read(thread));
}

TEST_F(Race, WriteAfterReadOfAnotherSimdgroup) {
  EXPECT_FALSE(read(3));
  EXPECT_FALSE(read(40));
  EXPECT_FALSE(read(3));
  EXPECT_TRUE(write(40));
}

TEST_F(Race, WriteAfterOwnReadOnly) {
  EXPECT_FALSE(read(3));
  EXPECT_FALSE(write(3));
  EXPECT_TRUE(read(4));
}

TEST_F(Race, WriteAfterReadOfANeighbour) {
  EXPECT_FALSE(read(3));
  EXPECT_FALSE(read(4));
  EXPECT_TRUE(write(3));
}

TEST_F(Race, TwoWrites) {
  EXPECT_FALSE(write(3));
  EXPECT_TRUE(write(4));
}

TEST_F(Race, ThreadgroupBarrierOrdersAll) {
  EXPECT_FALSE(write(3));
  ++group_epoch_;
  EXPECT_FALSE(read(40));
  ++group_epoch_;
  EXPECT_FALSE(write(70));
}

TEST_F(Race, SimdgroupBarrierOrdersItsLanesOnly) {
  EXPECT_FALSE(write(3));
  ++simd_epoch_;
  EXPECT_FALSE(read(4));
  ++simd_epoch_;
  EXPECT_FALSE(write(5));
  EXPECT_TRUE(read(40));
}

TEST_F(Race, AtomicsAgreeAmongThemselves) {
  EXPECT_FALSE(atomic(3));
  EXPECT_FALSE(atomic(4));
  EXPECT_FALSE(atomic(40));
  EXPECT_TRUE(read(40));
}

TEST_F(Race, AtomicsOfOneSimdgroupEndAtItsBarrier) {
  EXPECT_FALSE(atomic(3));
  EXPECT_FALSE(atomic(4));
  ++simd_epoch_;
  EXPECT_FALSE(read(5));
}

TEST_F(Race, AtomicAfterPlainWrite) {
  EXPECT_FALSE(write(3));
  EXPECT_TRUE(atomic(4));
}

TEST_F(Race, TellsWhatWasNeverWritten) {
  EXPECT_EQ(shadow_.check(0, 4, Access::read, Accessor{0, 1, 1, 1}).kind, Conflict::never_written);
  EXPECT_FALSE(write(0));
  EXPECT_EQ(shadow_.check(0, 4, Access::read, Accessor{0, 1, 1, 1}).kind, Conflict::none);
  // The next threadgroup finds nothing of this one.
  EXPECT_EQ(shadow_.check(0, 4, Access::read, Accessor{0, 2, 2, 1}).kind, Conflict::never_written);
}

}  // namespace
}  // namespace moeblas::emu
