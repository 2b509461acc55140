// What stands between a plan and the device: texts, pipelines, queues, failures.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "emu/metal_mock/metal_mock.h"
#include "errors.h"
#include "metal/backend.h"
#include "metal/kernel_texts.h"
#include "metal_call.h"

namespace moeblas::test {

// Of mock_test.mm: a queue of the caller's, and its end.
void* new_metal_queue();
void release_metal_queue(void* queue);
void wait_for_queue(void* queue);

namespace {

namespace mock = emu::metal;

// The first of the program's tests to use Metal: texts are compiled once.
TEST(MetalBackend, MetalIsGivenTheTextThatTheEmulatorCompiled) {
  std::map<std::string, std::string> compiled;
  for (const mock::CompiledText& text : mock::compiled_texts()) compiled[text.name] = text.sha256;
  std::vector<std::string> carried;
  for (const metal::KernelText& text : metal::kernel_texts()) {
    EXPECT_EQ(compiled[text.name], text.sha256) << text.name;
    carried.push_back(text.sha256);
  }
  EXPECT_EQ(compiled.size(), carried.size());
  EXPECT_GE(carried.size(), 10u);

  // The digests of the strings as newLibraryWithSource got them, by the mock's own arithmetic.
  mock::forget();
  int kernels = 0;
  metal::for_each_kernel([&](const char*, uint64_t) { ++kernels; });
  std::vector<std::string> given = mock::library_digests();
  std::sort(given.begin(), given.end());
  std::sort(carried.begin(), carried.end());
  EXPECT_EQ(given, carried);
  int known = 0;
  for (const std::string& name : emu::kernel_names()) {
    if (metal::text_with(name) != nullptr) ++known;
  }
  EXPECT_EQ(kernels, known) << "every kernel of the texts has a pipeline";
  EXPECT_GE(kernels, 100);
}

TEST(MetalBackend, AKernelIsLookedForInItsOwnText) {
  for (const std::string& name : emu::kernel_names()) {
    const metal::KernelText* text = metal::text_with(name);
    const std::string file = emu::file_of_kernel(name);
    ASSERT_NE(text, nullptr) << name << " of " << file;
    EXPECT_EQ(file, std::string("simt/") + text->name) << name;
  }
}

TEST(MetalBackend, NothingRunsBeforeSomebodyWaits) {
  const SharedOnes shared;
  mock::forget();
  shared.ones.call();
  EXPECT_TRUE(shared.ones.all(Ones::kBefore)) << "the call did not wait";
  EXPECT_TRUE(mock::kernels_run().empty());
  wait_for_metal();
  EXPECT_TRUE(shared.ones.all(Ones::kCode));
  EXPECT_EQ(mock::kernels_run(), std::vector<std::string>{"to_fp8_simt"});
}

TEST(MetalBackend, CallsFollowEachOther) {
  const SharedMemory memory(3 * 4096);
  auto* bytes = memory.as<uint8_t>();
  const Ones ones(memory.as<float>(), bytes + 4096);
  const TensorView codes(bytes + 4096, DType::u8, {Ones::kCount}, kMetal);
  const TensorView back(bytes + 8192, DType::f32, {Ones::kCount}, kMetal);
  ones.call();
  from_fp8(codes, back);
  wait_for_metal();
  for (int64_t i = 0; i < Ones::kCount; ++i) EXPECT_EQ(static_cast<float*>(back.data)[i], 1.0f);
}

TEST(MetalBackend, TheStreamIsAQueueOfTheCallers) {
  const SharedOnes shared;
  void* queue = new_metal_queue();
  Options options;
  options.stream = queue;
  shared.ones.call(options);
  wait_for_queue(queue);
  EXPECT_TRUE(shared.ones.all(Ones::kCode));
  release_metal_queue(queue);
  wait_for_metal();
}

TEST(MetalBackend, ManyCallsMayBeUnderWay) {
  const SharedOnes shared;
  for (int i = 0; i < 200; ++i) shared.ones.call();
  wait_for_metal();
  EXPECT_TRUE(shared.ones.all(Ones::kCode));
}

TEST(MetalBackend, WorkThatFailsIsToldToWhoWaits) {
  const SharedOnes shared;
  mock::faults().dispatch = "to_fp8_simt";
  shared.ones.call();
  const std::string message = message_of(MOEBLAS_DEVICE_ERROR, [] { wait_for_metal(); });
  EXPECT_NE(message.find("to_fp8_simt was made to fail"), std::string::npos) << message;
  mock::faults().dispatch.clear();
  wait_for_metal();  // once
  shared.ones.call();
  wait_for_metal();
  EXPECT_TRUE(shared.ones.all(Ones::kCode));
}

TEST(MetalBackend, ThreadgroupsThatThePipelineDoesNotTakeAreAnError) {
  const SharedMemory memory(4096);
  auto* bytes = memory.as<uint8_t>();
  std::memset(bytes, 0, 4096);
  const simt::Step step = [&] {
    simt::Step s;
    s.kernel = "clear_scales_simt";
    s.threads[0] = 64;
    s.point(bytes);
    return s;
  }();
  dispatch::Place place(kMetal);
  place.memory[place.tensors++] = {bytes, 4096};
  metal::Queue queue("test", place, {}, nullptr);
  mock::faults().most_threads = 32;
  const std::string message = message_of(MOEBLAS_DEVICE_ERROR, [&] { queue.run(step); });
  mock::faults().most_threads = 1024;
  EXPECT_NE(message.find("[test] kernel clear_scales_simt in threadgroups of 64"),
            std::string::npos)
      << message;
}

TEST(MetalBackend, MistakesOfAPlanAreErrors) {
  const SharedMemory memory(4096);
  dispatch::Place place(kMetal);
  place.memory[place.tensors++] = {memory.as<char>(), 4096};
  metal::Queue queue("test", place, {}, nullptr);
  simt::Step step;
  step.kernel = "no_such_kernel";
  EXPECT_NE(message_of(MOEBLAS_INTERNAL_ERROR, [&] { queue.run(step); }).find("no_such_kernel"),
            std::string::npos);
  step.kernel = "to_fp8_simt";
  int elsewhere = 0;
  step.point(memory.as<char>());
  step.point(&elsewhere);
  EXPECT_NE(message_of(MOEBLAS_INTERNAL_ERROR, [&] { queue.run(step); }).find("argument 1"),
            std::string::npos);
}

// A call whose second kernel cannot be had leaves the first one undone too.
TEST(MetalBackend, ACallRunsAsAWholeOrNotAtAll) {
  const SharedMemory memory(1 << 16);
  auto* bytes = memory.as<uint8_t>();
  std::memset(bytes, 0, 1 << 16);
  const Quantized w{.spec = {Mode::mxfp4},
                    .codes = {bytes, DType::u8, {3, 8, 16}, kMetal},
                    .scales = {bytes + 4096, DType::u8, {3, 8, 1}, kMetal}};
  const TensorView x(bytes + 8192, DType::f32, {4, 32}, kMetal);
  const TensorView ids(bytes + 12288, DType::i32, {4}, kMetal);
  const TensorView out(bytes + 16384, DType::f32, {4, 8}, kMetal);
  // The pairs' kernel, then one that this name forces on the product.
  Options options;
  options.kernel = "qmv_simt";
  gather_qmv(x, w, ids, out, options);
  wait_for_metal();
  mock::forget();
  mock::faults().dispatch = "pairs_small_simt";
  std::memset(bytes + 16384, 0x77, 128);
  gather_qmv(x, w, ids, out, options);
  message_of(MOEBLAS_DEVICE_ERROR, [] { wait_for_metal(); });
  mock::faults().dispatch.clear();
  EXPECT_TRUE(mock::kernels_run().empty());
  EXPECT_EQ(bytes[16384], 0x77);
}

TEST(MetalBackend, IdsAreCheckedWhereAsked) {
  const SharedMemory memory(1 << 16);
  auto* bytes = memory.as<uint8_t>();
  std::memset(bytes, 0, 1 << 16);
  const Quantized w{.spec = {Mode::mxfp4},
                    .codes = {bytes, DType::u8, {3, 8, 16}, kMetal},
                    .scales = {bytes + 4096, DType::u8, {3, 8, 1}, kMetal}};
  const TensorView x(bytes + 8192, DType::f32, {4, 32}, kMetal);
  const TensorView ids(bytes + 12288, DType::i32, {4}, kMetal);
  const TensorView out(bytes + 16384, DType::f32, {4, 8}, kMetal);
  Options options;
  options.check_ids = true;
  gather_qmv(x, w, ids, out, options);
  static_cast<int32_t*>(ids.data)[2] = 3;
  std::string message =
      message_of(MOEBLAS_INVALID_ARGUMENT, [&] { gather_qmv(x, w, ids, out, options); });
  EXPECT_NE(message.find("holds 3 at position 2, expected 0 to 2"), std::string::npos) << message;

  const TensorView tokens(bytes + 8192, DType::f32, {2, 32}, kMetal);
  const TensorView routed(bytes + 12288, DType::i32, {2, 2}, kMetal);
  const TensorView rows(bytes + 20480, DType::f32, {4, 32}, kMetal);
  const TensorView offsets(bytes + 24576, DType::i32, {3}, kMetal);
  const TensorView inverse(bytes + 28672, DType::i32, {2, 2}, kMetal);
  message = message_of(MOEBLAS_INVALID_ARGUMENT, [&] {
    moe_permute(tokens, routed, {}, 3, rows, offsets, inverse, options);
  });
  EXPECT_NE(message.find("ids holds 3 at position 2, expected -1 to 2"), std::string::npos)
      << message;
  wait_for_metal();
}

TEST(MetalBackend, SaysWhatItFound) {
  const std::string info = moeblas_info();
  EXPECT_NE(info.find("metal: 0 the emulator, family Apple7"), std::string::npos) << info;
}

TEST(MetalBackend, ThereIsOneDevice) {
  const TensorView x(nullptr, DType::f32, {0}, Device{MOEBLAS_METAL, 1});
  const TensorView out(nullptr, DType::u8, {0}, Device{MOEBLAS_METAL, 1});
  const std::string message = message_of(MOEBLAS_UNSUPPORTED, [&] { to_fp8(x, out); });
  EXPECT_NE(message.find("there is no device 1"), std::string::npos) << message;
}

// Runs `body` in a process of its own: the device, texts and pipelines are a process's for good.
void expect_alone(void (*body)()) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT((body(), std::exit(testing::Test::HasFailure() ? 1 : 0)), testing::ExitedWithCode(0),
              "");
}

void a_text_that_does_not_compile() {
  const SharedOnes shared;
  mock::faults().library = "fp8.metal";
  const std::string message = message_of(MOEBLAS_DEVICE_ERROR, [&] { shared.ones.call(); });
  EXPECT_NE(message.find("[to_fp8] Metal did not compile fp8.metal: fp8.metal was made to fail"),
            std::string::npos)
      << message;
  wait_for_metal();
  EXPECT_TRUE(shared.ones.all(Ones::kBefore));
  mock::faults().library.clear();
  shared.ones.call();
  wait_for_metal();
  EXPECT_TRUE(shared.ones.all(Ones::kCode)) << "a later call tries again";
}

void a_kernel_without_a_pipeline() {
  const SharedOnes shared;
  mock::faults().pipeline = "to_fp8_simt";
  const std::string message = message_of(MOEBLAS_DEVICE_ERROR, [&] { shared.ones.call(); });
  EXPECT_NE(message.find("[to_fp8] Metal made no pipeline of kernel to_fp8_simt"),
            std::string::npos)
      << message;
  wait_for_metal();
  EXPECT_TRUE(shared.ones.all(Ones::kBefore));
}

void expect_off(const char* why) {
  const std::string info = moeblas_info();
  EXPECT_NE(info.find(std::string("metal: off: ") + why), std::string::npos) << info;
  const float x[4] = {};
  uint8_t out[4] = {};
  const std::string message = message_of(MOEBLAS_UNSUPPORTED, [&] {
    to_fp8({x, DType::f32, {4}, kMetal}, {out, DType::u8, {4}, kMetal});
  });
  EXPECT_NE(message.find(why), std::string::npos) << message;
}

TEST(MetalAlone, ATextThatDoesNotCompile) { expect_alone(a_text_that_does_not_compile); }
TEST(MetalAlone, AKernelWithoutAPipeline) { expect_alone(a_kernel_without_a_pipeline); }
TEST(MetalAlone, NoDevice) {
  expect_alone([] {
    setenv("METAL_MOCK_DEVICE", "none", 1);
    expect_off("no Metal device was found");
  });
}
TEST(MetalAlone, AnOldDevice) {
  expect_alone([] {
    setenv("METAL_MOCK_DEVICE", "old", 1);
    expect_off("the emulator is older than the GPUs of M1 and A14");
  });
}

}  // namespace
}  // namespace moeblas::test
