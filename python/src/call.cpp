#include "call.h"

#include <cmath>
#include <limits>
#include <string>

#include "array.h"
#include "moeblas/quant.h"
#include "moeblas/tensor.h"

namespace moeblas::python {
namespace {

constexpr const char* kPrecisions[] = {"native", "exact", "fast"};

std::string message(const char* op, const char* name, const std::string& text) {
  return "[" + std::string(op) + "] " + name + " " + text;
}

}  // namespace

void fail_type(const char* op, const char* name, nb::handle object, const char* expected) {
  const auto type = nb::cast<std::string>(nb::inst_name(object));
  const char* article =
      std::string_view("aeio").find(type[0]) == std::string_view::npos ? "a" : "an";
  const std::string text = std::string("is ") + article + " " + type + ", expected " + expected;
  throw nb::type_error(message(op, name, text).c_str());
}

void fail_value(const char* op, const char* name, const std::string& text) {
  throw nb::value_error(message(op, name, text).c_str());
}

nb::object libraries(const char* function) {
  return nb::module_::import_("moeblas._libraries").attr(function);
}

bool asks_for_direct(nb::handle options) {
  static PyObject* const name = PyUnicode_InternFromString("direct");
  return PyDict_Size(options.ptr()) > 0 && PyDict_Contains(options.ptr(), name) == 1;
}

Call::Call(const char* op, nb::handle options) : op_(op) {
  if (PyDict_Size(options.ptr()) == 0) return;
  for (const auto& [key, value] : nb::borrow<nb::dict>(options)) {
    const char* word = PyUnicode_AsUTF8AndSize(key.ptr(), nullptr);
    if (word == nullptr) throw nb::python_error();
    const std::string_view name = word;
    if (name == "precision") {
      options_.precision = word_of(op, word, value, kPrecisions);
    } else if (name == "deterministic") {
      options_.deterministic = truth_of(op, word, value);
    } else if (name == "check_ids") {
      options_.check_ids = truth_of(op, word, value);
    } else if (name == "kernel") {
      if (value.is_none()) continue;
      if (!PyUnicode_Check(value.ptr())) fail_type(op, word, value, "a kernel's name");
      options_.kernel = PyUnicode_AsUTF8AndSize(value.ptr(), nullptr);
      if (options_.kernel == nullptr) throw nb::python_error();
    } else if (name == "stream") {
      if (value.is_none()) continue;
      options_.stream =
          reinterpret_cast<void*>(nb::cast<uintptr_t>(libraries("stream_pointer")(op, value)));
      has_stream_ = true;
    } else if (name == "direct") {
      direct_ = true;
    } else if (name == "plan") {
      options_.query = &nb::cast<Plan&>(value).query;
    } else {
      throw nb::type_error(
          (std::string(op) + "() got an unexpected keyword argument '" + word + "'").c_str());
    }
  }
}

void Call::add_input(nb::handle object, moeblas_device device) {
  if (model_.is_valid()) return;
  model_ = object;
  device_ = device;
}

uintptr_t Call::stream_for(nb::handle object, int32_t device_id) {
  if (!has_stream_) {
    const auto current = nb::cast<uintptr_t>(libraries("current_stream")(object, device_id));
    options_.stream = reinterpret_cast<void*>(current);
    has_stream_ = true;
  }
  // 0 is ambiguous in DLPack; the legacy default stream is 1 there, and for CUDA's runtime too.
  const auto stream = reinterpret_cast<uintptr_t>(options_.stream);
  return stream == 0 ? 1 : stream;
}

bool Call::on_stream_of(const Exchange& exchange, moeblas_device device) {
  if (has_stream_) return stream_of_ == exchange.table && stream_device_ == device.id;
  if (exchange.table->current_stream(device.type, device.id, &options_.stream) != 0) {
    throw nb::python_error();
  }
  has_stream_ = true;
  stream_of_ = exchange.table;
  stream_device_ = device.id;
  workspace_.emplace(exchange, device);
  options_.allocate = LibraryMemory::allocate;
  options_.allocate_context = &*workspace_;
  return true;
}

int32_t integer_of(const char* op, const char* name, nb::handle value) {
  if (value.is_none()) return 0;
  // Arrays have __index__, and most of them refuse it.
  const nb::object number = nb::steal(PyNumber_Index(value.ptr()));
  if (!number.is_valid()) {
    PyErr_Clear();
    fail_type(op, name, value, "an integer");
  }
  int overflow = 0;
  const long long n = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow != 0 || n < std::numeric_limits<int32_t>::min() ||
      n > std::numeric_limits<int32_t>::max()) {
    fail_value(op, name,
               "is " + nb::cast<std::string>(nb::str(number)) + ", expected an integer of 32 bits");
  }
  return static_cast<int32_t>(n);
}

bool truth_of(const char* op, const char* name, nb::handle value) {
  if (value.ptr() == Py_True) return true;
  if (value.ptr() == Py_False) return false;
  if (PyLong_Check(value.ptr())) return PyObject_IsTrue(value.ptr()) == 1;
  // An array here is an argument in the wrong place, and may have no truth at all.
  const auto type = nb::cast<std::string>(nb::inst_name(value));
  if (type != "numpy.bool" && type != "numpy.bool_") fail_type(op, name, value, "True or False");
  return PyObject_IsTrue(value.ptr()) == 1;
}

float number_of(const char* op, const char* name, nb::handle value) {
  // numpy would convert an array of one element, for now, with a warning.
  if (is_array(value)) fail_type(op, name, value, "a number");
  const double number = PyFloat_AsDouble(value.ptr());
  if (number == -1.0 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    fail_type(op, name, value, "a number");
  }
  return static_cast<float>(number);
}

int32_t word_of(const char* op, const char* name, nb::handle value,
                std::span<const char* const> words) {
  if (!PyUnicode_Check(value.ptr())) fail_type(op, name, value, "a word");
  const char* given = PyUnicode_AsUTF8AndSize(value.ptr(), nullptr);
  if (given == nullptr) throw nb::python_error();
  std::string all;
  for (size_t i = 0; i < words.size(); ++i) {
    if (std::string_view(given) == words[i]) return static_cast<int32_t>(i);
    all += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + std::string(words[i]);
  }
  fail_value(op, name, "is '" + std::string(given) + "', expected " + all);
}

int32_t mode_of(const char* op, const char* name, nb::handle value) {
  return word_of(op, name, value, kModeNames);
}

std::optional<moeblas_dtype> dtype_of(const char* op, const char* name, nb::handle value) {
  if (value.is_none()) return {};
  const auto called = nb::cast<std::string>(libraries("dtype_name")(value));
  for (const auto& row : detail::kDTypes) {
    if (row.dtype != DType::other && called == row.name) return row.dlpack;
  }
  fail_value(op, name, "is '" + called + "', expected float32, float16 or bfloat16");
}

}  // namespace moeblas::python
