// DLPack's table of C functions, which a class of arrays may have: what its arrays are, where new
// memory comes from and which stream is current, without a Python object between. torch has it from
// 2.10 on.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>

#include "moeblas/tensor.h"

namespace moeblas::python {

namespace nb = nanobind;

// DLPack's managed tensors, of version 1; moeblas_tensor has the layout of its DLTensor.
struct ManagedVersioned {
  uint32_t major, minor;
  void* context;
  void (*deleter)(ManagedVersioned*);
  uint64_t flags;
  moeblas_tensor tensor;
};

// DLPackExchangeAPI of version 1. The functions return 0, or leave a Python error.
struct ExchangeTable {
  uint32_t major, minor;
  const ExchangeTable* older;
  int (*allocate)(const moeblas_tensor* like, ManagedVersioned** out, void* context,
                  void (*fail)(void* context, const char* kind, const char* text));
  int (*managed_from_object)(PyObject* object, ManagedVersioned** out);
  int (*object_from_managed)(ManagedVersioned* tensor, PyObject** out);
  int (*view)(PyObject* object, moeblas_tensor* out);  // borrows; may be nullptr
  int (*current_stream)(int32_t device_type, int32_t device_id, void** out);
};

// A class of arrays whose table serves: found once, kept for good.
struct Exchange {
  const ExchangeTable* table = nullptr;
  PyObject* make = nullptr;  // makes an array: (sizes, strides, dtype=, device=)
  std::array<PyObject*, static_cast<size_t>(DType::other)> dtypes{};  // its library's; or nullptr
};

// Of the object's own class; nullptr where it has none, and for classes derived from one, which may
// mean something else by their memory.
const Exchange* exchange_of(nb::handle object);

// Whether the array asks for gradients, which its library refuses to hand out.
bool asks_for_gradients(nb::handle object);

// Whether its numbers are to be negated when read, which no table says of `view`.
bool is_negated(nb::handle object, const moeblas_tensor& view);

// A new array of that class, uninitialized, on the device of `like`.
nb::object new_array(const Exchange& exchange, nb::handle like, const moeblas_spec& spec);

// Memory of the library's for one call, freed into its allocator in the order of its stream.
class LibraryMemory {
 public:
  LibraryMemory(const Exchange& exchange, moeblas_device device)
      : exchange_(exchange), device_(device) {}
  ~LibraryMemory() {
    if (memory_ != nullptr && memory_->deleter != nullptr) memory_->deleter(memory_);
  }
  LibraryMemory(const LibraryMemory&) = delete;
  LibraryMemory& operator=(const LibraryMemory&) = delete;
  // moeblas_options.allocate; `self` is one of these.
  static void* allocate(void* self, size_t bytes) noexcept;

 private:
  const Exchange& exchange_;
  moeblas_device device_;
  ManagedVersioned* memory_ = nullptr;
};

// torch functions of no argument, each of which is false where an operator's kernel would be called
// as it is: no gradients, modes, transforms, tracing or profiling (moeblas/torch).
void set_between(nb::tuple functions);
bool anything_between();

}  // namespace moeblas::python
