#include "cuda/check_ids.h"

#include <algorithm>
#include <string>
#include <vector>

#include "cuda/device.h"
#include "dispatch/ids.h"

namespace moeblas::cuda {
namespace {

using dispatch::load_integer;
using dispatch::require_in_range;

// A strided array of integers, copied to the host when the stream's work so far is done.
class HostIntegers {
 public:
  HostIntegers(const char* op, const void* data, DType dtype, const Shape& shape,
               const Shape& strides, cudaStream_t stream)
      : dtype_(dtype) {
    if (shape.numel() == 0) return;
    int64_t high = 0;
    for (int i = 0; i < shape.ndim(); ++i) {
      (strides[i] < 0 ? low_ : high) += (shape[i] - 1) * strides[i];
    }
    const auto element = static_cast<int64_t>(size_of(dtype));
    bytes_.resize(static_cast<size_t>((high - low_ + 1) * element));
    const char* first = static_cast<const char*>(data) + low_ * element;
    check(cudaMemcpyAsync(bytes_.data(), first, bytes_.size(), cudaMemcpyDefault, stream), op,
          "reading ids back for check_ids");
    check(cudaStreamSynchronize(stream), op, "waiting for the ids that check_ids reads");
  }
  int64_t at(int64_t offset) const { return load_integer(bytes_.data(), dtype_, offset - low_); }

 private:
  DType dtype_;
  int64_t low_ = 0;
  std::vector<char> bytes_;
};

// The call's stream, after a look at whether it can be waited for.
template <class Problem>
cudaStream_t stream_to_wait_for(const Problem& p) {
  auto* stream = static_cast<cudaStream_t>(p.options.stream);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &capture), p.op, "looking at options.stream");
  if (capture != cudaStreamCaptureStatusNone) {
    throw Error(MOEBLAS_INVALID_ARGUMENT,
                std::string("[") + p.op +
                    "] check_ids reads ids on the host, which waits for options.stream, and that "
                    "stream is being captured into a graph; capture without check_ids (and without "
                    "MOEBLAS_CHECK_IDS=1)");
  }
  return stream;
}

void check_positions(const dispatch::MatmulProblem& p, const dispatch::Positions& positions,
                     int64_t count, cudaStream_t stream) {
  if (positions.index == nullptr) return;
  const HostIntegers index(p.op, positions.index, positions.dtype, p.batch, positions.stride,
                           stream);
  for (int64_t b = 0; b < p.batch.numel(); ++b) {
    const int64_t at = dispatch::strided_offset(b, p.batch, positions.stride);
    require_in_range(p.op, positions.name, b, index.at(at), 0, count - 1);
  }
}

void check_segments(const dispatch::MatmulProblem& p, cudaStream_t stream) {
  const TensorView& s = p.segments;
  const HostIntegers ends(p.op, s.data, s.dtype, s.shape, s.strides, stream);
  for (int64_t b = 0; b < p.batch.numel(); ++b) {
    const int64_t at = dispatch::strided_offset(b, p.batch, s.strides.first(p.batch.ndim()));
    require_in_range(p.op, "segments (start)", b, ends.at(at), 0, p.k);
    require_in_range(p.op, "segments (end)", b, ends.at(at + s.strides.back()), 0, p.k);
  }
}

// -1 is how an engine leaves a pair to somebody else.
template <class Problem>
void check_expert_ids(const Problem& p) {
  if (!p.options.check_ids) return;
  const CurrentDevice current(p.device.id, p.op);
  const HostIntegers ids(p.op, p.ids.data, p.ids.dtype, p.ids.shape, p.ids.strides,
                         stream_to_wait_for(p));
  const int64_t known = p.expert_map ? p.expert_map.shape[0] : p.experts;
  for (int64_t i = 0; i < p.ids.numel(); ++i) {
    const int64_t at = dispatch::strided_offset(i, p.ids.shape, p.ids.strides);
    require_in_range(p.op, "ids", i, ids.at(at), -1, known - 1);
  }
}

}  // namespace

void check_ids(const dispatch::MatmulProblem& p) {
  if (!p.options.check_ids) return;
  const CurrentDevice current(p.device.id, p.op);
  // Offsets need none: their ends are clamped by definition.
  const bool segments = p.grouping == dispatch::Grouping::segments;
  if (!segments && p.x_position.index == nullptr && p.w_position.index == nullptr) return;
  const cudaStream_t stream = stream_to_wait_for(p);
  if (segments) return check_segments(p, stream);
  check_positions(p, p.x_position, p.x.values.count(), stream);
  check_positions(p, p.w_position, p.w.values.count(), stream);
}

void check_ids(const dispatch::PermuteProblem& p) {
  if (p.permutation == dispatch::Permutation::permute) check_expert_ids(p);
}

void check_ids(const dispatch::FfnProblem& p) { check_expert_ids(p); }

}  // namespace moeblas::cuda
