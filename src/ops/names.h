// The words by which messages call quantized arguments and their tensors, at the C border and in
// the operations.
#pragma once

namespace moeblas::ops {

struct OperandNames {
  const char* argument = "w";  // the struct
  const char* codes = "w";
  const char* scales = "scales";
  const char* biases = "biases";
  const char* tensor_scale = "tensor_scale";
  const char* prefix = "";  // of mode, bits, group_size, scale_layout where several have them
};

// The one quantized argument of a product, and of quantize and dequantize.
inline constexpr OperandNames kWeights{};
inline constexpr OperandNames kPacked{"w_q", "w_q"};

// quantize_dual.
inline constexpr OperandNames kRows{"rows",        "rows.w_q",          "rows.scales",
                                    "rows.biases", "rows.tensor_scale", "rows."};
inline constexpr OperandNames kColumns{"columns",        "columns.w_q",          "columns.scales",
                                       "columns.biases", "columns.tensor_scale", "columns."};

// The block-quantized products.
inline constexpr OperandNames kBlockX{"x", "x", "x_scales", "x_biases", "tensor_scale_x", "x."};
inline constexpr OperandNames kBlockW{"w", "w", "scales", "biases", "tensor_scale_w", "w."};

// moe_ffn.
inline constexpr OperandNames kGateUp{
    "gate_up", "gate_up", "gate_up.scales", "gate_up.biases", "gate_up.tensor_scale", "gate_up."};
inline constexpr OperandNames kGate{
    "gate", "gate", "gate.scales", "gate.biases", "gate.tensor_scale", "gate."};
inline constexpr OperandNames kUp{"up", "up", "up.scales", "up.biases", "up.tensor_scale", "up."};
inline constexpr OperandNames kDown{
    "down", "down", "down.scales", "down.biases", "down.tensor_scale", "down."};

}  // namespace moeblas::ops
