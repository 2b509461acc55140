// Memory that the GPU shares: the library's, pages of the caller's, and what is refused.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "emu/metal_mock/metal_mock.h"
#include "errors.h"
#include "metal_call.h"

namespace moeblas::test {
namespace {

namespace mock = emu::metal;

// Whole pages of the caller's.
class Pages {
 public:
  explicit Pages(size_t pages) : bytes_(pages * static_cast<size_t>(getpagesize())) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~Pages() { munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  char* begin() const { return static_cast<char*>(data_); }
  char* end() const { return begin() + bytes_; }

 private:
  size_t bytes_;
  void* data_;
};

// The buffers that there are; the device's own among them.
size_t buffers_before() {
  wait_for_metal();
  return mock::live_buffers();
}

TEST(MetalMemory, PagesOfTheCallersAreSharedWithoutACopy) {
  const Pages x(1), out(2);
  // Neither begins nor ends with its pages.
  const Ones ones(reinterpret_cast<float*>(x.begin() + 1024),
                  reinterpret_cast<uint8_t*>(out.end()) - Ones::kCount - 3);
  const size_t before = buffers_before();
  ones.call();
  EXPECT_EQ(mock::live_wraps(), 2u);
  wait_for_metal();
  EXPECT_TRUE(ones.all(Ones::kCode));
  EXPECT_EQ(ones.out[-1], 0);
  EXPECT_EQ(ones.out[Ones::kCount], 0);
  EXPECT_EQ(mock::live_buffers(), before) << "a call's wraps end with it";
}

TEST(MetalMemory, TensorsOfOnePageAreInOneBuffer) {
  const Pages page(1);
  const Ones ones(reinterpret_cast<float*>(page.begin()),
                  reinterpret_cast<uint8_t*>(page.end()) - Ones::kCount);
  ones.call();
  EXPECT_EQ(mock::live_wraps(), 1u);
  wait_for_metal();
  EXPECT_TRUE(ones.all(Ones::kCode));
}

// Each call wraps the pages anew, so that Metal does not see that one writes what the next reads;
// the mock refuses calls that no fence orders then.
TEST(MetalMemory, CallsOnTheSamePagesFollowEachOther) {
  const Pages pages(2);
  const Ones ones(reinterpret_cast<float*>(pages.begin()),
                  reinterpret_cast<uint8_t*>(pages.begin()) + 1024);
  const TensorView back(pages.begin() + 2048, DType::f32, {Ones::kCount}, kMetal);
  ones.call();
  from_fp8({ones.out, DType::u8, {Ones::kCount}, kMetal}, back);
  wait_for_metal();
  for (int64_t i = 0; i < Ones::kCount; ++i) EXPECT_EQ(static_cast<float*>(back.data)[i], 1.0f);
}

TEST(MetalMemory, WhatMetalDoesNotShareIsRefusedByName) {
  const Pages page(1);
  const Ones ones(reinterpret_cast<float*>(page.begin()),
                  reinterpret_cast<uint8_t*>(page.end()) - Ones::kCount);
  mock::faults().no_copy = true;
  const std::string message = message_of(MOEBLAS_INVALID_ARGUMENT, [&] { ones.call(); });
  mock::faults().no_copy = false;
  EXPECT_NE(message.find("[to_fp8] Metal does not share"), std::string::npos) << message;
  EXPECT_NE(message.find("moeblas_buffer_alloc"), std::string::npos) << message;
  wait_for_metal();
  EXPECT_TRUE(ones.all(Ones::kBefore));
}

TEST(MetalMemory, MemoryMayEndBeforeTheWorkDoes) {
  const size_t before = buffers_before();
  {
    const SharedOnes shared;
    shared.ones.call();
  }
  EXPECT_GT(mock::live_buffers(), before) << "work that is under way holds what it uses";
  wait_for_metal();
  EXPECT_EQ(mock::live_buffers(), before);
}

TEST(MetalMemory, BuffersAreLimitedByTheDevice) {
  mock::faults().most_bytes = 1 << 20;
  void* memory = nullptr;
  EXPECT_EQ(moeblas_buffer_alloc({kMetal.type, kMetal.id}, (1 << 20) + 1, &memory),
            MOEBLAS_OUT_OF_MEMORY);
  EXPECT_EQ(memory, nullptr);
  EXPECT_NE(std::string(moeblas_last_error()).find("1048576"), std::string::npos);
  mock::faults().most_bytes = size_t{1} << 34;
}

TEST(MetalMemory, StridesMayLeadBackwards) {
  const SharedMemory x(64 * sizeof(float)), out(64);
  for (int i = 0; i < 64; ++i) x.as<float>()[i] = static_cast<float>(i % 8);
  // The last element first.
  to_fp8({x.as<float>() + 63, DType::f32, {64}, {-1}, kMetal},
         {out.as<uint8_t>(), DType::u8, {64}, kMetal});
  wait_for_metal();
  std::vector<float> back(64);
  std::vector<uint8_t> codes(out.as<uint8_t>(), out.as<uint8_t>() + 64);
  from_fp8({codes.data(), DType::u8, {64}}, {back.data(), DType::f32, {64}});
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(back[i], static_cast<float>((63 - i) % 8));
}

TEST(MetalMemory, AWorkspaceOfTheCallersIsEnough) {
  constexpr int64_t kExperts = 3, kN = 8, kK = 32, kPairs = 4;
  const SharedMemory memory(1 << 16);
  auto* bytes = memory.as<uint8_t>();
  std::memset(bytes, 0, 1 << 16);
  const Quantized w{.spec = {Mode::mxfp4},
                    .codes = {bytes, DType::u8, {kExperts, kN, kK / 2}, kMetal},
                    .scales = {bytes + 4096, DType::u8, {kExperts, kN, kK / 32}, kMetal}};
  const TensorView x(bytes + 8192, DType::f32, {kPairs, kK}, kMetal);
  const TensorView ids(bytes + 12288, DType::i32, {kPairs}, kMetal);
  const TensorView out(bytes + 16384, DType::f32, {kPairs, kN}, kMetal);
  const auto call = [&](const Options& o) { gather_qmv(x, w, ids, out, o); };
  Options options;
  options.workspace_bytes = plan(call).workspace_bytes;
  ASSERT_GT(options.workspace_bytes, 0u);
  options.workspace = bytes + 32768;
  const size_t before = buffers_before();
  call(options);
  EXPECT_EQ(mock::live_buffers(), before) << "nothing was allocated";
  wait_for_metal();
  for (int64_t i = 0; i < kPairs * kN; ++i) EXPECT_EQ(static_cast<float*>(out.data)[i], 0.0f);
}

}  // namespace
}  // namespace moeblas::test
