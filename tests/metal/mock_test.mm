// The mock's own rules: what Apple documents as a limit or a duty is an error there.
#include <gtest/gtest.h>

#import <Metal/Metal.h>

#include "errors.h"

namespace moeblas::test {

void* new_metal_queue() { return (void*)[MTLCreateSystemDefaultDevice() newCommandQueue]; }
void release_metal_queue(void* queue) { [(id<MTLCommandQueue>)queue release]; }
void wait_for_queue(void* queue) {
  @autoreleasepool {
    id<MTLCommandBuffer> last = [(id<MTLCommandQueue>)queue commandBuffer];
    [last commit];
    [last waitUntilCompleted];
  }
}

namespace {

using emu::ErrorKind;

struct Commands {
  NSAutoreleasePool* pool = [[NSAutoreleasePool alloc] init];
  id<MTLDevice> device = MTLCreateSystemDefaultDevice();
  id<MTLCommandQueue> queue = [device newCommandQueue];
  id<MTLCommandBuffer> commands = [queue commandBuffer];
  id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
  id<MTLBuffer> buffer = [device newBufferWithLength:64 options:MTLResourceStorageModeShared];
  bool ended = false;

  void end() {
    if (!ended) [encoder endEncoding];
    ended = true;
  }
  ~Commands() {
    end();
    [buffer release];
    [queue release];
    [device release];
    [pool release];
  }
};

TEST(MetalMock, EnforcesLimitsOfArguments) {
  Commands c;
  char bytes[4097] = {};
  expect_error(ErrorKind::limit, "buffer index 31",
               [&] { [c.encoder setBuffer:c.buffer offset:0 atIndex:31]; });
  expect_error(ErrorKind::limit, "offset 64",
               [&] { [c.encoder setBuffer:c.buffer offset:64 atIndex:0]; });
  expect_error(ErrorKind::usage, "no buffer",
               [&] { [c.encoder setBuffer:nil offset:0 atIndex:0]; });
  expect_error(ErrorKind::limit, "4097 bytes",
               [&] { [c.encoder setBytes:bytes length:4097 atIndex:0]; });
  expect_error(ErrorKind::limit, "0 bytes", [&] { [c.encoder setBytes:bytes length:0 atIndex:0]; });
  [c.encoder setBytes:bytes length:4096 atIndex:30];
}

TEST(MetalMock, EnforcesTheOrderOfCommands) {
  Commands c;
  expect_error(ErrorKind::usage, "without a pipeline", [&] {
    [c.encoder dispatchThreadgroups:MTLSizeMake(1, 1, 1)
              threadsPerThreadgroup:MTLSizeMake(32, 1, 1)];
  });
  expect_error(ErrorKind::usage, "commit before endEncoding", [&] { [c.commands commit]; });
  expect_error(ErrorKind::usage, "has one open", [&] { [c.commands computeCommandEncoder]; });
  expect_error(ErrorKind::usage, "not committed", [&] { [c.commands waitUntilCompleted]; });
  c.end();
  expect_error(ErrorKind::usage, "after endEncoding",
               [&] { [c.encoder setBuffer:c.buffer offset:0 atIndex:0]; });
  [c.commands commit];
  expect_error(ErrorKind::usage, "committed twice", [&] { [c.commands commit]; });
  EXPECT_EQ([c.commands status], MTLCommandBufferStatusCommitted);
  [c.commands waitUntilCompleted];
  EXPECT_EQ([c.commands status], MTLCommandBufferStatusCompleted);
}

TEST(MetalMock, WantsAFenceWhereBuffersShareMemory) {
  for (bool fenced : {false, true}) {
    Commands c;
    id<MTLFence> fence = [c.device newFence];
    const auto page = static_cast<NSUInteger>(getpagesize());
    void* memory = std::aligned_alloc(page, page);
    id<MTLBuffer> wraps[2];
    for (id<MTLBuffer>& wrap : wraps) {
      wrap = [c.device newBufferWithBytesNoCopy:memory
                                         length:page
                                        options:MTLResourceStorageModeShared
                                    deallocator:nil];
    }
    [c.encoder setBuffer:wraps[0] offset:0 atIndex:0];
    [c.encoder updateFence:fence];
    c.end();
    [c.commands commit];
    id<MTLCommandBuffer> next = [c.queue commandBuffer];
    id<MTLComputeCommandEncoder> encoder = [next computeCommandEncoder];
    if (fenced) [encoder waitForFence:fence];
    [encoder setBuffer:wraps[1] offset:0 atIndex:0];
    [encoder endEncoding];
    if (fenced) {
      [next commit];
      [next waitUntilCompleted];
    } else {
      expect_error(ErrorKind::usage, "no fence orders", [&] { [next commit]; });
      [c.commands waitUntilCompleted];
    }
    for (id<MTLBuffer> wrap : wraps) [wrap release];
    [fence release];
    std::free(memory);
  }
}

TEST(MetalMock, CompilesOnlyWhatTheEmulatorCompiled) {
  Commands c;
  MTLCompileOptions* options = [[[MTLCompileOptions alloc] init] autorelease];
  NSError* error = nil;
  const auto refusal = [&](NSString* text) -> std::string {
    id<MTLLibrary> library = [c.device newLibraryWithSource:text options:options error:&error];
    EXPECT_TRUE(library == nil);
    return [[error localizedDescription] UTF8String];
  };
  EXPECT_NE(refusal(@"text").find("version 3.1"), std::string::npos);
  options.languageVersion = MTLLanguageVersion3_1;
  EXPECT_NE(refusal(@"text").find("fast math"), std::string::npos);
  options.fastMathEnabled = NO;
  // The digest of "text", by sha256sum.
  EXPECT_NE(
      refusal(@"text").find("982d9e3eb996f559e633f4d194def3761d909f5a3b647d1a851fead67c32c9d1"),
      std::string::npos);
}

TEST(MetalMock, WrapsWholePagesOnly) {
  Commands c;
  const auto page = static_cast<NSUInteger>(getpagesize());
  char* memory = static_cast<char*>(std::aligned_alloc(page, 2 * page));
  const auto wrap = [&](void* at, NSUInteger length) {
    return [c.device newBufferWithBytesNoCopy:at
                                       length:length
                                      options:MTLResourceStorageModeShared
                                  deallocator:nil];
  };
  expect_error(ErrorKind::usage, "whole pages", [&] { wrap(memory + 16, page); });
  expect_error(ErrorKind::usage, "whole pages", [&] { wrap(memory, page - 1); });
  EXPECT_TRUE(wrap(memory, 0) == nil);
  std::free(memory);
}

}  // namespace
}  // namespace moeblas::test
