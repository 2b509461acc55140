#include "exchange.h"

#include <array>
#include <atomic>
#include <mutex>

#include "call.h"

namespace moeblas::python {
namespace {

// The classes met so far, those without a table too. A stranger that finds the array full has none.
struct Known {
  PyTypeObject* type;
  Exchange exchange;
};
std::array<Known, 64> g_known;
std::atomic<size_t> g_known_count = 0;
std::mutex g_growing;

// Objects that are looked at in every call; never released, as the module's state would be at the
// interpreter's end.
PyObject* word(const char* text) { return PyUnicode_InternFromString(text); }

const ExchangeTable* table_of(PyTypeObject* type) {
  static PyObject* const name = word("__dlpack_c_exchange_api__");
  const nb::object capsule = nb::steal(PyObject_GetAttr(reinterpret_cast<PyObject*>(type), name));
  if (!capsule.is_valid()) {
    PyErr_Clear();
    return nullptr;
  }
  constexpr const char* kName = "dlpack_exchange_api";
  if (!PyCapsule_IsValid(capsule.ptr(), kName)) return nullptr;
  const auto* table = static_cast<const ExchangeTable*>(PyCapsule_GetPointer(capsule.ptr(), kName));
  while (table != nullptr && table->major != 1) table = table->older;
  return table != nullptr && table->view != nullptr ? table : nullptr;
}

const Exchange* learn(PyTypeObject* type) {
  Exchange found{.table = table_of(type)};
  if (found.table != nullptr) {
    const nb::object maker = libraries("exchange")(nb::handle(reinterpret_cast<PyObject*>(type)));
    if (maker.is_none()) {
      found.table = nullptr;
    } else {
      found.make = nb::object(maker[0]).release().ptr();
      for (size_t i = 0; i < found.dtypes.size(); ++i) {
        nb::object dtype = maker[1].attr("get")(name(static_cast<DType>(i)));
        if (!dtype.is_none()) found.dtypes[i] = dtype.release().ptr();
      }
    }
  }
  const std::lock_guard lock(g_growing);
  const size_t count = g_known_count.load(std::memory_order_relaxed);
  if (count == g_known.size()) return nullptr;
  Py_INCREF(reinterpret_cast<PyObject*>(type));
  g_known[count] = {type, found};
  g_known_count.store(count + 1, std::memory_order_release);
  return found.table != nullptr ? &g_known[count].exchange : nullptr;
}

nb::object sizes_of(const int64_t* values, int count) {
  const nb::object tuple = nb::steal(PyTuple_New(count));
  for (int i = 0; i < count; ++i) PyTuple_SetItem(tuple.ptr(), i, PyLong_FromLongLong(values[i]));
  return tuple;
}

PyObject* g_between = nullptr;

}  // namespace

const Exchange* exchange_of(nb::handle object) {
  PyTypeObject* const type = Py_TYPE(object.ptr());
  const size_t count = g_known_count.load(std::memory_order_acquire);
  for (size_t i = 0; i < count; ++i) {
    if (g_known[i].type == type) {
      return g_known[i].exchange.table != nullptr ? &g_known[i].exchange : nullptr;
    }
  }
  return count < g_known.size() ? learn(type) : nullptr;
}

bool asks_for_gradients(nb::handle object) {
  static PyObject* const name = word("requires_grad");
  const nb::object answer = nb::steal(PyObject_GetAttr(object.ptr(), name));
  if (!answer.is_valid()) PyErr_Clear();
  return answer.ptr() == Py_True;
}

bool is_negated(nb::handle object, const moeblas_tensor& view) {
  // What is negated is the imaginary part of conjugated numbers, every second one in memory:
  // asking takes longer than all else here, and is for those alone.
  if (view.dtype.code != MOEBLAS_FLOAT) return false;
  for (int i = 0; i < view.ndim; ++i) {
    if (view.shape[i] > 1 && view.strides[i] % 2 != 0) return false;
  }
  static PyObject* const name = word("is_neg");
  PyObject* const arguments[] = {object.ptr()};
  const nb::object answer = nb::steal(PyObject_VectorcallMethod(name, arguments, 1, nullptr));
  if (!answer.is_valid()) PyErr_Clear();
  return answer.ptr() == Py_True;
}

nb::object new_array(const Exchange& exchange, nb::handle like, const moeblas_spec& spec) {
  static PyObject* const device = word("device");
  static PyObject* const names = PyTuple_Pack(2, word("dtype"), device);
  std::array<int64_t, MOEBLAS_MAX_NDIM> strides;
  int64_t stride = 1;
  for (int i = spec.ndim; i-- > 0;) {
    strides[static_cast<size_t>(i)] = stride;
    stride *= spec.shape[i] > 0 ? spec.shape[i] : 1;
  }
  const nb::object shape = sizes_of(spec.shape, spec.ndim),
                   steps = sizes_of(strides.data(), spec.ndim),
                   where = nb::steal(PyObject_GetAttr(like.ptr(), device));
  if (!where.is_valid()) throw nb::python_error();
  const DType wanted = from_dlpack(spec.dtype);
  PyObject* const dtype =
      wanted != DType::other ? exchange.dtypes[static_cast<size_t>(wanted)] : nullptr;
  if (dtype == nullptr) throw nb::type_error("the library of the arrays has no such dtype");
  PyObject* arguments[] = {nullptr, shape.ptr(), steps.ptr(), dtype, where.ptr()};
  PyObject* const made =
      PyObject_Vectorcall(exchange.make, arguments + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, names);
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

void* LibraryMemory::allocate(void* self, size_t bytes) noexcept {
  auto& memory = *static_cast<LibraryMemory*>(self);
  const int64_t size = static_cast<int64_t>(bytes), stride = 1;
  const moeblas_tensor like{nullptr, memory.device_, 1, {MOEBLAS_UINT, 8, 1}, &size, &stride, 0};
  // Called without the interpreter's lock: what went wrong is said by the core.
  const auto fail = [](void*, const char*, const char*) {};
  if (memory.exchange_.table->allocate(&like, &memory.memory_, nullptr, fail) != 0) return nullptr;
  return static_cast<char*>(memory.memory_->tensor.data) + memory.memory_->tensor.byte_offset;
}

void set_between(nb::tuple functions) { g_between = functions.release().ptr(); }

bool anything_between() {
  if (g_between == nullptr) return true;
  const Py_ssize_t count = PyTuple_Size(g_between);
  for (Py_ssize_t i = 0; i < count; ++i) {
    const nb::object answer =
        nb::steal(PyObject_Vectorcall(PyTuple_GetItem(g_between, i), nullptr, 0, nullptr));
    if (!answer.is_valid()) throw nb::python_error();
    if (answer.ptr() != Py_False && !answer.is_none() && PyObject_IsTrue(answer.ptr()) != 0) {
      return true;
    }
  }
  return false;
}

}  // namespace moeblas::python
