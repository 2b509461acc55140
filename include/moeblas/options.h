// Options: what every operation takes besides its tensors. Epilogue: what some do to a product.
#pragma once

#include <cstddef>
#include <cstdint>

#include "moeblas/moeblas.h"
#include "moeblas/tensor.h"

namespace moeblas {

enum class Precision : int32_t {
  native = MOEBLAS_NATIVE,
  exact = MOEBLAS_EXACT,
  fast = MOEBLAS_FAST
};

struct Options {
  Precision precision = Precision::native;
  bool deterministic = false;
  bool check_ids = false;
  const char* kernel = nullptr;
  // How long it must stay: moeblas_options. nullptr: `allocate`, or else the library allocates.
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  void* stream = nullptr;
  moeblas_query* query = nullptr;  // see plan() in kernels.h
  // Where the workspace comes from if there is none: see moeblas_options.
  void* (*allocate)(void* context, size_t bytes) = nullptr;
  void* allocate_context = nullptr;
};

// out = (alpha * sum + beta * c) + bias.
struct Epilogue {
  float alpha = 1.0f;
  float beta = 0.0f;
  TensorView c{};
  TensorView bias{};
};

}  // namespace moeblas
