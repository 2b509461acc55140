#include "arguments/operations.h"

#include <stdexcept>

namespace moeblas::test {
namespace {

using A = const CArguments&;
using C = const Case&;
using S = moeblas_spec*;

const moeblas_dtype* dtype_of(const Case& c) { return c.dtype ? &*c.dtype : nullptr; }

moeblas_status infer_quantize(C c, A a, S s) {
  const moeblas_quantized& q = c.quantized.front().fields;
  return moeblas_infer_quantize(a["w"], q.mode, q.bits, q.group_size, dtype_of(c), q.scale_layout,
                                s);
}

moeblas_status infer_quantize_dual(C c, A a, S s) {
  const moeblas_quantized& q = c.quantized.front().fields;
  return moeblas_infer_quantize_dual(a["w"], q.mode, q.bits, q.group_size, dtype_of(c),
                                     q.scale_layout, s);
}

// clang-format off
const Operation kOperations[] = {
  {"quantize",
   [](C c, A a) { return moeblas_quantize(a["w"], a.q("w_q"), &c.options); },
   [](C c, A a, S s) { return infer_quantize(c, a, s); }},
  {"quantize_dual",
   [](C c, A a) { return moeblas_quantize_dual(a["w"], a.q("rows"), a.q("columns"), &c.options); },
   [](C c, A a, S s) { return infer_quantize_dual(c, a, s); }},
  {"dequantize",
   [](C c, A a) { return moeblas_dequantize(a.q("w_q"), a["out"], &c.options); },
   [](C c, A a, S s) { return moeblas_infer_dequantize(a.q("w_q"), dtype_of(c), s); }},
  {"to_fp8",
   [](C c, A a) { return moeblas_to_fp8(a["x"], a["out"], &c.options); },
   [](C, A a, S s) { return moeblas_infer_to_fp8(a["x"], s); }},
  {"from_fp8",
   [](C c, A a) { return moeblas_from_fp8(a["x"], a["out"], &c.options); },
   [](C c, A a, S s) { return moeblas_infer_from_fp8(a["x"], *c.dtype, s); }},
  {"quantized_matmul",
   [](C c, A a) { return moeblas_quantized_matmul(a["x"], a.q("w"), c.transpose, a["out"], &c.options); },
   [](C c, A a, S s) { return moeblas_infer_quantized_matmul(a["x"], a.q("w"), c.transpose, s); }},
  {"gather_mm",
   [](C c, A a) { return moeblas_gather_mm(a["a"], a["b"], a["lhs_indices"], a["rhs_indices"], c.sorted, a["out"], &c.options); },
   [](C, A a, S s) { return moeblas_infer_gather_mm(a["a"], a["b"], a["lhs_indices"], a["rhs_indices"], s); }},
  {"gather_qmm",
   [](C c, A a) { return moeblas_gather_qmm(a["x"], a.q("w"), a["lhs_indices"], a["rhs_indices"], c.transpose, c.sorted, a["out"], &c.options); },
   [](C c, A a, S s) { return moeblas_infer_gather_qmm(a["x"], a.q("w"), a["lhs_indices"], a["rhs_indices"], c.transpose, s); }},
  {"gather_qmv",
   [](C c, A a) { return moeblas_gather_qmv(a["x"], a.q("w"), a["expert_indices"], a["out"], &c.options); },
   [](C, A a, S s) { return moeblas_infer_gather_qmv(a["x"], a.q("w"), a["expert_indices"], s); }},
  {"segmented_mm",
   [](C c, A a) { return moeblas_segmented_mm(a["a"], a["b"], a["segments"], a["out"], &c.options); },
   [](C, A a, S s) { return moeblas_infer_segmented_mm(a["a"], a["b"], a["segments"], s); }},
  {"grouped_mm",
   [](C c, A a) { return moeblas_grouped_mm(a["x"], a["w"], a["offsets"], a["out"], &c.options); },
   [](C, A a, S s) { return moeblas_infer_grouped_mm(a["x"], a["w"], a["offsets"], s); }},
  {"grouped_qmm",
   [](C c, A a) { return moeblas_grouped_qmm(a["x"], a.q("w"), a["offsets"], c.transpose, a["out"], &c.options); },
   [](C c, A a, S s) { return moeblas_infer_grouped_qmm(a["x"], a.q("w"), a["offsets"], c.transpose, s); }},
  {"qqmm",
   [](C c, A a) { return moeblas_qqmm(a.q("x"), a.q("w"), a.epilogue(), a["out"], &c.options); },
   [](C c, A a, S s) { return moeblas_infer_qqmm(a.q("x"), a.q("w"), dtype_of(c), s); }},
  {"gather_qqmm",
   [](C c, A a) { return moeblas_gather_qqmm(a.q("x"), a.q("w"), a["lhs_indices"], a["rhs_indices"], c.sorted, a.epilogue(), a["out"], &c.options); },
   [](C c, A a, S s) { return moeblas_infer_gather_qqmm(a.q("x"), a.q("w"), a["lhs_indices"], a["rhs_indices"], dtype_of(c), s); }},
  {"grouped_qqmm",
   [](C c, A a) { return moeblas_grouped_qqmm(a.q("x"), a.q("w"), a["offsets"], a.epilogue(), a["out"], &c.options); },
   [](C c, A a, S s) { return moeblas_infer_grouped_qqmm(a.q("x"), a.q("w"), a["offsets"], dtype_of(c), s); }},
  {"moe_route",
   [](C c, A a) { return moeblas_moe_route(a["logits"], a["bias"], a.router(), a["ids"], a["weights"], &c.options); },
   [](C, A a, S s) { return moeblas_infer_moe_route(a["logits"], a["bias"], a.router(), s); }},
  {"moe_permute",
   [](C c, A a) { return moeblas_moe_permute(a["x"], a["ids"], a["expert_map"], c.experts, a["rows"], a["offsets"], a["inverse"], &c.options); },
   [](C c, A a, S s) { return moeblas_infer_moe_permute(a["x"], a["ids"], a["expert_map"], c.experts, s); }},
  {"moe_unpermute",
   [](C c, A a) { return moeblas_moe_unpermute(a["y"], a["inverse"], a["weights"], a["out"], &c.options); },
   [](C, A a, S s) { return moeblas_infer_moe_unpermute(a["y"], a["inverse"], a["weights"], s); }},
  {"moe_ffn",
   [](C c, A a) { return moeblas_moe_ffn(a["x"], a.layer(), a["ids"], a["weights"], a["out"], &c.options); },
   [](C, A a, S s) { return moeblas_infer_moe_ffn(a["x"], a.layer(), a["ids"], a["weights"], s); }},
};
// clang-format on

}  // namespace

const Operation& operation(const std::string& name) {
  for (const Operation& o : kOperations) {
    if (o.name == name) return o;
  }
  throw std::invalid_argument("no operation " + name);
}

std::vector<std::string> operation_names() {
  std::vector<std::string> names;
  for (const Operation& o : kOperations) names.push_back(o.name);
  return names;
}

int64_t Tensor::numel() const {
  int64_t n = 1;
  for (int64_t size : shape) n *= size;
  return n;
}

moeblas_tensor Tensor::c_tensor() const {
  moeblas_tensor t{};
  t.data = data;
  t.device = device;
  t.ndim = ndim.value_or(static_cast<int32_t>(shape.size()));
  t.dtype = dlpack.value_or(to_dlpack(dtype));
  t.shape = null_shape ? nullptr : shape.data();
  t.strides = strides.empty() ? nullptr : strides.data();
  t.byte_offset = byte_offset;
  return t;
}

CArguments::CArguments(const Case& c) : epilogue_(c.epilogue), router_(c.router), layer_(c.layer) {
  const auto& self = *this;
  for (const Tensor& t : c.tensors) tensors_.emplace(t.name, t.c_tensor());
  for (const QuantizedArgument& argument : c.quantized) {
    if (argument.missing) continue;
    const QuantizedNames& names = *argument.names;
    Longer<moeblas_quantized>& longer = quantized_[names.argument];
    longer.unknown[0] = argument.unknown_field ? 1 : 0;
    moeblas_quantized& q = longer.known;
    q = argument.fields;
    q.codes = self[names.codes];
    q.scales = self[names.scales];
    q.biases = self[names.biases];
    q.tensor_scale = self[names.tensor_scale];
    q.host_tensor_scale = argument.host_tensor_scale ? &*argument.host_tensor_scale : nullptr;
  }
  if (epilogue_) {
    epilogue_->known.c = self["c"];
    epilogue_->known.bias = self["bias"];
  }
  if (layer_) {
    moeblas_ffn& f = layer_->known;
    f.gate_up = q("gate_up");
    f.gate = q("gate");
    f.up = q("up");
    f.down = q("down");
    f.gate_up_bias = self["gate_up_bias"];
    f.gate_bias = self["gate_bias"];
    f.up_bias = self["up_bias"];
    f.down_bias = self["down_bias"];
    f.expert_map = self["expert_map"];
  }
}

const moeblas_tensor* CArguments::operator[](const char* name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

const moeblas_quantized* CArguments::q(const char* argument) const {
  const auto it = quantized_.find(argument);
  return it == quantized_.end() ? nullptr : &it->second.known;
}

const Tensor* Case::find(const std::string& name) const {
  for (const Tensor& t : tensors) {
    if (t.name == name) return &t;
  }
  return nullptr;
}
Tensor* Case::find(const std::string& name) {
  return const_cast<Tensor*>(static_cast<const Case*>(this)->find(name));
}

const QuantizedArgument* Case::find_quantized(const std::string& argument) const {
  for (const QuantizedArgument& q : quantized) {
    if (q.names->argument == argument) return &q;
  }
  return nullptr;
}

moeblas_status Case::call() const { return operation->call(*this, CArguments(*this)); }
moeblas_status Case::infer(moeblas_spec* out) const {
  return operation->infer(*this, CArguments(*this), out);
}

std::vector<const Tensor*> Case::outputs() const {
  std::vector<const Tensor*> list;
  for (const Tensor& t : tensors) {
    if (t.output) list.push_back(&t);
  }
  return list;
}

Case Case::with_own_outputs() const {
  Case copy = *this;
  for (Tensor& t : copy.tensors) {
    if (!t.output) continue;
    const auto offset = t.data - t.memory->data();
    t.memory = std::make_shared<std::vector<uint8_t>>(*t.memory);
    t.data = t.memory->data() + offset;
  }
  return copy;
}

void poison_outputs(const Case& c) {
  for (const Tensor* t : c.outputs()) t->memory->assign(t->memory->size(), kPoison);
}

}  // namespace moeblas::test
