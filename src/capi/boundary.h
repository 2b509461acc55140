// The C border: C structs in, views out; exceptions in, status and message out.
#pragma once

#include <utility>

#include "moeblas/error.h"
#include "moeblas/options.h"
#include "moeblas/quant.h"
#include "ops/moe.h"
#include "ops/names.h"

namespace moeblas::capi {

// Keeps a message for moeblas_last_error; cuts what is longer than its buffer, never allocates.
void set_last_error(const char* message) noexcept;

// Turns the exception in flight into a status and a message.
moeblas_status status_of_exception() noexcept;

// Runs f; nothing that it throws crosses the border.
template <class F>
moeblas_status guarded(F&& f) noexcept {
  try {
    std::forward<F>(f)();
    return MOEBLAS_OK;
  } catch (...) {
    return status_of_exception();
  }
}

// An optional tensor: absent if null. Checks what any operation relies on: dimensions, sizes,
// lanes.
TensorView import(const char* op, const char* name, const moeblas_tensor* tensor);
Quantized import(const char* op, const ops::OperandNames& names,
                 const moeblas_quantized* quantized);
// Defaults for NULL and for the fields that an older caller does not know.
Options import(const char* op, const moeblas_options* options);
DType import(const char* op, const char* name, moeblas_dtype dtype);
// Defaults for NULL.
Epilogue import(const char* op, const moeblas_epilogue* epilogue);
Router import(const char* op, const moeblas_router* router);
FfnLayer import(const char* op, const moeblas_ffn* layer);

void write(moeblas_spec* out, const char* op, const Spec& spec);

}  // namespace moeblas::capi
