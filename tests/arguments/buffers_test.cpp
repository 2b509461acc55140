// moeblas_buffer_alloc, _free and _copy: what they give, and what they refuse.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

#include "arguments/defects.h"

// Sanitizers end the program at a size beyond their limit, unless told to return null as malloc
// does.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options();
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

namespace moeblas::test {
namespace {

constexpr moeblas_device kCpu = {MOEBLAS_CPU, 0};
constexpr moeblas_device kNowhere = {77, 0};

TEST(Buffers, AlignedMemoryThatCanBeCopied) {
  for (size_t bytes : {size_t{1}, size_t{63}, size_t{64}, size_t{1000003}}) {
    void* a = nullptr;
    void* b = nullptr;
    ASSERT_EQ(moeblas_buffer_alloc(kCpu, bytes, &a), MOEBLAS_OK) << moeblas_last_error();
    ASSERT_EQ(moeblas_buffer_alloc(kCpu, bytes, &b), MOEBLAS_OK) << moeblas_last_error();
    ASSERT_NE(a, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % 64, 0u);
    std::memset(a, 0x5a, bytes);
    std::memset(b, 0, bytes);
    ASSERT_EQ(moeblas_buffer_copy(kCpu, b, kCpu, a, bytes), MOEBLAS_OK);
    EXPECT_EQ(std::memcmp(a, b, bytes), 0);
    EXPECT_EQ(moeblas_buffer_free(kCpu, a), MOEBLAS_OK);
    EXPECT_EQ(moeblas_buffer_free(kCpu, b), MOEBLAS_OK);
  }
}

TEST(Buffers, Nothing) {
  void* p = &p;
  EXPECT_EQ(moeblas_buffer_alloc(kCpu, 0, &p), MOEBLAS_OK);
  EXPECT_EQ(p, nullptr);
  EXPECT_EQ(moeblas_buffer_free(kCpu, nullptr), MOEBLAS_OK);
  EXPECT_EQ(moeblas_buffer_copy(kCpu, nullptr, kCpu, nullptr, 0), MOEBLAS_OK);
}

TEST(Buffers, SizesThatNoMachineHas) {
  // Sizes near 2^64 must not wrap around when they are rounded up.
  for (size_t bytes : {SIZE_MAX, SIZE_MAX - 10, SIZE_MAX - 63, SIZE_MAX / 2}) {
    void* p = &p;
    EXPECT_EQ(moeblas_buffer_alloc(kCpu, bytes, &p), MOEBLAS_OUT_OF_MEMORY) << bytes;
    EXPECT_EQ(moeblas_last_error(),
              "[buffer_alloc] out of memory for " + std::to_string(bytes) + " bytes");
    EXPECT_EQ(p, &p) << "untouched";
  }
}

void expect_error(moeblas_status status, moeblas_status expected, const char* op,
                  const char* name) {
  EXPECT_EQ(status, expected);
  const std::string message = moeblas_last_error();
  EXPECT_EQ(message.rfind(std::string("[") + op + "] ", 0), 0u) << message;
  EXPECT_TRUE(names_argument(message, name)) << message;
}

TEST(Buffers, BadArguments) {
  char memory[8] = "1234567";
  void* p = &p;
  expect_error(moeblas_buffer_alloc(kCpu, 8, nullptr), MOEBLAS_INVALID_ARGUMENT, "buffer_alloc",
               "out");
  expect_error(moeblas_buffer_alloc(kNowhere, 8, &p), MOEBLAS_UNSUPPORTED, "buffer_alloc",
               "device");
  EXPECT_EQ(p, &p);
  expect_error(moeblas_buffer_free(kNowhere, memory), MOEBLAS_UNSUPPORTED, "buffer_free", "device");
  expect_error(moeblas_buffer_copy(kCpu, nullptr, kCpu, memory, 8), MOEBLAS_INVALID_ARGUMENT,
               "buffer_copy", "to");
  expect_error(moeblas_buffer_copy(kCpu, memory, kCpu, nullptr, 8), MOEBLAS_INVALID_ARGUMENT,
               "buffer_copy", "from");
  expect_error(moeblas_buffer_copy(kNowhere, memory, kCpu, memory + 4, 4), MOEBLAS_UNSUPPORTED,
               "buffer_copy", "device");
  expect_error(moeblas_buffer_copy(kCpu, memory, kNowhere, memory + 4, 4), MOEBLAS_UNSUPPORTED,
               "buffer_copy", "device");
  EXPECT_STREQ(memory, "1234567");
}

}  // namespace
}  // namespace moeblas::test
