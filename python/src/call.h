// One call from Python: what its messages begin with, its options, and the words of what the core
// cannot judge because it never gets to see it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "exchange.h"
#include "moeblas/error.h"
#include "moeblas/moeblas.h"

namespace moeblas::python {

namespace nb = nanobind;

// Thrown by a direct call (Call::direct) that has to go through torch's dispatcher instead; what
// Python gets is None.
struct NotDirect {};

// Whether these options, the last argument of every operation, have "direct" among them.
bool asks_for_direct(nb::handle options);

// One call: its name, which begins every message, its options, and what its arrays decide.
class Call {
 public:
  // `options`: the keyword arguments that all operations share.
  Call(const char* op, nb::handle options);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  const char* op() const { return op_; }
  const moeblas_options* options() const { return &options_; }
  // Only a plan is asked for: there are no results.
  bool asks() const { return options_.query != nullptr; }
  // In the place of a torch operator: every array is a torch tensor whose memory is what it stands
  // for, or the call is not made.
  bool direct() const { return direct_; }

  // Whose library new results are of, and on which device.
  nb::handle model() const { return model_; }
  moeblas_device device() const { return device_; }
  void add_input(nb::handle object, moeblas_device device);
  // The stream on which a call with this CUDA array runs, as DLPack writes it.
  uintptr_t stream_for(nb::handle object, int32_t device_id);
  // The call runs on the current stream of this array's library, and takes workspaces from it.
  // False where it runs on another stream already.
  bool on_stream_of(const Exchange& exchange, moeblas_device device);

  // Runs the C function without the GIL; throws its error.
  template <class Function>
  void run(Function&& function) const {
    const nb::gil_scoped_release released;
    check(function());
  }

 private:
  const char* op_;
  moeblas_options options_ = MOEBLAS_OPTIONS_INIT;
  nb::handle model_;
  moeblas_device device_{MOEBLAS_CPU, 0};
  bool has_stream_ = false;
  bool direct_ = false;
  const ExchangeTable* stream_of_ = nullptr;
  int32_t stream_device_ = 0;
  std::optional<LibraryMemory> workspace_;
};

// What a call would do: the answer to moeblas.explain.
struct Plan {
  Plan() : text(16384, '\0'), query{sizeof(moeblas_query), nullptr, 0, text.data(), text.size()} {}
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  std::string text;
  moeblas_query query;
};

// "[op] name is a list, expected ...", as a TypeError.
[[noreturn]] void fail_type(const char* op, const char* name, nb::handle object,
                            const char* expected);
// "[op] name message", as a ValueError.
[[noreturn]] void fail_value(const char* op, const char* name, const std::string& text);

// The part of the package that knows other libraries by name (moeblas/_libraries.py).
nb::object libraries(const char* function);

// Arguments by name and number. `name` is the argument's.
int32_t integer_of(const char* op, const char* name, nb::handle value);  // None: 0
bool truth_of(const char* op, const char* name, nb::handle value);
float number_of(const char* op, const char* name, nb::handle value);
// The index of a word in a list, or a ValueError that lists them.
int32_t word_of(const char* op, const char* name, nb::handle value,
                std::span<const char* const> words);
int32_t mode_of(const char* op, const char* name, nb::handle value);
// None: absent.
std::optional<moeblas_dtype> dtype_of(const char* op, const char* name, nb::handle value);

}  // namespace moeblas::python
