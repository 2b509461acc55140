// The operations as functions of the extension, by position; moeblas/*.py give them their names,
// defaults and documentation.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <tuple>
#include <utility>

#include "call.h"

namespace moeblas::python {

// Defines a function whose arguments may all be None. It returns None for a direct call that has to
// go another way.
template <class... Arguments>
void define(nanobind::module_& m, const char* name, nanobind::object (*function)(Arguments...)) {
  [&]<size_t... I>(std::index_sequence<I...>) {
    m.def(
        name,
        [function](Arguments... arguments) -> nanobind::object {
          const nanobind::handle options = std::get<sizeof...(I) - 1>(std::tie(arguments...));
          if (asks_for_direct(options) && anything_between()) return nanobind::none();
          try {
            return function(arguments...);
          } catch (const NotDirect&) {
            return nanobind::none();
          }
        },
        (static_cast<void>(I), nanobind::arg().none())...);
  }(std::index_sequence_for<Arguments...>());
}

void bind_quantization(nanobind::module_& m);
void bind_products(nanobind::module_& m);
void bind_expert_layers(nanobind::module_& m);

}  // namespace moeblas::python
