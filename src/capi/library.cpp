// The library itself at the C border: version, kernels, threads, memory.
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "capi/boundary.h"
#include "dispatch/select.h"
#include "memory/huge_pages.h"
#include "moeblas/moeblas.h"
#include "ops/check.h"
#include "registry/registry.h"
#include "threads/parallel.h"

using namespace moeblas;
using capi::guarded;

namespace {

// A row of a table in words; the strings live as long as the library.
struct KernelText {
  const char* name;
  const char* backend;
  const char* problem;
  const char* arch;
  std::string formats, dtypes, grouping, rows;
  const char* summary;
};

template <class Problem>
void append(std::vector<KernelText>& list, const char* backend, const char* problem,
            std::span<const dispatch::Row<Problem>> rows) {
  for (const auto& row : rows) {
    list.push_back({row.name.text, backend, problem, row.arch.text, dispatch::describe(row.formats),
                    dispatch::describe(row.dtypes), dispatch::describe(row.grouping),
                    dispatch::describe(row.rows), row.summary.text});
  }
}

const std::vector<KernelText>& kernel_texts() {
  // Never destroyed: other threads, and what runs at exit, may still ask.
  static const auto& texts = *new const std::vector<KernelText>([] {
    std::vector<KernelText> list;
    for (const dispatch::Backend* backend : backends()) {
      dispatch::for_each_table(*backend, [&](const char* problem, auto rows) {
        append(list, backend->name, problem, rows);
      });
    }
    return list;
  }());
  return texts;
}

const dispatch::Backend& backend_of(const char* op, moeblas_device device) {
  for (const dispatch::Backend* backend : backends()) {
    if (backend->device_type != device.type) continue;
    dispatch::Reason why_not;
    backend->capability(device.id, why_not);
    if (why_not)
      throw Error(MOEBLAS_UNSUPPORTED,
                  ops::cat("[", op, "] device cannot be used: ", why_not.text()));
    return *backend;
  }
  throw Error(MOEBLAS_UNSUPPORTED,
              ops::cat("[", op, "] device type ", device.type, " is not in this build"));
}

}  // namespace

extern "C" {

const char* moeblas_status_string(moeblas_status status) {
  switch (status) {
    case MOEBLAS_OK:
      return "ok";
    case MOEBLAS_INVALID_ARGUMENT:
      return "invalid argument";
    case MOEBLAS_UNSUPPORTED:
      return "unsupported";
    case MOEBLAS_OUT_OF_MEMORY:
      return "out of memory";
    case MOEBLAS_DEVICE_ERROR:
      return "device error";
    case MOEBLAS_INTERNAL_ERROR:
      return "internal error";
  }
  return "unknown status";
}

const char* moeblas_version(void) { return MOEBLAS_VERSION_STRING; }

int32_t moeblas_kernel_count(void) {
  int32_t count = 0;
  return guarded([&] { count = static_cast<int32_t>(kernel_texts().size()); }) == MOEBLAS_OK ? count
                                                                                             : 0;
}

moeblas_status moeblas_kernel_at(int32_t i, moeblas_kernel* out) {
  return guarded([&] {
    const auto& texts = kernel_texts();
    if (i < 0 || static_cast<size_t>(i) >= texts.size()) {
      ops::fail("kernel_at", "i is ", i, ", expected 0 to ", texts.size() - 1);
    }
    if (out == nullptr) ops::fail("kernel_at", "out is missing");
    const KernelText& t = texts[static_cast<size_t>(i)];
    *out = {t.name,           t.backend,          t.problem,      t.arch,   t.formats.c_str(),
            t.dtypes.c_str(), t.grouping.c_str(), t.rows.c_str(), t.summary};
  });
}

const char* moeblas_info(void) {
  thread_local char text[2048];
  size_t used =
      static_cast<size_t>(std::snprintf(text, sizeof text, "moeblas %s\n", MOEBLAS_VERSION_STRING));
  const moeblas_status status = guarded([&] {
    for (const dispatch::Backend* backend : backends()) {
      char line[512];
      backend->describe(line, sizeof line);
      const int n = std::snprintf(text + used, sizeof text - used, "%s: %s\n", backend->name, line);
      used = std::min(used + static_cast<size_t>(n), sizeof text - 1);
    }
  });
  if (status != MOEBLAS_OK)
    std::snprintf(text + used, sizeof text - used, "%s\n", moeblas_last_error());
  return text;
}

moeblas_status moeblas_set_num_threads(int32_t n) {
  return guarded([&] { threads::set_num_threads(n); });
}

int32_t moeblas_get_num_threads(void) { return threads::num_threads(); }

moeblas_status moeblas_set_parallel_for(moeblas_parallel_for hook, void* context) {
  return guarded([&] { threads::set_parallel_for(hook, context); });
}

moeblas_status moeblas_buffer_alloc(moeblas_device device, size_t bytes, void** out) {
  return guarded([&] {
    if (out == nullptr) ops::fail("buffer_alloc", "out is missing");
    if (bytes == 0) {
      *out = nullptr;
      return;
    }
    const dispatch::Backend& backend = backend_of("buffer_alloc", device);
    try {
      *out = backend.allocate_buffer != nullptr ? backend.allocate_buffer(device.id, bytes)
                                                : backend.allocate(device.id, bytes, nullptr);
    } catch (const std::bad_alloc&) {
      throw Error(MOEBLAS_OUT_OF_MEMORY,
                  "[buffer_alloc] out of memory for " + std::to_string(bytes) + " bytes");
    }
  });
}

moeblas_status moeblas_buffer_free(moeblas_device device, void* buffer) {
  return guarded([&] {
    if (buffer == nullptr) return;
    const dispatch::Backend& backend = backend_of("buffer_free", device);
    if (backend.release_buffer != nullptr) {
      backend.release_buffer(device.id, buffer);
    } else {
      backend.release(device.id, buffer, nullptr);
    }
  });
}

moeblas_status moeblas_buffer_copy(moeblas_device to_device, void* to, moeblas_device from_device,
                                   const void* from, size_t bytes) {
  return guarded([&] {
    if (bytes == 0) return;
    if (to == nullptr || from == nullptr) {
      ops::fail("buffer_copy", to == nullptr ? "to" : "from", " is missing");
    }
    // The backend of the end that is not the host knows how to reach both.
    const moeblas_device device = to_device.type == MOEBLAS_CPU ? from_device : to_device;
    backend_of("buffer_copy", device).copy(to, from, bytes);
  });
}

moeblas_status moeblas_advise_huge_pages(const void* data, size_t bytes) {
  return guarded([&] {
    if (bytes > 0 && data == nullptr) ops::fail("advise_huge_pages", "data is missing");
    memory::advise_huge_pages(data, bytes);
  });
}

}  // extern "C"
