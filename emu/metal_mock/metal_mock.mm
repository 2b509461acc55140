// Metal's objects over the emulator. Commands are kept until somebody waits for them, as a GPU
// would be behind; then they run in order. What Apple documents as a limit or a duty is an
// emu::Error.
//
// Nothing here catches an exception: GNUstep's runtime has Objective-C++ code pass over those of
// C++.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>

#import <Metal/Metal.h>

#include "state.h"

using namespace moeblas::emu;
using namespace moeblas::emu::metal;

namespace {

// Of command buffers that a queue has not finished; the next one waits for the oldest.
constexpr std::size_t kMostCommandBuffers = 64;

using Lock = std::lock_guard<std::recursive_mutex>;

NSError* error_of(const std::string& text) {
  NSDictionary* info =
      [NSDictionary dictionaryWithObject:[NSString stringWithUTF8String:text.c_str()]
                                  forKey:NSLocalizedDescriptionKey];
  return [NSError errorWithDomain:@"MTLMockErrorDomain" code:1 userInfo:info];
}

}  // namespace

@interface MockBuffer : NSObject <MTLBuffer> {
 @public
  void* contents_;
  NSUInteger length_;
  BOOL owned_;
}
@end

@implementation MockBuffer
- (id)initWithLength:(NSUInteger)length wrapping:(void*)memory {
  if ((self = [super init]) == nil) return nil;
  length_ = length;
  owned_ = memory == nullptr;
  contents_ = memory;
  if (owned_) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    contents_ = std::aligned_alloc(page, (length + page - 1) / page * page);
    // Metal clears; nothing here is to count on it.
    std::memset(contents_, 0xa5, length);
  }
  ++state().buffers;
  if (!owned_) ++state().wraps;
  return self;
}
- (void)dealloc {
  if (owned_) std::free(contents_);
  --state().buffers;
  if (!owned_) --state().wraps;
  [super dealloc];
}
- (void*)contents {
  return contents_;
}
- (NSUInteger)length {
  return length_;
}
@end

@implementation MTLCompileOptions
@synthesize languageVersion, fastMathEnabled;
- (id)init {
  if ((self = [super init]) != nil) self.fastMathEnabled = YES;  // as Metal has it
  return self;
}
@end

@interface MockFence : NSObject <MTLFence>
@end
@implementation MockFence
@end

@interface MockFunction : NSObject <MTLFunction> {
 @public
  std::string name_;
}
@end
@implementation MockFunction
@end

@interface MockLibrary : NSObject <MTLLibrary> {
 @public
  std::string file_;
}
@end
@implementation MockLibrary
- (NSArray*)functionNames {
  NSMutableArray* names = [NSMutableArray array];
  for (const std::string& name : kernel_names()) {
    if (is_of_file(name, file_)) [names addObject:[NSString stringWithUTF8String:name.c_str()]];
  }
  return names;
}
- (id<MTLFunction>)newFunctionWithName:(NSString*)name {
  const std::string kernel = [name UTF8String];
  if (!has_kernel(kernel) || !is_of_file(kernel, file_)) return nil;
  MockFunction* function = [[MockFunction alloc] init];
  function->name_ = kernel;
  return function;
}
@end

@interface MockPipeline : NSObject <MTLComputePipelineState> {
 @public
  std::string kernel_;
}
@end
@implementation MockPipeline
- (NSUInteger)maxTotalThreadsPerThreadgroup {
  return state().faults.most_threads;
}
- (NSUInteger)threadExecutionWidth {
  return Limits::kSimdWidth;
}
@end

@class MockQueue;

@interface MockCommandBuffer : NSObject <MTLCommandBuffer> {
 @public
  MockQueue* queue_;
  NSMutableArray* retained_;
  Work work_;
  std::vector<id> waited_, updated_;  // fences
  MTLCommandBufferStatus status_;
  NSError* error_;
  BOOL encoding_;
}
- (void)run;
@end

@interface MockQueue : NSObject <MTLCommandQueue> {
 @public
  std::deque<MockCommandBuffer*> pending_;
}
- (void)runUntil:(MockCommandBuffer*)last;
@end

@interface MockEncoder : NSObject <MTLComputeCommandEncoder> {
 @public
  MockCommandBuffer* commands_;
  MockPipeline* pipeline_;
  std::map<unsigned, Argument> arguments_;
  BOOL ended_;
}
@end

@implementation MockEncoder
- (void)dealloc {
  if (!ended_) std::abort();  // as Metal does
  [commands_ release];
  [super dealloc];
}
- (void)mustBeOpen {
  if (ended_) misuse("a command is encoded after endEncoding");
}
- (void)mustHaveIndex:(NSUInteger)index {
  [self mustBeOpen];
  if (index >= Limits::kBufferIndices)
    beyond("buffer index " + std::to_string(index) + ", past 30");
}
- (void)setComputePipelineState:(id<MTLComputePipelineState>)pipeline {
  [self mustBeOpen];
  pipeline_ = (MockPipeline*)pipeline;
  [commands_->retained_ addObject:pipeline_];
}
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index {
  [self mustHaveIndex:index];
  auto* memory = (MockBuffer*)buffer;
  if (memory == nil) misuse("no buffer at index " + std::to_string(index));
  if (offset >= memory->length_)
    beyond("offset " + std::to_string(offset) + " of a buffer of " +
           std::to_string(memory->length_));
  [commands_->retained_ addObject:memory];
  const Memory whole{memory->contents_, memory->length_, memory};
  commands_->work_.memory.push_back(whole);
  arguments_[static_cast<unsigned>(index)] = {whole, offset, {}};
}
- (void)setBytes:(const void*)bytes length:(NSUInteger)length atIndex:(NSUInteger)index {
  [self mustHaveIndex:index];
  if (length == 0 || length > Limits::kSetBytes)
    beyond("setBytes of " + std::to_string(length) + " bytes: 1 to 4096 are allowed");
  const auto* first = static_cast<const unsigned char*>(bytes);
  arguments_[static_cast<unsigned>(index)] = {{}, 0, {first, first + length}};
}
- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)threads {
  [self mustBeOpen];
  if (pipeline_ == nil) misuse("a dispatch without a pipeline");
  if (threads.width * threads.height * threads.depth > [pipeline_ maxTotalThreadsPerThreadgroup])
    beyond("more threads per threadgroup than the pipeline's " +
           std::to_string([pipeline_ maxTotalThreadsPerThreadgroup]));
  const auto size = [](MTLSize s) {
    return Size{static_cast<unsigned>(s.width), static_cast<unsigned>(s.height),
                static_cast<unsigned>(s.depth)};
  };
  commands_->work_.dispatches.push_back(
      {pipeline_->kernel_, size(groups), size(threads), arguments_});
}
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope {
  [self mustBeOpen];
  if (scope != MTLBarrierScopeBuffers) misuse("a barrier of another scope than buffers");
}
- (void)waitForFence:(id<MTLFence>)fence {
  [self mustBeOpen];
  if (!commands_->work_.dispatches.empty())
    misuse("a pass waits for a fence before its first command");
  commands_->waited_.push_back(fence);
}
- (void)updateFence:(id<MTLFence>)fence {
  [self mustBeOpen];
  commands_->updated_.push_back(fence);
}
- (void)endEncoding {
  [self mustBeOpen];
  ended_ = YES;
  commands_->encoding_ = NO;
}
@end

@implementation MockCommandBuffer
- (void)dealloc {
  [queue_ release];
  [retained_ release];
  [error_ release];
  [super dealloc];
}
- (id<MTLComputeCommandEncoder>)computeCommandEncoder {
  if (encoding_ || status_ >= MTLCommandBufferStatusCommitted)
    misuse("an encoder of a command buffer that has one open, or is committed");
  encoding_ = YES;
  MockEncoder* encoder = [[[MockEncoder alloc] init] autorelease];
  encoder->commands_ = [self retain];
  return encoder;
}
- (void)commit {
  const Lock lock(mutex());
  if (encoding_) misuse("commit before endEncoding");
  if (status_ >= MTLCommandBufferStatusCommitted) misuse("a command buffer is committed twice");
  // Hazards are tracked by buffer: memory that two buffers share is for fences to order.
  for (const MockCommandBuffer* earlier : queue_->pending_) {
    const bool ordered = std::any_of(waited_.begin(), waited_.end(), [&](id fence) {
      return std::find(earlier->updated_.begin(), earlier->updated_.end(), fence) !=
             earlier->updated_.end();
    });
    if (!ordered && share_memory(earlier->work_, work_))
      misuse("two buffers share memory, and no fence orders the passes that use them");
  }
  status_ = MTLCommandBufferStatusCommitted;
  queue_->pending_.push_back([self retain]);
}
- (void)waitUntilCompleted {
  const Lock lock(mutex());
  if (status_ < MTLCommandBufferStatusCommitted) misuse("a wait for what was not committed");
  [queue_ runUntil:self];
}
- (void)run {
  const std::string failure = work_.run();
  status_ = failure.empty() ? MTLCommandBufferStatusCompleted : MTLCommandBufferStatusError;
  if (!failure.empty()) error_ = [error_of(failure) retain];
  [retained_ removeAllObjects];
}
- (MTLCommandBufferStatus)status {
  const Lock lock(mutex());
  return status_;
}
- (NSError*)error {
  return error_;
}
@end

@implementation MockQueue
- (void)runUntil:(MockCommandBuffer*)last {
  while (!pending_.empty() && last->status_ == MTLCommandBufferStatusCommitted) {
    MockCommandBuffer* next = pending_.front();
    pending_.pop_front();
    [next run];
    [next release];
  }
}
- (id<MTLCommandBuffer>)commandBuffer {
  const Lock lock(mutex());
  if (pending_.size() >= kMostCommandBuffers) [self runUntil:pending_.front()];
  MockCommandBuffer* commands = [[[MockCommandBuffer alloc] init] autorelease];
  commands->queue_ = [self retain];
  commands->retained_ = [[NSMutableArray alloc] init];
  return commands;
}
@end

@interface MockDevice : NSObject <MTLDevice>
@end

@implementation MockDevice
- (NSString*)name {
  return @"the emulator";
}
- (BOOL)supportsFamily:(MTLGPUFamily)family {
  return !device_is("old") && family <= MTLGPUFamilyApple7;
}
- (NSUInteger)maxBufferLength {
  return state().faults.most_bytes;
}
- (NSUInteger)recommendedMaxWorkingSetSize {
  return NSUInteger(8) << 30;
}
- (id<MTLCommandQueue>)newCommandQueue {
  return [[MockQueue alloc] init];
}
- (id<MTLFence>)newFence {
  return [[MockFence alloc] init];
}
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options {
  if (length == 0 || length > state().faults.most_bytes || options != MTLResourceStorageModeShared)
    return nil;
  return [[MockBuffer alloc] initWithLength:length wrapping:nullptr];
}
- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void*)pointer
                                   length:(NSUInteger)length
                                  options:(MTLResourceOptions)options
                              deallocator:(id)deallocator {
  const auto page = static_cast<NSUInteger>(sysconf(_SC_PAGESIZE));
  if (deallocator != nil) misuse("a deallocator, for which there is no runtime here");
  if (reinterpret_cast<uintptr_t>(pointer) % page != 0 || length % page != 0)
    misuse("memory to wrap that is not whole pages");
  std::vector<unsigned char> resident(length / page);
  const bool mapped = length > 0 && mincore(pointer, length, resident.data()) == 0;
  if (!mapped || length > state().faults.most_bytes || state().faults.no_copy ||
      options != MTLResourceStorageModeShared)
    return nil;
  return [[MockBuffer alloc] initWithLength:length wrapping:pointer];
}
- (id<MTLLibrary>)newLibraryWithSource:(NSString*)source
                               options:(MTLCompileOptions*)options
                                 error:(NSError**)error {
  const Lock lock(mutex());
  const std::string digest = sha256_of([source UTF8String]);
  state().digests.push_back(digest);
  *error = nil;
  // What the text stands on.
  if (options.languageVersion < MTLLanguageVersion3_1) {
    *error = error_of("bfloat needs version 3.1 of the language");
    return nil;
  }
  if (options.fastMathEnabled) {
    *error = error_of("this text counts on NaN and infinity, which fast math gives up");
    return nil;
  }
  for (const CompiledText& text : compiled_texts()) {
    if (digest != text.sha256) continue;
    if (state().faults.library == text.name) {
      *error = error_of(state().faults.library + " was made to fail");
      return nil;
    }
    MockLibrary* library = [[MockLibrary alloc] init];
    library->file_ = text.name;
    return library;
  }
  *error = error_of("the emulator compiled no text of SHA-256 " + digest);
  return nil;
}
- (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)function
                                                             error:(NSError**)error {
  const Lock lock(mutex());
  *error = nil;
  const std::string& kernel = ((MockFunction*)function)->name_;
  if (kernel == state().faults.pipeline) {
    *error = error_of(kernel + " was made to fail");
    return nil;
  }
  MockPipeline* pipeline = [[MockPipeline alloc] init];
  pipeline->kernel_ = kernel;
  return pipeline;
}
@end

id<MTLDevice> MTLCreateSystemDefaultDevice(void) {
  return device_is("none") ? nil : [[MockDevice alloc] init];
}
