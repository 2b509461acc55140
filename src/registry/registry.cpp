// The one place that knows every backend.
#include "registry/registry.h"

#include "cpu/table.h"

namespace moeblas {

std::span<const dispatch::Backend* const> backends() {
  static const dispatch::Backend* const all[] = {
      &cpu::backend(),
  };
  return all;
}

}  // namespace moeblas
