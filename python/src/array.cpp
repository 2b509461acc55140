#include "array.h"

#include <nanobind/ndarray.h>

#include <cstring>
#include <memory>
#include <string>

#include "moeblas/tensor.h"
#include "numpy.h"

namespace moeblas::python {
namespace {

// DLPack's managed tensors of before versions.
struct Managed {
  moeblas_tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};
constexpr uint64_t kReadOnly = 1, kCopied = 2;
constexpr uint32_t kMajor = 1;

bool has_attribute(nb::handle object, const char* name) {
  return nb::hasattr(nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()))), name);
}

// obj.__dlpack__(...): versioned where the library knows versions.
nb::object capsule_of(nb::handle object, nb::handle stream) {
  nb::dict arguments;
  if (!stream.is_none()) arguments["stream"] = stream;
  nb::dict versioned;
  versioned.update(arguments);
  versioned["max_version"] = nb::make_tuple(1, 1);
  nb::object method = object.attr("__dlpack__");
  try {
    return method(**versioned);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return method(**arguments);
}

// A result's memory until the library that took it over lets go. (On a GPU that waits for the
// device, so that no work of whatever stream still needs it.)
struct Memory {
  Memory(moeblas_device where, size_t bytes) : device(where) {
    check(moeblas_buffer_alloc(device, bytes > 0 ? bytes : 1, &data));
  }
  ~Memory() { moeblas_buffer_free(device, data); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  moeblas_device device;
  void* data = nullptr;
};

const char* dtype_name(moeblas_dtype dtype) { return name(from_dlpack(dtype)); }

}  // namespace

// What keeps a tensor that came through DLPack.
struct DLPackTensor {
  Managed* plain = nullptr;
  ManagedVersioned* versioned = nullptr;
  ~DLPackTensor() {
    if (plain != nullptr && plain->deleter != nullptr) plain->deleter(plain);
    if (versioned != nullptr && versioned->deleter != nullptr) versioned->deleter(versioned);
  }
};

bool is_array(nb::handle object) { return is_numpy(object) || has_attribute(object, "__dlpack__"); }

Array::~Array() {
  if (has_buffer_) PyBuffer_Release(&buffer_);
  delete dlpack_;
}

void Array::bind(Call& call, const char* name, nb::handle object, Access access) {
  if (object.is_none()) return;
  if (!bind_exchange(call, name, object)) {
    if (call.direct()) throw NotDirect();
    if (is_numpy(object)) {
      bind_numpy(call, name, object, access);
    } else if (has_attribute(object, "__dlpack__")) {
      bind_dlpack(call, name, object, access);
    } else {
      fail_type(call.op(), name, object, "an array (of numpy, or one that speaks DLPack)");
    }
  }
  present_ = true;
  if (access == Access::read) call.add_input(object, tensor_.device);
}

void Array::bind_numpy(const Call& call, const char* name, nb::handle object, Access access) {
  if (is_masked(object)) {
    fail_value(call.op(), name, "has a mask, which no operation heeds; expected filled() of it");
  }
  tensor_.dtype = dtype_of_numpy(call.op(), name, object);
  if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_STRIDES) != 0) throw nb::python_error();
  has_buffer_ = true;
  if (access == Access::write && buffer_.readonly) {
    fail_value(call.op(), name, "is read-only, expected an array to write");
  }
  tensor_.data = buffer_.buf;
  tensor_.device = {MOEBLAS_CPU, 0};
  tensor_.ndim = buffer_.ndim;
  static_assert(sizeof(Py_ssize_t) == sizeof(int64_t));
  tensor_.shape = reinterpret_cast<const int64_t*>(buffer_.shape);
  tensor_.strides = strides_;
  for (int i = 0; i < buffer_.ndim && i < MOEBLAS_MAX_NDIM; ++i) {
    strides_[i] = buffer_.strides[i] / buffer_.itemsize;
    if (strides_[i] * buffer_.itemsize != buffer_.strides[i] && buffer_.shape[i] > 1) {
      fail_value(call.op(), name,
                 "has a stride of " + std::to_string(buffer_.strides[i]) +
                     " bytes, expected a multiple of its element's " +
                     std::to_string(buffer_.itemsize));
    }
  }
}

bool Array::view(const Exchange& exchange, nb::handle object) {
  if (exchange.table->view(object.ptr(), &tensor_) != 0) {
    PyErr_Clear();
    return false;
  }
  borrowed_ = nb::borrow(object);
  return true;
}

bool Array::bind_exchange(Call& call, const char* name, nb::handle object) {
  const Exchange* exchange = exchange_of(object);
  if (exchange == nullptr || !view(*exchange, object)) return false;
  if (is_negated(object, tensor_)) {
    if (call.direct()) return false;
    fail_value(call.op(), name, "is to be negated when it is read, expected resolve_neg() of it");
  }
  // A direct call is made where nothing records gradients.
  if (!call.direct() && asks_for_gradients(object)) return false;
  // No memory, though there are elements: a stand-in (a compiler's, a transformation's).
  int64_t elements = 1;
  for (int i = 0; i < tensor_.ndim; ++i) elements *= tensor_.shape[i];
  if (tensor_.data == nullptr && elements != 0) return false;
  if (tensor_.device.type == MOEBLAS_CPU) return true;
  return tensor_.device.type == MOEBLAS_CUDA && call.on_stream_of(*exchange, tensor_.device);
}

void Array::bind_dlpack(Call& call, const char* name, nb::handle object, Access access) {
  try {
    const nb::object device = object.attr("__dlpack_device__")();
    const int32_t type = integer_of(call.op(), name, nb::int_(device[0])),
                  id = integer_of(call.op(), name, nb::int_(device[1]));
    nb::object stream = nb::none();
    if (type == MOEBLAS_CUDA) stream = nb::int_(call.stream_for(object, id));
    const nb::object capsule = capsule_of(object, stream);

    PyObject* c = capsule.ptr();
    dlpack_ = new DLPackTensor;
    uint64_t flags = 0;
    if (PyCapsule_IsValid(c, "dltensor_versioned")) {
      auto* managed = static_cast<ManagedVersioned*>(PyCapsule_GetPointer(c, "dltensor_versioned"));
      // Of another major version only the version and the deleter may be trusted.
      if (managed->major != kMajor) {
        fail_value(call.op(), name, "comes in an unknown version of DLPack, expected 1");
      }
      dlpack_->versioned = managed;
      PyCapsule_SetName(c, "used_dltensor_versioned");
      tensor_ = managed->tensor;
      flags = managed->flags;
    } else if (PyCapsule_IsValid(c, "dltensor")) {
      dlpack_->plain = static_cast<Managed*>(PyCapsule_GetPointer(c, "dltensor"));
      PyCapsule_SetName(c, "used_dltensor");
      tensor_ = dlpack_->plain->tensor;
      if (access == Access::write && !nb::cast<bool>(libraries("is_mutable")(object))) {
        flags |= kReadOnly;
      }
    } else {
      fail_value(call.op(), name, "gave no DLPack capsule");
    }
    if (access == Access::write && (flags & (kReadOnly | kCopied)) != 0) {
      fail_value(call.op(), name, "is read-only, expected an array to write");
    }
  } catch (nb::python_error& error) {
    // The library's own refusal, in its words.
    if (!error.matches(PyExc_Exception)) throw;
    const std::string text = nb::cast<std::string>(nb::str(error.value()));
    nb::raise_from(error, PyExc_ValueError, "[%s] %s refuses DLPack: %s", call.op(), name,
                   text.c_str());
  }
}

void Array::accept_as_bytes(uint8_t dlpack_code) {
  if (tensor_.dtype.code == dlpack_code && tensor_.dtype.bits == 8) {
    tensor_.dtype.code = MOEBLAS_UINT;
  }
}

Result::Result(Call& call, const char* name, nb::handle given, const moeblas_spec& spec)
    : call_(call) {
  if (!given.is_none()) {
    object_ = nb::borrow(given);
    array_.bind(call, name, object_, Access::write);
    return;
  }
  if (call.asks() || !call.model().is_valid()) {
    std::memcpy(shape_, spec.shape, sizeof shape_);
    array_.tensor_ = {nullptr, call.device(), spec.ndim, spec.dtype, shape_, nullptr, 0};
    array_.present_ = true;
    return;
  }
  if (is_numpy(call.model())) {
    object_ = new_numpy(call.op(), name, spec);
    array_.bind(call, name, object_, Access::write);
    return;
  }
  if (const Exchange* exchange = exchange_of(call.model())) {
    object_ = new_array(*exchange, call.model(), spec);
    if (array_.view(*exchange, object_)) {
      array_.present_ = true;
      return;
    }
  }
  nb::list sizes;
  for (int i = 0; i < spec.ndim; ++i) sizes.append(spec.shape[i]);
  object_ = libraries("empty")(call.op(), call.model(), nb::tuple(sizes), dtype_name(spec.dtype),
                               call.device().type, call.device().id);
  if (!object_.is_none()) {
    array_.bind(call, name, object_, Access::write);
    return;
  }
  // The library's arrays are written by itself alone: it takes over memory of the core's.
  std::memcpy(shape_, spec.shape, sizeof shape_);
  size_t bytes = spec.dtype.bits / 8u;
  for (int i = 0; i < spec.ndim; ++i) bytes *= static_cast<size_t>(spec.shape[i]);
  auto memory = std::make_unique<Memory>(call.device(), bytes);
  void* const data = memory->data;
  const nb::capsule owner(memory.get(), [](void* p) noexcept { delete static_cast<Memory*>(p); });
  memory.release();
  size_t sizes_of[MOEBLAS_MAX_NDIM];
  for (int i = 0; i < spec.ndim; ++i) sizes_of[i] = static_cast<size_t>(spec.shape[i]);
  const nb::dlpack::dtype dtype{spec.dtype.code, spec.dtype.bits, spec.dtype.lanes};
  object_ =
      nb::cast(nb::ndarray<nb::array_api>(data, static_cast<size_t>(spec.ndim), sizes_of, owner,
                                          nullptr, dtype, call.device().type, call.device().id));
  array_.tensor_ = {data, call.device(), spec.ndim, spec.dtype, shape_, nullptr, 0};
  array_.present_ = true;
  adopted_ = true;
}

Parts::Parts(const Call& call, nb::handle given, size_t count) {
  if (given.is_none()) return;
  if (!PyTuple_Check(given.ptr()) && !PyList_Check(given.ptr())) {
    fail_type(call.op(), "out", given, "a tuple of arrays");
  }
  const size_t size = nb::len(given);
  if (size != count) {
    fail_value(call.op(), "out",
               "has " + std::to_string(size) + " arrays, expected " + std::to_string(count));
  }
  for (size_t i = 0; i < count; ++i) {
    parts_[i] = given[i];
    if (parts_[i].is_none()) fail_type(call.op(), "out", parts_[i], "a tuple of arrays");
  }
}

nb::object Result::take() {
  if (!object_.is_valid()) return nb::none();
  if (adopted_) return libraries("adopt")(call_.model(), object_);
  return object_;
}

}  // namespace moeblas::python
