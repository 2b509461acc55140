#include "numpy.h"

#include <array>
#include <atomic>
#include <mutex>
#include <string>

#include "call.h"
#include "moeblas/tensor.h"

namespace moeblas::python {
namespace {

// dtypes by the names that numpy and ml_dtypes give them.
struct NamedDType {
  const char* name;
  moeblas_dtype dtype;
};
constexpr NamedDType kNames[] = {
    {"float32", {MOEBLAS_FLOAT, 32, 1}},   {"float16", {MOEBLAS_FLOAT, 16, 1}},
    {"bfloat16", {MOEBLAS_BFLOAT, 16, 1}}, {"uint32", {MOEBLAS_UINT, 32, 1}},
    {"uint8", {MOEBLAS_UINT, 8, 1}},       {"int32", {MOEBLAS_INT, 32, 1}},
    {"int64", {MOEBLAS_INT, 64, 1}},       {"int8", {MOEBLAS_INT, 8, 1}},
    {"int16", {MOEBLAS_INT, 16, 1}},       {"uint16", {MOEBLAS_UINT, 16, 1}},
    {"uint64", {MOEBLAS_UINT, 64, 1}},     {"float64", {MOEBLAS_FLOAT, 64, 1}},
    {"bool", {MOEBLAS_BOOL, 8, 1}},        {"float8_e4m3fn", {10, 8, 1}},
    {"float8_e8m0fnu", {14, 8, 1}},
};

bool equal(moeblas_dtype a, moeblas_dtype b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

// Objects of numpy's that are looked at in every call. Filled once and never freed: a module that
// is gone at the interpreter's end must not release them.
struct Numpy {
  PyObject* ndarray = nullptr;
  PyObject* empty = nullptr;
};
std::atomic<const Numpy*> g_numpy = nullptr;

// The dtype objects met so far. numpy's are singletons, so that a handful serves every call; a
// stranger that finds the table full is looked up by its name each time.
struct Known {
  PyObject* object;
  moeblas_dtype dtype;
};
std::array<Known, 32> g_known;
std::atomic<size_t> g_known_count = 0;
std::mutex g_growing;

const Numpy* numpy() {
  const Numpy* found = g_numpy.load(std::memory_order_acquire);
  if (found != nullptr) return found;
  nb::object modules = nb::module_::import_("sys").attr("modules");
  nb::object module = modules.attr("get")("numpy");
  if (module.is_none() || !nb::hasattr(module, "ndarray") || !nb::hasattr(module, "empty")) {
    return nullptr;
  }
  const auto* fresh =
      new Numpy{module.attr("ndarray").inc_ref().ptr(), module.attr("empty").inc_ref().ptr()};
  if (!g_numpy.compare_exchange_strong(found, fresh, std::memory_order_acq_rel)) {
    delete fresh;  // another thread was first; the two references stay, once
    return found;
  }
  return fresh;
}

void remember(nb::handle object, moeblas_dtype dtype) {
  const std::lock_guard lock(g_growing);
  const size_t count = g_known_count.load(std::memory_order_relaxed);
  if (count == g_known.size()) return;
  g_known[count] = {object.inc_ref().ptr(), dtype};
  g_known_count.store(count + 1, std::memory_order_release);
}

nb::object attribute(nb::handle object, PyObject* name) {
  PyObject* value = PyObject_GetAttr(object.ptr(), name);
  if (value == nullptr) throw nb::python_error();
  return nb::steal(value);
}

PyObject* dtype_word() {
  static PyObject* const word = PyUnicode_InternFromString("dtype");
  return word;
}

}  // namespace

bool is_numpy(nb::handle object) {
  const Numpy* np = numpy();
  return np != nullptr &&
         PyObject_TypeCheck(object.ptr(), reinterpret_cast<PyTypeObject*>(np->ndarray));
}

moeblas_dtype dtype_of_numpy(const char* op, const char* name, nb::handle array) {
  const nb::object dtype = attribute(array, dtype_word());
  const size_t count = g_known_count.load(std::memory_order_acquire);
  for (size_t i = 0; i < count; ++i) {
    if (g_known[i].object == dtype.ptr()) return g_known[i].dtype;
  }
  const auto called = nb::cast<std::string>(dtype.attr("name"));
  const bool native = nb::cast<bool>(dtype.attr("isnative"));
  for (const NamedDType& row : kNames) {
    if (native && called == row.name) {
      remember(dtype, row.dtype);
      return row.dtype;
    }
  }
  const std::string text = "has dtype " + called + (native ? "" : " in foreign byte order") +
                           ", which no operation takes";
  fail_value(op, name, text);
}

bool is_masked(nb::handle array) {
  static PyObject* const word = PyUnicode_InternFromString("mask");
  const auto* type = reinterpret_cast<PyObject*>(Py_TYPE(array.ptr()));
  return type != numpy()->ndarray && PyObject_HasAttr(array.ptr(), word) == 1;
}

nb::object new_numpy(const char* op, const char* argument, const moeblas_spec& spec) {
  const Numpy* np = numpy();
  PyObject* dtype = nullptr;
  const size_t count = g_known_count.load(std::memory_order_acquire);
  for (size_t i = 0; i < count && dtype == nullptr; ++i) {
    if (equal(g_known[i].dtype, spec.dtype)) dtype = g_known[i].object;
  }
  nb::object made;
  if (dtype == nullptr) {
    const char* called = name(from_dlpack(spec.dtype));
    const bool bfloat = spec.dtype.code == MOEBLAS_BFLOAT;
    nb::module_ owner = nb::module_::import_(bfloat ? "ml_dtypes" : "numpy");
    made = nb::module_::import_("numpy").attr("dtype")(owner.attr(called));
    remember(made, spec.dtype);
    dtype = made.ptr();
  }
  const nb::object shape = nb::steal(PyTuple_New(spec.ndim));
  for (int i = 0; i < spec.ndim; ++i) {
    PyTuple_SetItem(shape.ptr(), i, PyLong_FromLongLong(spec.shape[i]));
  }
  PyObject* const arguments[] = {nullptr, shape.ptr(), dtype};
  PyObject* result =
      PyObject_Vectorcall(np->empty, arguments + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  if (result == nullptr) {
    if (PyErr_ExceptionMatches(PyExc_MemoryError)) {
      PyErr_Clear();
      PyErr_Format(PyExc_MemoryError, "[%s] %s of shape %R and dtype %S cannot be allocated", op,
                   argument, shape.ptr(), dtype);
    }
    throw nb::python_error();
  }
  return nb::steal(result);
}

}  // namespace moeblas::python
