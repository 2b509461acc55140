#include "arguments/operations.h"

namespace moeblas::test {

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

CArguments::CArguments(const Case& c) {
  for (const Tensor& t : c.tensors) tensors.emplace(t.name, t.c_tensor());
  if (!c.quantized || c.null_quantized) return;
  const auto& self = *this;
  q = moeblas_quantized MOEBLAS_QUANTIZED_INIT;
  q->struct_size = c.quantized_size;
  q->mode = c.mode;
  q->bits = c.bits;
  q->group_size = c.group_size;
  q->codes = self[c.codes_name.c_str()];
  q->scales = self["scales"];
  q->biases = self["biases"];
  q->tensor_scale = self["tensor_scale"];
  q->host_tensor_scale = c.host_tensor_scale ? &*c.host_tensor_scale : nullptr;
  q->scale_layout = c.scale_layout;
}

const moeblas_tensor* CArguments::operator[](const char* name) const {
  const auto it = tensors.find(name);
  return it == tensors.end() ? nullptr : &it->second;
}

const moeblas_quantized* CArguments::quantized() const { return q ? &*q : nullptr; }

const Tensor* Case::find(const std::string& name) const {
  for (const Tensor& t : tensors) {
    if (t.name == name) return &t;
  }
  return nullptr;
}
Tensor* Case::find(const std::string& name) {
  return const_cast<Tensor*>(static_cast<const Case*>(this)->find(name));
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
