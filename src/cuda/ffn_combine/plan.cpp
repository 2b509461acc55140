#include "cuda/ffn_combine/plan.h"

#include "cuda/ffn_combine/params.h"
#include "simt/permute.h"

namespace moeblas::cuda {

bool sums_sections(const dispatch::FfnProblem& p) {
  return p.out.dtype == DType::bf16 && p.hidden % 4 == 0;
}

void sum_rows(const dispatch::FfnProblem& p, const float* rows, uint32_t sections,
              const int32_t* experts, bool early, Queue& queue) {
  TensorView index = p.ids;
  if (experts != nullptr) {
    index = TensorView(const_cast<int32_t*>(experts), DType::i32, {p.tokens, p.top_k}, p.device);
  }
  if (!sums_sections(p)) {
    const TensorView from(const_cast<float*>(rows), DType::f32, {p.total_rows(), p.hidden},
                          p.device);
    return simt::combine({from, index, p.weights, p.out, p.experts, true}, queue);
  }
  CombineRowsParams q{};
  q.rows = rows;
  q.index = static_cast<const uint8_t*>(index.data);
  q.index_type = static_cast<int32_t>(index.dtype);
  q.weights = static_cast<const float*>(p.weights.data);
  for (int d = 0; d < 2; ++d) {
    q.index_stride[d] = index.strides[d];
    q.weights_stride[d] = p.weights.strides[d];
  }
  q.out = static_cast<uint8_t*>(p.out.data);
  q.out_stride = p.out.strides[0];
  q.wide = reinterpret_cast<uintptr_t>(p.out.data) % 8 == 0 && p.out.strides[0] % 4 == 0;
  q.experts = p.experts;
  q.tokens = static_cast<uint32_t>(p.tokens);
  q.top_k = static_cast<uint32_t>(p.top_k);
  q.cols = static_cast<uint32_t>(p.hidden);
  q.sections = sections;
  q.early = early ? 1 : 0;
  const int64_t parts = (p.hidden / 4 + kCombineThreads - 1) / kCombineThreads;
  queue.run_early("combine_rows", static_cast<uint32_t>(p.tokens * parts), kCombineThreads, 0, q);
}

}  // namespace moeblas::cuda
