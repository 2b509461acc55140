// What must be known of numpy without its headers, and without importing it: its arrays' type, its
// dtypes as objects, and how to make an array.
#pragma once

#include <nanobind/nanobind.h>

#include "moeblas/moeblas.h"

namespace moeblas::python {

namespace nb = nanobind;

// Whether the object is an array of numpy's. Programs that have not imported numpy have none.
bool is_numpy(nb::handle object);

// The dtype of an array of numpy's, ml_dtypes' included, in DLPack's numbers.
moeblas_dtype dtype_of_numpy(const char* op, const char* name, nb::handle array);

// Whether it is one of numpy.ma's, whose values are not all meant.
bool is_masked(nb::handle array);

// numpy.empty(...); `op` and `argument` are for the message where there is no memory.
nb::object new_numpy(const char* op, const char* argument, const moeblas_spec& spec);

}  // namespace moeblas::python
