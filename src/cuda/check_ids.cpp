#include "cuda/check_ids.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuda/device.h"
#include "cuda/memory.h"
#include "cuda/queue.h"
#include "simt/check_ids.h"
#include "simt/products.h"

namespace moeblas::cuda {
namespace {

using dispatch::load_integer;

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

template <class Problem>
void check_expert_ids(const Problem& p) {
  if (!simt::has_ids_to_check(p)) return;
  const CurrentDevice current(p.device.id, p.op);
  const HostIntegers ids(p.op, p.ids.data, p.ids.dtype, p.ids.shape, p.ids.strides,
                         stream_to_wait_for(p));
  simt::require_expert_ids(p, [&](int64_t offset) { return ids.at(offset); });
}

}  // namespace

void check_ids(const dispatch::MatmulProblem& p) {
  if (!simt::has_ids_to_check(p)) return;
  const CurrentDevice current(p.device.id, p.op);
  const cudaStream_t stream = stream_to_wait_for(p);
  const auto release = [&](void* p_bad) { release_workspace(p.device.id, p_bad, stream); };
  const std::unique_ptr<void, decltype(release)> found(
      allocate_workspace(p.device.id, sizeof(simt::BadId), stream), release);
  const std::optional<simt::Step> step = simt::bad_id_step(p, found.get());
  if (!step) return;
  Queue(p.op, p.device.id, stream).run(*step);
  simt::BadId bad;
  check(cudaMemcpyAsync(&bad, found.get(), sizeof bad, cudaMemcpyDefault, stream), p.op,
        "reading back what check_ids found");
  check(cudaStreamSynchronize(stream), p.op, "waiting for what check_ids finds");
  simt::require_good_ids(p, bad);
}

void check_ids(const dispatch::PermuteProblem& p) { check_expert_ids(p); }

void check_ids(const dispatch::FfnProblem& p) { check_expert_ids(p); }

}  // namespace moeblas::cuda
