#include "capi/boundary.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#include "ops/check.h"

namespace moeblas::capi {
namespace {

thread_local char last_error[4096] = "";

// A size-tagged struct of the caller, which may be of an older or a newer version: what it lacks
// keeps its default, what is unknown here must be zero.
template <class Struct>
void require_struct(const char* op, const char* name, const Struct* given, size_t least) {
  const size_t size = given->struct_size;
  if (size < least) {
    ops::fail(op, name, ".struct_size is ", size, ", expected at least ", least,
              " (sizeof the struct)");
  }
  const char* bytes = reinterpret_cast<const char*>(given);
  for (size_t i = sizeof(Struct); i < size; ++i) {
    if (bytes[i] != 0) ops::fail(op, name, " sets a field that this version does not know");
  }
}
template <class Struct>
Struct import_struct(const char* op, const char* name, const Struct* given, size_t least,
                     Struct value) {
  require_struct(op, name, given, least);
  std::memcpy(&value, given, std::min(given->struct_size, sizeof(Struct)));
  return value;
}

}  // namespace

void set_last_error(const char* message) noexcept {
  std::snprintf(last_error, sizeof last_error, "%s", message);
}

moeblas_status status_of_exception() noexcept {
  try {
    throw;
  } catch (const Error& e) {
    set_last_error(e.what());
    return e.status();
  } catch (const std::bad_alloc&) {
    set_last_error("out of memory");
    return MOEBLAS_OUT_OF_MEMORY;
  } catch (const std::exception& e) {
    set_last_error(e.what());
    return MOEBLAS_INTERNAL_ERROR;
  } catch (...) {
    set_last_error("unknown exception");
    return MOEBLAS_INTERNAL_ERROR;
  }
}

TensorView import(const char* op, const char* name, const moeblas_tensor* t) {
  if (t == nullptr) return {};
  if (t->ndim < 0 || t->ndim > MOEBLAS_MAX_NDIM) {
    ops::fail(op, name, " has ", t->ndim, " dimensions, expected 0 to ", MOEBLAS_MAX_NDIM);
  }
  if (t->ndim > 0 && t->shape == nullptr)
    ops::fail(op, name, " has no shape, expected ", t->ndim, " sizes");
  // Every element's offset in bytes must be a number, whatever the sizes claim.
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 16;
  int64_t elements = 1, reach = 0;
  bool empty = false, fits = true;
  for (int i = 0; i < t->ndim; ++i) {
    const int64_t size = t->shape[i];
    if (size < 0)
      ops::fail(op, name, " has size ", size, " in dimension ", i, ", expected at least 0");
    empty = empty || size == 0;
    // Zero sizes do not hide the others: intermediate products are formed of all of them.
    fits = fits && !__builtin_mul_overflow(elements, size > 0 ? size : 1, &elements) &&
           elements <= kMost;
    if (t->strides != nullptr && size > 1) {
      int64_t span = 0;
      fits = fits && t->strides[i] > -kMost && t->strides[i] < kMost &&
             !__builtin_mul_overflow(size - 1, std::abs(t->strides[i]), &span) &&
             !__builtin_add_overflow(reach, span, &reach) && reach <= kMost;
    }
  }
  if (!fits) ops::fail(op, name, " has shape or strides beyond the address space");
  TensorView view = TensorView::from(*t);
  if (t->data == nullptr) view.data = nullptr;
  return view;
}

Quantized import(const char* op, const ops::OperandNames& names, const moeblas_quantized* given) {
  if (given == nullptr) ops::fail(op, names.argument, " is missing");
  const moeblas_quantized q = import_struct(op, names.argument, given, sizeof(moeblas_quantized),
                                            moeblas_quantized MOEBLAS_QUANTIZED_INIT);
  Quantized out;
  out.spec = {static_cast<Mode>(q.mode), q.bits, q.group_size};
  out.codes = import(op, names.codes, q.codes);
  out.scales = import(op, names.scales, q.scales);
  out.biases = import(op, names.biases, q.biases);
  out.tensor_scale = import(op, names.tensor_scale, q.tensor_scale);
  out.scale_layout = static_cast<ScaleLayout>(q.scale_layout);
  if (q.host_tensor_scale != nullptr) out.host_tensor_scale = *q.host_tensor_scale;
  return out;
}

Options import(const char* op, const moeblas_options* given) {
  moeblas_options o = MOEBLAS_OPTIONS_INIT;
  if (given != nullptr) {
    o = import_struct(op, "options", given, sizeof(moeblas_options), o);
  }
  if (o.precision < MOEBLAS_NATIVE || o.precision > MOEBLAS_FAST) {
    ops::fail(op, "options.precision is ", o.precision,
              ", expected 0 (native), 1 (exact) or 2 (fast)");
  }
  if (o.query != nullptr) require_struct(op, "options.query", o.query, sizeof(moeblas_query));
  const char* check = std::getenv("MOEBLAS_CHECK_IDS");
  Options options;
  options.precision = static_cast<Precision>(o.precision);
  options.deterministic = o.deterministic != 0;
  options.check_ids = o.check_ids != 0 || (check != nullptr && std::strcmp(check, "1") == 0);
  options.kernel = o.kernel;
  options.workspace = o.workspace;
  options.workspace_bytes = o.workspace_bytes;
  options.stream = o.stream;
  options.query = o.query;
  options.allocate = o.allocate;
  options.allocate_context = o.allocate_context;
  return options;
}

DType import(const char* op, const char* name, moeblas_dtype dtype) {
  const DType d = from_dlpack(dtype);
  if (d == DType::other) {
    ops::fail(op, name, " is an unknown dtype (code ", int{dtype.code}, ", ", int{dtype.bits},
              " bits, ", int{dtype.lanes}, " lanes)");
  }
  return d;
}

Epilogue import(const char* op, const moeblas_epilogue* given) {
  moeblas_epilogue e = MOEBLAS_EPILOGUE_INIT;
  if (given != nullptr) e = import_struct(op, "epilogue", given, sizeof e, e);
  return {e.alpha, e.beta, import(op, "c", e.c), import(op, "bias", e.bias)};
}

Router import(const char* op, const moeblas_router* given) {
  if (given == nullptr) ops::fail(op, "router is missing");
  const moeblas_router r =
      import_struct(op, "router", given, sizeof r, moeblas_router MOEBLAS_ROUTER_INIT);
  return {r.top_k,         static_cast<Score>(r.score), r.normalize != 0, r.n_group, r.topk_group,
          r.scaling_factor};
}

FfnLayer import(const char* op, const moeblas_ffn* given) {
  if (given == nullptr) ops::fail(op, "layer is missing");
  const moeblas_ffn f = import_struct(op, "layer", given, sizeof f, moeblas_ffn MOEBLAS_FFN_INIT);
  const auto product = [&](const ops::OperandNames& names, const moeblas_quantized* q) {
    return q != nullptr ? std::optional(import(op, names, q)) : std::nullopt;
  };
  FfnLayer layer;
  layer.gate_up = product(ops::kGateUp, f.gate_up);
  layer.gate = product(ops::kGate, f.gate);
  layer.up = product(ops::kUp, f.up);
  layer.down = product(ops::kDown, f.down);
  layer.gate_up_bias = import(op, "gate_up_bias", f.gate_up_bias);
  layer.gate_bias = import(op, "gate_bias", f.gate_bias);
  layer.up_bias = import(op, "up_bias", f.up_bias);
  layer.down_bias = import(op, "down_bias", f.down_bias);
  layer.expert_map = import(op, "expert_map", f.expert_map);
  layer.activation = static_cast<Activation>(f.activation);
  layer.glu_layout = static_cast<GluLayout>(f.glu_layout);
  layer.alpha = f.alpha;
  layer.limit = f.limit;
  return layer;
}

void write(moeblas_spec* out, const char* op, const Spec& spec) {
  if (out == nullptr) ops::fail(op, "out is missing, expected a moeblas_spec to write");
  *out = {};
  out->dtype = to_dlpack(spec.dtype);
  out->ndim = spec.shape.ndim();
  for (int i = 0; i < spec.shape.ndim(); ++i) out->shape[i] = spec.shape[i];
}

}  // namespace moeblas::capi

extern "C" const char* moeblas_last_error(void) { return moeblas::capi::last_error; }
