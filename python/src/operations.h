// The operations as functions of the extension, by position; moeblas/*.py give them their names,
// defaults and documentation.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <utility>

namespace moeblas::python {

// Defines a function whose arguments may all be None.
template <class... Arguments>
void define(nanobind::module_& m, const char* name, nanobind::object (*function)(Arguments...)) {
  [&]<size_t... I>(std::index_sequence<I...>) {
    m.def(name, function, (static_cast<void>(I), nanobind::arg().none())...);
  }(std::index_sequence_for<Arguments...>());
}

void bind_quantization(nanobind::module_& m);
void bind_products(nanobind::module_& m);
void bind_expert_layers(nanobind::module_& m);

}  // namespace moeblas::python
