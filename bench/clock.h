// The machine under the bench: memory, ceilings and time. Cases and reports know this interface
// alone. The CPU implements it in cpu_device.cpp; a GPU is one more implementation, with events
// around a replayed graph for a timer and its own streams and matrix products for ceilings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "moeblas/tensor.h"

namespace moeblas::bench {

// What the machine can do at best, measured by plain loops. Units: bytes/s and FLOP/s (two per
// multiply-add). 0: this machine has no such unit.
struct Ceilings {
  double read = 0;      // reading one linear stream per thread
  double copy = 0;      // bytes read + bytes written
  double f32 = 0;       // float32 multiply-add
  double bf16_dot = 0;  // bfloat16 products into float32 sums
  std::string isa;      // what the arithmetic was measured with
};

using Memory = std::shared_ptr<void>;

// Runs one callable and tells how long it took.
class Timer {
 public:
  virtual ~Timer() = default;
  // Seconds that `calls` calls in a row take. A device that replays a recorded graph records one of
  // `calls` calls the first time and whenever the number changes.
  virtual double sample(int64_t calls) = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual std::string kind() const = 0;             // "cpu", "cuda"
  virtual std::string model() const = 0;            // the product's name
  virtual moeblas::Device handle() const = 0;       // for tensors
  virtual void* stream() const { return nullptr; }  // for moeblas::Options
  virtual int64_t cache_bytes() const = 0;   // the last-level cache that calls can profit from
  virtual int64_t memory_bytes() const = 0;  // what buffers may take together
  // How long a sample should last at least; short calls are repeated until it does.
  virtual double sample_seconds() const = 0;

  // Memory of any content, aligned to 2 MiB where it is that large. Nothing is promised to exist
  // before it is written: most of a large stack of experts never is.
  virtual Memory allocate(int64_t bytes) = 0;
  // Synchronous; safe to call from several threads at once.
  virtual void upload(void* to, const void* from, int64_t bytes) = 0;
  virtual void download(void* to, const void* from, int64_t bytes) = 0;
  virtual void fill(void* to, uint8_t byte, int64_t bytes) = 0;

  // Measured now, on as many threads as the kernels use.
  virtual Ceilings ceilings() = 0;
  // `call` enqueues or runs one call of the kernel, on the next of `sets` buffer sets.
  virtual std::unique_ptr<Timer> timer(std::function<void()> call, int64_t sets) = 0;
};

// All samples of one timer, in seconds per call, in the order in which they were taken.
struct Samples {
  std::vector<double> seconds;
  int64_t calls = 0;  // per sample

  double quantile(double q) const;
  double median() const { return quantile(0.5); }
};

struct Budget {
  int repeats = 15;
  double seconds = 2.0;  // per timer; at least 3 samples are taken whatever they cost
};

// Samples all timers round-robin, so that whatever changes in the machine meets all of them alike.
std::vector<Samples> time_interleaved(std::span<const std::unique_ptr<Timer>> timers,
                                      const Budget& budget, double sample_seconds);

}  // namespace moeblas::bench
