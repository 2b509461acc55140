// The only file that needs Apple's frameworks. It is compiled without reference counting by the
// compiler (-fno-objc-arc): GNUstep's runtime, by which the tests run it on Linux, has none.
#include "metal/backend.h"

#import <Foundation/Foundation.h>
#import <Metal/Metal.h>

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "metal/kernel_texts.h"
#include "moeblas/error.h"

namespace moeblas::metal {
namespace {

using dispatch::Reason;

// Owns one reference to an object.
template <class Object>
class Held {
 public:
  Held() = default;
  explicit Held(Object object) : object_(object) {}  // of a method whose name begins with new
  static Held retained(Object object) { return Held([object retain]); }
  Held(Held&& other) noexcept : object_(other.object_) { other.object_ = nil; }
  Held& operator=(Held&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Held() { [object_ release]; }
  Object get() const { return object_; }

 private:
  Object object_ = nil;
};

struct Kernel {
  Held<id<MTLComputePipelineState>> pipeline;
  uint64_t launches = 0;
};

// Found once, never destroyed: calls may come as late as other libraries' destructors.
struct Device {
  Held<id<MTLDevice>> device;
  Held<id<MTLCommandQueue>> queue;  // of calls that name none
  Held<id<MTLBuffer>> nothing;      // in the place of tensors that are absent or empty
  int family = 0;
  Reason why_not;

  std::mutex mutex;                                            // of what follows
  std::map<std::string_view, Held<id<MTLLibrary>>> libraries;  // by the name of their text
  std::map<std::string, Kernel, std::less<>> kernels;
  std::map<uintptr_t, Held<id<MTLBuffer>>> buffers;  // of allocate(), by address
  std::map<void*, Held<id<MTLFence>>> fences;        // by queue
  std::vector<Held<id<MTLCommandBuffer>>> running;
  std::string failure;  // of work that is done, until somebody waits

  Device();
};

Device::Device() {
  @autoreleasepool {
    device = Held(MTLCreateSystemDefaultDevice());
    if (device.get() == nil) {
      why_not = Reason::of("no Metal device was found");
      return;
    }
    constexpr MTLGPUFamily kFamilies[] = {MTLGPUFamilyApple7, MTLGPUFamilyApple8,
                                          MTLGPUFamilyApple9};
    for (int i = 0; i < 3; ++i) {
      if ([device.get() supportsFamily:kFamilies[i]]) family = 7 + i;
    }
    if (family == 0) {
      why_not = Reason::of("%.60s is older than the GPUs of M1 and A14, which the kernels need",
                           [[device.get() name] UTF8String]);
      return;
    }
    queue = Held([device.get() newCommandQueue]);
    nothing = Held([device.get() newBufferWithLength:16 options:MTLResourceStorageModeShared]);
  }
}

Device& the_device() {
  static Device* const one = new Device;
  return *one;
}

[[noreturn]] void fail(moeblas_status status, const char* op, const std::string& what) {
  throw Error(status, std::string("[") + op + "] " + what);
}

std::string text_of(NSError* error) {
  return error != nil ? [[error localizedDescription] UTF8String] : "no reason was given";
}

// The caller holds the mutex, here and below.
id<MTLLibrary> library_of(Device& d, const char* op, const KernelText& text) {
  Held<id<MTLLibrary>>& library = d.libraries[text.name];
  if (library.get() != nil) return library.get();
  Held<MTLCompileOptions*> options([[MTLCompileOptions alloc] init]);
  options.get().languageVersion = MTLLanguageVersion3_1;  // the first with bfloat
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wdeprecated-declarations"
  options.get().fastMathEnabled = NO;  // mathMode's older name: before macOS 15 there is no other
#pragma clang diagnostic pop
  NSError* error = nil;
  library = Held([d.device.get() newLibraryWithSource:[NSString stringWithUTF8String:text.text]
                                              options:options.get()
                                                error:&error]);
  if (library.get() == nil) {
    fail(MOEBLAS_DEVICE_ERROR, op,
         std::string("Metal did not compile ") + text.name + ": " + text_of(error));
  }
  return library.get();
}

Kernel& kernel_of(Device& d, const char* op, const char* name) {
  const auto found = d.kernels.find(name);
  if (found != d.kernels.end()) return found->second;
  const std::string kernel = std::string("kernel ") + name;
  const KernelText* text = text_with(name);
  if (text == nullptr) fail(MOEBLAS_INTERNAL_ERROR, op, kernel + " is in no text of this build");
  const Held function(
      [library_of(d, op, *text) newFunctionWithName:[NSString stringWithUTF8String:name]]);
  if (function.get() == nil) fail(MOEBLAS_INTERNAL_ERROR, op, kernel + " is not in " + text->name);
  NSError* error = nil;
  Held pipeline([d.device.get() newComputePipelineStateWithFunction:function.get() error:&error]);
  if (pipeline.get() == nil) {
    fail(MOEBLAS_DEVICE_ERROR, op, "Metal made no pipeline of " + kernel + ": " + text_of(error));
  }
  if ([pipeline.get() threadExecutionWidth] != simt::kSimdWidth) {
    fail(MOEBLAS_DEVICE_ERROR, op,
         kernel + " has simdgroups of " + std::to_string([pipeline.get() threadExecutionWidth]) +
             ", expected " + std::to_string(simt::kSimdWidth));
  }
  Kernel& made = d.kernels[name];
  made.pipeline = std::move(pipeline);
  return made;
}

// Drops what is done of the work and keeps the first failure.
void collect(Device& d) {
  std::erase_if(d.running, [&](const Held<id<MTLCommandBuffer>>& commands) {
    const MTLCommandBufferStatus status = [commands.get() status];
    if (status == MTLCommandBufferStatusError && d.failure.empty()) {
      d.failure = text_of([commands.get() error]);
    }
    return status >= MTLCommandBufferStatusCompleted;
  });
}

// A Metal buffer and the addresses that it covers.
struct Span {
  uintptr_t begin, end;
  Held<id<MTLBuffer>> buffer;  // nil: to be wrapped
};

// The buffer of allocate() with these bytes in it.
id<MTLBuffer> allocated(Device& d, uintptr_t begin, uintptr_t end) {
  auto after = d.buffers.upper_bound(begin);
  if (after == d.buffers.begin()) return nil;
  const auto& [base, buffer] = *--after;
  return end <= base + [buffer.get() length] ? buffer.get() : nil;
}

}  // namespace

struct Queue::Commands {
  Device& device = the_device();
  Held<id<MTLCommandBuffer>> commands;
  Held<id<MTLComputeCommandEncoder>> encoder;
  id<MTLFence> fence = nil;
  std::vector<Span> spans;
  std::vector<uintptr_t> empty;  // where tensors without elements are said to be
  bool first = true;

  void show(const char* op, const dispatch::Place& place, dispatch::Workspace workspace);
  void bind(const char* op, const simt::Step& step, size_t index);
};

// Finds or makes a Metal buffer for everything that the call may touch.
void Queue::Commands::show(const char* op, const dispatch::Place& place,
                           dispatch::Workspace workspace) {
  const auto page = static_cast<uintptr_t>(getpagesize());
  std::vector<Span> pages;
  const auto add = [&](const void* data, size_t bytes) {
    const auto begin = reinterpret_cast<uintptr_t>(data), end = begin + bytes;
    if (bytes == 0) return empty.push_back(begin);
    if (id<MTLBuffer> buffer = allocated(device, begin, end)) {
      const auto base = reinterpret_cast<uintptr_t>([buffer contents]);
      spans.push_back({base, base + [buffer length], Held<id<MTLBuffer>>::retained(buffer)});
    } else {
      pages.push_back({begin / page * page, (end + page - 1) / page * page, {}});
    }
  };
  {
    const std::lock_guard lock(device.mutex);
    for (size_t i = 0; i < place.tensors; ++i) add(place.memory[i].begin, place.memory[i].bytes);
    if (workspace.data != nullptr) add(workspace.data, workspace.bytes);
  }
  // Pages that two tensors share are one buffer's.
  std::sort(pages.begin(), pages.end(),
            [](const Span& a, const Span& b) { return a.begin < b.begin; });
  for (size_t i = 0; i < pages.size();) {
    const uintptr_t begin = pages[i].begin;
    uintptr_t end = pages[i].end;
    while (++i < pages.size() && pages[i].begin < end) end = std::max(end, pages[i].end);
    Held wrapped([device.device.get() newBufferWithBytesNoCopy:reinterpret_cast<void*>(begin)
                                                        length:end - begin
                                                       options:MTLResourceStorageModeShared
                                                   deallocator:nil]);
    if (wrapped.get() == nil) {
      fail(MOEBLAS_INVALID_ARGUMENT, op,
           "Metal does not share " + std::to_string(end - begin) +
               " bytes of pages that tensors are in, expected memory of moeblas_buffer_alloc, or "
               "of mmap or vm_allocate and at most " +
               std::to_string([device.device.get() maxBufferLength]) + " bytes");
    }
    spans.push_back({begin, end, std::move(wrapped)});
  }
}

Queue::Queue(const char* op, const dispatch::Place& place, dispatch::Workspace workspace,
             void* queue)
    : op_(op), commands_(new Commands) {
  @autoreleasepool {
    Commands& c = *commands_;
    c.show(op, place, workspace);
    id<MTLCommandQueue> on = queue != nullptr ? (id<MTLCommandQueue>)queue : c.device.queue.get();
    {
      // Memory that is wrapped twice is two buffers to Metal, which then does not see that calls
      // follow each other: a fence says so.
      const std::lock_guard lock(c.device.mutex);
      Held<id<MTLFence>>& fence = c.device.fences[(void*)on];
      if (fence.get() == nil) fence = Held([c.device.device.get() newFence]);
      c.fence = fence.get();
    }
    c.commands = Held<id<MTLCommandBuffer>>::retained([on commandBuffer]);
    c.encoder =
        Held<id<MTLComputeCommandEncoder>>::retained([c.commands.get() computeCommandEncoder]);
    if (c.encoder.get() == nil) fail(MOEBLAS_DEVICE_ERROR, op, "the queue takes no commands");
    [c.encoder.get() waitForFence:c.fence];
  }
}

Queue::~Queue() {
  if (commands_->encoder.get() != nil) [commands_->encoder.get() endEncoding];
}

void Queue::Commands::bind(const char* op, const simt::Step& step, size_t index) {
  const auto address = reinterpret_cast<uintptr_t>(step.pointers[index]);
  for (const Span& span : spans) {
    if (address < span.begin || address >= span.end) continue;
    [encoder.get() setBuffer:span.buffer.get() offset:address - span.begin atIndex:index];
    return;
  }
  if (address != 0 && std::find(empty.begin(), empty.end(), address) == empty.end()) {
    fail(MOEBLAS_INTERNAL_ERROR, op,
         std::string("kernel ") + step.kernel + ": argument " + std::to_string(index) +
             " leads to no tensor of the call");
  }
  [encoder.get() setBuffer:device.nothing.get() offset:0 atIndex:index];
}

void Queue::run(const simt::Step& step) {
  @autoreleasepool {
    Commands& c = *commands_;
    const auto& [x, y, z] = step.groups;
    if (x == 0 || y == 0 || z == 0) return;
    const NSUInteger threads = NSUInteger{step.threads[0]} * step.threads[1] * step.threads[2];
    id<MTLComputePipelineState> pipeline = nil;
    {
      const std::lock_guard lock(c.device.mutex);
      Kernel& kernel = kernel_of(c.device, op_, step.kernel);
      pipeline = kernel.pipeline.get();
      if (threads == 0 || threads > [pipeline maxTotalThreadsPerThreadgroup]) {
        fail(MOEBLAS_DEVICE_ERROR, op_,
             std::string("kernel ") + step.kernel + " in threadgroups of " +
                 std::to_string(threads) + " threads, of which this device runs " +
                 std::to_string([pipeline maxTotalThreadsPerThreadgroup]));
      }
      ++kernel.launches;
    }
    id<MTLComputeCommandEncoder> encoder = c.encoder.get();
    if (!c.first) [encoder memoryBarrierWithScope:MTLBarrierScopeBuffers];
    c.first = false;
    [encoder setComputePipelineState:pipeline];
    for (size_t i = 0; i < step.pointer_count; ++i) c.bind(op_, step, i);
    if (step.param_bytes > 0) {
      [encoder setBytes:step.params.data() length:step.param_bytes atIndex:step.pointer_count];
    }
    [encoder dispatchThreadgroups:MTLSizeMake(x, y, z)
            threadsPerThreadgroup:MTLSizeMake(step.threads[0], step.threads[1], step.threads[2])];
  }
}

void Queue::commit() {
  @autoreleasepool {
    Commands& c = *commands_;
    [c.encoder.get() updateFence:c.fence];
    [c.encoder.get() endEncoding];
    c.encoder = {};
    const std::lock_guard lock(c.device.mutex);
    collect(c.device);
    [c.commands.get() commit];
    c.device.running.push_back(std::move(c.commands));
  }
}

int capability(int32_t device, Reason& why_not) {
  const Device& d = the_device();
  why_not = d.why_not;
  if (!why_not && device != 0) {
    why_not = Reason::of("there is no device %d, only the system's default device, 0", device);
  }
  return d.family;
}

void describe(char* text, size_t bytes) {
  @autoreleasepool {
    const Device& d = the_device();
    if (d.why_not) {
      std::snprintf(text, bytes, "off: %s", d.why_not.text());
      return;
    }
    std::snprintf(text, bytes, "0 %s, family Apple%d, %.1f GiB, kernels compiled as they are used",
                  [[d.device.get() name] UTF8String], d.family,
                  static_cast<double>([d.device.get() recommendedMaxWorkingSetSize]) / (1 << 30));
  }
}

void* allocate(int32_t, size_t bytes, void*) {
  Device& d = the_device();
  Held buffer([d.device.get() newBufferWithLength:bytes options:MTLResourceStorageModeShared]);
  if (buffer.get() == nil) {
    fail(MOEBLAS_OUT_OF_MEMORY, "buffer_alloc",
         "Metal gave no buffer of " + std::to_string(bytes) + " bytes; the largest is " +
             std::to_string([d.device.get() maxBufferLength]));
  }
  void* memory = [buffer.get() contents];
  const std::lock_guard lock(d.mutex);
  d.buffers[reinterpret_cast<uintptr_t>(memory)] = std::move(buffer);
  return memory;
}

void release(int32_t, void* memory, void*) noexcept {
  Device& d = the_device();
  // Command buffers that use it hold the Metal buffer.
  const std::lock_guard lock(d.mutex);
  d.buffers.erase(reinterpret_cast<uintptr_t>(memory));
}

void wait(const char* op) {
  @autoreleasepool {
    Device& d = the_device();
    std::vector<Held<id<MTLCommandBuffer>>> running;
    {
      const std::lock_guard lock(d.mutex);
      for (const auto& r : d.running) {
        running.push_back(Held<id<MTLCommandBuffer>>::retained(r.get()));
      }
    }
    for (const auto& r : running) [r.get() waitUntilCompleted];
    const std::lock_guard lock(d.mutex);
    collect(d);
    if (d.failure.empty()) return;
    const std::string failure = std::exchange(d.failure, {});
    fail(MOEBLAS_DEVICE_ERROR, op, "work given to the device earlier failed: " + failure);
  }
}

void copy(void* to, const void* from, size_t bytes) {
  wait("buffer_copy");
  std::memmove(to, from, bytes);
}

void for_each_kernel(const std::function<void(const char*, uint64_t)>& f) {
  @autoreleasepool {
    Device& d = the_device();
    const std::lock_guard lock(d.mutex);
    for (const KernelText& text : kernel_texts()) {
      for (NSString* name in [library_of(d, "kernels", text) functionNames]) {
        kernel_of(d, "kernels", [name UTF8String]);
      }
    }
    for (const auto& [name, kernel] : d.kernels) f(name.c_str(), kernel.launches);
  }
}

}  // namespace moeblas::metal
