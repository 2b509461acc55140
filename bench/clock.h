// The machine under the bench: memory, ceilings and time. Cases and reports know this interface
// alone. cpu_device.cpp implements it with the system's clock and its cores' loops, cuda_device.cpp
// with events around a replayed graph and with loops of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/source.h"
#include "moeblas/tensor.h"

namespace moeblas::bench {

// What the machine can do at best, measured by plain loops. Units: bytes/s and FLOP/s (two per
// multiply-add). 0: this machine has no such unit.
struct Ceilings {
  double read = 0;  // reading memory, past the caches
  double copy = 0;  // bytes read + bytes written
  double f32 = 0;   // float32 multiply-add
  // Products of 16-bit and 8-bit floats into float32 sums: a CPU's dot products, a GPU's tensor
  // cores.
  double bf16 = 0;
  double f16 = 0;
  double fp8 = 0;
  double int8 = 0;  // a CPU's products of bytes into int32 sums
  std::string isa;  // what the arithmetic was measured with
};

// The power regime that is measured. Without either: as it comes, sample after sample.
struct Regime {
  double rest = 0;  // seconds of idleness before each sample: clocks of a machine that is cold
  double heat = 0;  // seconds of the same work before the samples: clocks that it can sustain
};

using Memory = std::shared_ptr<void>;

// Runs one callable and tells how long it took.
class Timer {
 public:
  virtual ~Timer() = default;
  // Seconds that `calls` calls in a row take. A device that replays a recorded graph records one of
  // `calls` calls the first time and whenever the number changes.
  virtual double sample(int64_t calls) = 0;
  // The least number of calls that a sample of `calls` can have: a graph must walk through all
  // buffer sets, or its replays would find the same few in the cache.
  virtual int64_t whole(int64_t calls) const { return calls; }
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

  // Memory of any content, aligned to 2 MiB where it is that large.
  virtual Memory allocate(int64_t bytes) = 0;
  // Memory is taken by its first write, not by its allocation: of a large stack of experts most is
  // never written.
  virtual bool allocates_lazily() const = 0;
  // Synchronous; safe to call from several threads at once.
  virtual void upload(void* to, const void* from, int64_t bytes) = 0;
  virtual void download(void* to, const void* from, int64_t bytes) = 0;
  virtual void fill(void* to, uint8_t byte, int64_t bytes) = 0;
  // to[0 .. count) = elements [first, first + count) of the source.
  virtual void generate(void* to, const Source& source, int64_t first, int64_t count) = 0;

  // Measured now, on as many threads as the kernels use.
  virtual Ceilings ceilings(const Regime& regime) = 0;
  // What memory brings at this moment, of a pass as long as the one that `bytes` take: bytes/s of
  // reads or copies. 0: not measured on a device whose memory is nobody else's.
  virtual double bandwidth(bool /*copies*/, int64_t /*bytes*/) { return 0; }
  // `call` enqueues or runs one call of the kernel, on the next of `sets` buffer sets.
  virtual std::unique_ptr<Timer> timer(std::function<void()> call, int64_t sets) = 0;
};

// All samples of one timer, in seconds per call, in the order in which they were taken.
struct Samples {
  std::vector<double> seconds;
  int64_t calls = 0;  // per sample
  // What memory brought beside every sample, in bytes/s, of a pass before and one after together;
  // between the first and the sample are as many calls that are not timed.
  // Empty: not measured.
  std::vector<double> bandwidth;

  double quantile(double q) const;
  double median() const { return quantile(0.5); }
  // The median over samples of the share of that bandwidth which calls of so many bytes have
  // reached. 0: not measured.
  double share_of_bandwidth(int64_t bytes) const;
};

struct Budget {
  int repeats = 15;
  double seconds = 2.0;  // per timer; at least 3 samples are taken whatever they cost
  Regime regime;
};

// Idles.
void rest(double seconds);

// What memory brings now, beside `calls` calls of a timer: bytes/s, or 0 if that is not its bound.
using Bandwidth = std::function<double(size_t timer, int64_t calls)>;

// Samples all timers round-robin, so that whatever changes in the machine meets all of them alike.
std::vector<Samples> time_interleaved(std::span<const std::unique_ptr<Timer>> timers,
                                      const Budget& budget, double sample_seconds,
                                      const Bandwidth& bandwidth = {});

}  // namespace moeblas::bench
