#include "ops/check.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <span>
#include <vector>

#include "dispatch/select.h"

namespace moeblas::ops {
namespace {

// A dimension that moves through memory: more than one element, and a stride in bytes.
struct Step {
  int64_t size;
  int64_t bytes;
};

std::vector<Step> steps_of(const TensorView& t) {
  std::vector<Step> steps;
  const auto element = static_cast<int64_t>(size_of(t.dtype));
  for (int i = 0; i < t.ndim(); ++i) {
    if (t.shape[i] > 1 && t.strides[i] != 0) steps.push_back({t.shape[i], t.strides[i] * element});
  }
  return steps;
}

// The bytes that a tensor touches lie in [low, high).
struct Extent {
  intptr_t low;
  intptr_t high;
};

Extent extent_of(const TensorView& t) {
  Extent e{reinterpret_cast<intptr_t>(t.data), reinterpret_cast<intptr_t>(t.data)};
  const auto element = static_cast<int64_t>(size_of(t.dtype));
  for (int i = 0; i < t.ndim(); ++i) {
    if (t.shape[i] > 1) {
      (t.strides[i] < 0 ? e.low : e.high) += (t.shape[i] - 1) * t.strides[i] * element;
    }
  }
  e.high += element;
  return e;
}

dispatch::Place::Range range_of(const TensorView& t) {
  if (t.numel() == 0) return {t.data, 0};
  const Extent e = extent_of(t);
  return {reinterpret_cast<const void*>(e.low), static_cast<size_t>(e.high - e.low)};
}

// Sound, and exact for tensors that are slices of one larger tensor: columns of the same rows are
// told apart by their place within the common pitch.
bool may_overlap(const TensorView& a, const TensorView& b) {
  const Extent ea = extent_of(a), eb = extent_of(b);
  if (ea.high <= eb.low || eb.high <= ea.low) return false;
  // Modulo the pitch, each tensor is the run of its steps that are shorter than it.
  std::vector<Step> all = steps_of(a);
  for (const Step& step : steps_of(b)) all.push_back(step);
  std::vector<int64_t> candidates;
  for (const Step& step : all) candidates.push_back(std::abs(step.bytes));
  std::sort(candidates.begin(), candidates.end(), std::greater<>());
  for (int64_t pitch : candidates) {
    const auto run = [pitch](const TensorView& t, int64_t& start, int64_t& length) {
      start = reinterpret_cast<intptr_t>(t.data);
      length = static_cast<int64_t>(size_of(t.dtype));
      for (const Step& step : steps_of(t)) {
        if (step.bytes % pitch == 0) continue;
        if (step.bytes < 0) start += (step.size - 1) * step.bytes;
        length += (step.size - 1) * std::abs(step.bytes);
      }
      start = ((start % pitch) + pitch) % pitch;
    };
    int64_t start_a, length_a, start_b, length_b;
    run(a, start_a, length_a);
    run(b, start_b, length_b);
    const int64_t a_to_b = ((start_b - start_a) % pitch + pitch) % pitch;
    const int64_t b_to_a = ((start_a - start_b) % pitch + pitch) % pitch;
    if (a_to_b != 0 && length_a <= a_to_b && length_b <= b_to_a) return false;
  }
  return true;
}

// Whether two positions of `t` may share an element (sufficient: each step jumps over all smaller).
bool may_repeat(const TensorView& t) {
  if (t.numel() == 0) return false;
  std::array<Step, kMaxNdim> steps;  // in order; of every call, so not from the heap
  size_t count = 0;
  const auto element = static_cast<int64_t>(size_of(t.dtype));
  for (int i = 0; i < t.ndim(); ++i) {
    if (t.shape[i] <= 1) continue;
    const Step step{t.shape[i], std::abs(t.strides[i]) * element};
    size_t at = count++;
    for (; at > 0 && steps[at - 1].bytes > step.bytes; --at) steps[at] = steps[at - 1];
    steps[at] = step;
  }
  int64_t reach = element;
  for (const Step& step : std::span(steps.data(), count)) {
    if (step.bytes < reach) return true;
    reach += (step.size - 1) * step.bytes;
  }
  return false;
}

}  // namespace

std::string text(const Shape& shape) {
  std::string s = "(";
  for (int i = 0; i < shape.ndim(); ++i) s += (i ? ", " : "") + std::to_string(shape[i]);
  return s + (shape.ndim() == 1 ? ",)" : ")");
}

std::string text(const QuantSpec& spec) {
  std::string s = name(spec.mode);
  if (spec.mode == Mode::affine) s += cat(" ", spec.bits, "-bit");
  return s + cat(", group_size ", spec.group_size);
}

void require_present(const char* op, Argument a) {
  if (!a.view) fail(op, a.name, " is missing");
}

void require_float(const char* op, Argument a) {
  require_present(op, a);
  if (!is_float(a.view.dtype)) {
    fail(op, a.name, " has dtype ", name(a.view.dtype), ", expected float32, float16 or bfloat16");
  }
}

void require_integer(const char* op, Argument a) {
  require_present(op, a);
  if (!is_integer(a.view.dtype)) {
    fail(op, a.name, " has dtype ", name(a.view.dtype), ", expected an integer dtype");
  }
}

void require_dtype(const char* op, Argument a, DType expected) {
  require_present(op, a);
  if (a.view.dtype != expected) {
    fail(op, a.name, " has dtype ", name(a.view.dtype), ", expected ", name(expected));
  }
}

void require_same_dtype(const char* op, Argument a, Argument b) {
  if (a.view.dtype != b.view.dtype) {
    fail(op, b.name, " has dtype ", name(b.view.dtype), ", expected ", name(a.view.dtype), " as ",
         a.name);
  }
}

void require_ndim(const char* op, Argument a, int least, int most) {
  require_present(op, a);
  const int ndim = a.view.ndim();
  if (ndim >= least && ndim <= most) return;
  fail(op, a.name, " has shape ", text(a.view.shape), ", expected ",
       least == most ? cat(least)
                     : cat(ndim < least ? "at least " : "at most ", ndim < least ? least : most),
       least == 1 && ndim < least ? " dimension" : " dimensions");
}

void require_shape(const char* op, Argument a, const Shape& expected, const std::string& why) {
  require_present(op, a);
  if (a.view.shape == expected) return;
  fail(op, a.name, " has shape ", text(a.view.shape), ", expected ", text(expected),
       why.empty() ? "" : " for ", why);
}

void require_unit_stride(const char* op, Argument a) {
  const int last = a.view.ndim() - 1;
  // Without elements nothing is strided: numpy's and torch's empty tensors come with strides of 0.
  if (last >= 0 && a.view.shape[last] > 1 && a.view.strides[last] != 1 && a.view.numel() > 0) {
    fail(op, a.name, " has stride ", a.view.strides[last],
         " in its last dimension, expected 1 (rows without gaps)");
  }
}

void require_output(const char* op, Argument out, const Spec& expected) {
  require_shape(op, out, expected.shape);
  require_dtype(op, out, expected.dtype);
  require_unit_stride(op, out);
  if (may_repeat(out.view)) {
    fail(op, out.name, " has strides ", text(out.view.strides), " for shape ", text(out.view.shape),
         ", expected strides that reach every element once");
  }
}

dispatch::Place require_memory(const char* op, std::initializer_list<Argument> inputs,
                               std::initializer_list<Argument> outputs, bool query) {
  const Argument* first = nullptr;
  dispatch::Place place;
  const auto check_one = [&](const Argument& a) {
    if (!a.view) return;
    place.memory.at(place.tensors++) = range_of(a.view);
    if (first == nullptr) first = &a;
    if (a.view.device != first->view.device) {
      fail(op, a.name, " is on ", dispatch::device_name(a.view.device), ", expected ",
           dispatch::device_name(first->view.device), " as ", first->name);
    }
    if (query || a.view.numel() == 0) return;
    if (a.view.data == nullptr) fail(op, a.name, " has no data, expected a pointer");
    const auto alignment = size_of(a.view.dtype);
    if (reinterpret_cast<uintptr_t>(a.view.data) % alignment != 0) {
      fail(op, a.name, " has data that is not aligned to ", alignment, " bytes, its element size");
    }
  };
  for (const Argument& a : outputs) check_one(a);
  for (const Argument& a : inputs) check_one(a);
  if (!query) {
    const auto disjoint = [&](const Argument& out, const Argument& other) {
      if (out.view && other.view && out.view.numel() > 0 && other.view.numel() > 0 &&
          may_overlap(out.view, other.view)) {
        fail(op, out.name, " overlaps ", other.name, ", expected memory of its own");
      }
    };
    for (const Argument* out = outputs.begin(); out != outputs.end(); ++out) {
      for (const Argument& in : inputs) disjoint(*out, in);
      for (const Argument* other = outputs.begin(); other != out; ++other) disjoint(*out, *other);
    }
  }
  static_cast<Device&>(place) = first->view.device;
  return place;
}

void require_countable_workspace(const char* op, const char* name, const Shape& rows,
                                 int64_t cols) {
  // Leaves 2^19 bytes a value: parts of a sum in float32, panels for each of many threads.
  constexpr int64_t kMost = int64_t{1} << 44;
  int64_t values = cols;
  bool fits = values <= kMost;
  for (int64_t size : rows) {
    if (size == 0) return;
    fits = fits && !__builtin_mul_overflow(values, size, &values) && values <= kMost;
  }
  if (fits) return;
  fail(op, name, " has ", text(rows), " rows of ", cols, " values, expected at most ", kMost,
       " values in all");
}

Shape join(const char* op, const Shape& batch, std::initializer_list<int64_t> more) {
  if (batch.ndim() + static_cast<int>(more.size()) > kMaxNdim) {
    fail(op, "the result has ", batch.ndim() + static_cast<int>(more.size()),
         " dimensions, expected at most ", kMaxNdim);
  }
  Shape shape = batch;
  for (int64_t size : more) shape.push_back(size);
  return shape;
}

Shape broadcast(const char* op, Argument a, const Shape& a_shape, Argument b,
                const Shape& b_shape) {
  const int ndim = std::max(a_shape.ndim(), b_shape.ndim());
  Shape result;
  for (int i = 0; i < ndim; ++i) {
    const int ia = i - (ndim - a_shape.ndim());
    const int ib = i - (ndim - b_shape.ndim());
    const int64_t sa = ia < 0 ? 1 : a_shape[ia];
    const int64_t sb = ib < 0 ? 1 : b_shape[ib];
    if (sa != sb && sa != 1 && sb != 1) {
      fail(op, b.name, " selects over ", text(b_shape), ", expected a shape that broadcasts with ",
           text(a_shape), " of ", a.name);
    }
    result.push_back(sa == 1 ? sb : sa);
  }
  return result;
}

}  // namespace moeblas::ops
