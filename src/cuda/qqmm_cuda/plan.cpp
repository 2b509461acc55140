#include "cuda/qqmm_cuda/plan.h"

#include "cuda/device.h"
#include "cuda/quantize_cuda/params.h"
#include "cuda/quantize_cuda/plan.h"
#include "dispatch/qqmm_parts.h"
#include "dispatch/select.h"

namespace moeblas::cuda {
namespace {

using dispatch::Form;
using dispatch::MatmulProblem;
using dispatch::Operand;
using dispatch::Reason;
using dispatch::Row;

int capability_of(const MatmulProblem& p) {
  Reason why_not;
  return capability(p.device.id, why_not);
}

// Whether one launch has to multiply the scales of both tensors: where either may be on the device,
// which a query without memory does not show.
bool joins_scales(const MatmulProblem& p) { return p.w.spec->mode == Mode::nvfp4; }
bool on_host(const MatmulProblem& p) {
  return p.x.tensor_scale.data == nullptr && p.w.tensor_scale.data == nullptr;
}
// Matrices of w with a scale of their own.
int64_t scale_count(const MatmulProblem& p) {
  return p.w.tensor_scale.stride == 0 ? 1 : p.w.values.count();
}

struct Room {
  size_t x = 0, scales = 0, product = 0;  // in bytes

  explicit Room(const MatmulProblem& p) {
    const auto aligned = [](int64_t bytes) {
      return static_cast<size_t>((bytes + 255) / 256 * 256);
    };
    scales = aligned(p.x.values.count() * p.x.values.rows * p.k * 2);
    product = scales + (joins_scales(p) ? aligned(scale_count(p) * 4) : 0);
  }
};

// The product that is left. `base`: of the workspace, or any address aligned as it is.
MatmulProblem product_of(const MatmulProblem& p, uint8_t* base) {
  const Room at(p);
  MatmulProblem q = p;
  q.x = Operand{};
  q.x.values = dispatch::in_place_of(p.x.values, base + at.x, DType::bf16, p.k);
  if (on_host(p)) {
    q.w.tensor_scale.host = p.x.tensor_scale.host * p.w.tensor_scale.host;
  } else {
    q.w.tensor_scale = {reinterpret_cast<const float*>(base + at.scales),
                        scale_count(p) > 1 ? 1 : 0, 1.0f};
  }
  return q;
}

uint8_t* nowhere() { return reinterpret_cast<uint8_t*>(uintptr_t{256}); }

const Row<MatmulProblem>* chosen(const MatmulProblem& product, Products products) {
  return dispatch::first_of(products, product, capability_of(product));
}

// Where x's conversion leaves the product's x; its tensor's scale is the product's to apply.
dispatch::QuantizeProblem conversion(const MatmulProblem& p, const MatmulProblem& product) {
  dispatch::QuantizeProblem q = dispatch::conversion_of_x(p, product.x);
  if (p.x.form == Form::packed) q.tensor_scale = {};
  return q;
}

}  // namespace

Reason qqmm_cuda_reject(const MatmulProblem& p, Products products) {
  if (p.x.form == Form::dense) return Reason::of("x is not in blocks");
  if (p.w.form != Form::packed) return Reason::of("w is not packed");
  if (!dispatch::x_is_one(p)) return Reason::of("x has a tensor_scale for every matrix of w");
  const MatmulProblem product = product_of(p, nowhere());
  if (const Reason reason = quantize_cuda_reject(conversion(p, product))) return reason;
  if (chosen(product, products) != nullptr) return {};
  return dispatch::why_not(*products.back(), product, capability_of(p));
}

size_t qqmm_cuda_workspace(const MatmulProblem& p, Products products) {
  const MatmulProblem product = product_of(p, nowhere());
  const Row<MatmulProblem>* row = chosen(product, products);
  const bool more = row != nullptr && row->workspace != nullptr;
  return Room(p).product + (more ? row->workspace(product) : 0);
}

void qqmm_cuda(const MatmulProblem& p, dispatch::Workspace workspace, Products products) {
  if (p.empty()) return;
  auto* base = static_cast<uint8_t*>(workspace.data);
  const Room at(p);
  const MatmulProblem product = product_of(p, base);
  {
    Queue queue(p.op, p.device.id, p.options.stream);
    const dispatch::QuantizeProblem x = conversion(p, product);
    if (p.x.form == Form::packed) {
      expand(x, queue);
    } else {
      requantize(x, base + at.x, queue);
    }
    if (!on_host(p)) {
      JoinScalesParams q{};
      q.x = {p.x.tensor_scale.data, p.x.tensor_scale.host};
      q.w = {p.w.tensor_scale.data, p.w.tensor_scale.host};
      q.w_stride = p.w.tensor_scale.stride;
      q.count = static_cast<uint32_t>(scale_count(p));
      q.out = reinterpret_cast<float*>(base + at.scales);
      queue.run("join_scales", (q.count + kConversionThreads - 1) / kConversionThreads,
                kConversionThreads, 0, q);
    }
  }
  chosen(product, products)->launch(product, {base + at.product, workspace.bytes - at.product});
}

}  // namespace moeblas::cuda
