// A case: one problem of one operation with its data on a device, which any kernel can be asked to
// solve.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/check.h"
#include "bench/clock.h"
#include "bench/routing.h"
#include "bench/shapes.h"
#include "moeblas/kernels.h"

namespace moeblas::bench {

inline constexpr const char* kScaleLayoutNames[] = {"rows", "swizzled"};  // by ScaleLayout

// What distinguishes one case from another.
struct CaseSpec {
  std::string op;
  ShapeEntry shape;
  std::string projection = "gate_up";  // of a moe shape
  int64_t tokens = 1;
  QuantSpec format;                 // resolved
  DType dtype = DType::bf16;        // of activations and outputs
  DType scale_dtype = DType::bf16;  // of affine scales
  ScaleLayout scale_layout = ScaleLayout::rows;
  int64_t row_pitch = 1;  // of w, in lengths of a row: w is a slice of longer rows
  Routing routing = Routing::uniform;
  uint64_t seed = 1;
};

// What the problem needs at the least, whatever the kernel. Bytes: x + the distinct matrices of w
// with scales and biases + y, each once; indices are left out. FLOP: two per multiply-add.
struct Work {
  int64_t read_bytes = 0;
  int64_t write_bytes = 0;
  int64_t flop = 0;
  int64_t bytes() const { return read_bytes + write_bytes; }
};

// Sizes by name, for tables and JSON: ("M", 8), ("N", 1536), ...
using Sizes = std::vector<std::pair<std::string, int64_t>>;

// A test's hand on outputs between the kernel and the check.
using Tamper = std::function<void(std::span<uint8_t> output)>;

class Case {
 public:
  explicit Case(CaseSpec spec) : spec_(std::move(spec)) {}
  virtual ~Case() = default;
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  const CaseSpec& spec() const { return spec_; }
  virtual Work work() const = 0;
  virtual Sizes sizes() const = 0;
  // Conversions write as much as they read: their roof is the copy ceiling, that of products the
  // read ceiling.
  virtual bool copies() const { return false; }
  // Products of 16-bit floats that make up one of float32 class: three of x's pieces with weights
  // that 16 bits hold, six where both sides are float32.
  virtual int pieces() const { return 3; }
  // Memory that prepare(sets) takes.
  virtual int64_t footprint(int64_t sets) const = 0;
  // Makes the data of all buffer sets; no two sets share memory that a call reads or writes.
  virtual void prepare(int64_t sets) = 0;
  // One call on a set. Before prepare: for queries alone, with tensors that have no data.
  virtual void call(int64_t set, const Options& options) = 0;
  virtual void poison(int64_t set) = 0;
  // Judges a set's outputs.
  virtual Verdict check(int64_t set, const Options& options, const Tamper& tamper) = 0;

 private:
  CaseSpec spec_;
};

}  // namespace moeblas::bench
