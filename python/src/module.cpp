// The extension moeblas._core: the C interface's functions, its errors as Python's exceptions, and
// what there is to ask of the library.
#include <new>

#include "call.h"
#include "moeblas/kernels.h"
#include "operations.h"

namespace moeblas::python {
namespace {

// A bad argument is a ValueError; what no kernel takes, or a device refuses, a RuntimeError.
PyObject* exception_for(moeblas_status status) {
  switch (status) {
    case MOEBLAS_INVALID_ARGUMENT:
      return PyExc_ValueError;
    case MOEBLAS_OUT_OF_MEMORY:
      return PyExc_MemoryError;
    default:
      return PyExc_RuntimeError;
  }
}

nb::list kernel_rows() {
  nb::list rows;
  for (const moeblas_kernel& k : kernels()) {
    rows.append(nb::make_tuple(k.name, k.backend, k.problem, k.arch, k.formats, k.dtypes,
                               k.grouping, k.rows, k.summary));
  }
  return rows;
}

void bind_library(nb::module_& m) {
  nb::class_<Plan>(m, "Plan")
      .def(nb::init<>())
      .def_prop_ro("kernel",
                   [](const Plan& p) -> nb::object {
                     if (p.query.kernel == nullptr) return nb::none();
                     return nb::str(p.query.kernel);
                   })
      .def_prop_ro("workspace_bytes", [](const Plan& p) { return p.query.workspace_bytes; })
      .def_prop_ro("reasons", [](const Plan& p) { return nb::str(p.text.c_str()); });
  m.def("kernels", &kernel_rows);
  m.def("info", [] { return moeblas_info(); });
  m.def("version", [] { return moeblas_version(); });
  m.def(
      "set_num_threads",
      [](nb::handle n) { check(moeblas_set_num_threads(integer_of("set_num_threads", "n", n))); },
      nb::arg().none());
  m.def("set_between", &set_between);
  m.def("get_num_threads", [] { return moeblas_get_num_threads(); });
}

}  // namespace
}  // namespace moeblas::python

NB_MODULE(_core, m) {
  using namespace moeblas::python;
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const moeblas::Error& error) {
      PyErr_SetString(exception_for(error.status()), error.what());
    }
  });
  bind_quantization(m);
  bind_products(m);
  bind_expert_layers(m);
  bind_library(m);
}
