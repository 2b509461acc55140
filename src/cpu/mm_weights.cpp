#include "cpu/mm_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "cpu/encode.h"

namespace moeblas::cpu {
namespace {

using dispatch::Form;
using dispatch::MatmulProblem;

constexpr int64_t kMostFetched = 512 << 10, kMostAhead = 16 << 10, kLine = 64;

int index(Panel panel) { return static_cast<int>(panel); }

}  // namespace

WeightPanels::Layout::Layout(const MatmulProblem& p, Panel kind, int cols) {
  // Along N a block of K has cols / kChunk scales per value.
  const int64_t most_scales = std::max(kScaleGroups * cols, panel_depth(kind) * cols / kChunk);
  panel = 0;
  words = panel + int64_t{kPanelSteps} * cols * 4;
  scales = words + int64_t{kPanelSteps} * kChunk * 4;
  biases = scales + most_scales * 4;
  quantized = biases + most_scales * 4;
  bytes = quantized + (p.w.form == Form::on_the_fly ? panel_depth(kind) * cols * 4 : 0);
}

WeightPanels::Scratch::Scratch(const Layout& layout, char* own)
    : panel(own + layout.panel),
      words(reinterpret_cast<uint32_t*>(own + layout.words)),
      scales(reinterpret_cast<float*>(own + layout.scales)),
      biases(reinterpret_cast<float*>(own + layout.biases)),
      quantized(reinterpret_cast<uint8_t*>(own + layout.quantized)) {}

WeightPanels::WeightPanels(const MatmulProblem& p, const MmKernels& kernels, Panel kind)
    : p_(p), kernels_(kernels), kind_(kind) {
  if (p.w.form == Form::on_the_fly) {
    along_k_ = true;
    fill_ = kernels.dense_along_k[index(kind)]
                                 [element_index(kind == Panel::bf16 ? DType::bf16 : DType::f32)];
  } else if (p.w.form == Form::packed) {
    along_k_ = p.transpose;
    fill_ = (along_k_ ? kernels.packed_along_k
                      : kernels.packed_along_n)[index(kind)][code_index(*p.w.spec)];
    bits_ = p.w.spec->bits;
    group_ = p.w.spec->group_size;
  } else {
    const DType dtype = p.w.values.dtype;
    along_k_ = k_step(p) == 1;
    fill_ = (along_k_ ? kernels.dense_along_k
                      : kernels.dense_along_n)[index(kind)][element_index(dtype)];
    bits_ = 8 * static_cast<int64_t>(size_of(dtype));
  }
}

PanelWeights WeightPanels::panel(const Pair& pair, int64_t n) const {
  PanelWeights w{};
  w.matrix = pair.w;
  w.n = n;
  w.count = std::min<int64_t>(kernels_.cols, p_.n - w.n);
  w.k = pair.w == kNoMatrix ? 0 : pair.k_end - pair.k_begin;
  if (w.k == 0) return w;
  const dispatch::Matrices& m = p_.w.values;
  const auto size = static_cast<int64_t>(size_of(m.dtype));
  if (p_.w.form == Form::packed) {
    w.packed = packed_row(p_.w, pair.w, 0, pair.w);
    w.values = w.packed.codes;
    w.n_step = w.k_step = m.row_stride * size;
  } else {
    w.packed.tensor_scale = load_tensor_scale(p_.w.tensor_scale, pair.w);
    w.n_step = n_step(p_) * size;
    w.k_step = k_step(p_) * size;
    w.values =
        static_cast<const uint8_t*>(m.data) + m.offset(pair.w) * size + pair.k_begin * w.k_step;
  }
  // A tensor_scale that is no power of two would cost bfloat16 weights bits that they do not have,
  // a tiny one all of them: what is not used waits for the sum.
  const float scale = w.packed.tensor_scale;
  if (kind_ == Panel::bf16 && p_.w.form != Form::dense && std::isfinite(scale) && scale != 0) {
    const int exponent = std::max(std::ilogb(scale), -100);
    w.packed.tensor_scale = std::ldexp(1.0f, exponent);
    w.factor = std::ldexp(scale, -exponent);
  }
  if (kind_ == Panel::int8 && p_.w.spec->mode != Mode::affine) w.factor = 0.5f;  // see mm_int8.h
  if (kind_ == Panel::bf16 && p_.x.form != Form::dense)
    w.factor *= load_tensor_scale(p_.x.tensor_scale, pair.w);
  return w;
}

template <WeightPanels::Cache kInto>
WeightPanels::Fetch<kInto>::Fetch(const uint8_t* from, int64_t rows, int64_t bytes, int64_t step,
                                  int64_t calls) {
  // The line that a row begins in; of rows that begin anywhere in theirs, one line more.
  const int64_t offset = step % kLine == 0
                             ? static_cast<int64_t>(reinterpret_cast<uintptr_t>(from) % kLine)
                             : kLine - 1;
  row_ = from - offset;
  step_ = step;
  bytes_ = bytes + offset;
  left_ = rows * ((bytes_ + kLine - 1) / kLine);
  share_ = (left_ + calls - 1) / calls;
}

template <WeightPanels::Cache kInto>
void WeightPanels::Fetch<kInto>::some() {
  for (int64_t i = std::min(share_, left_); i > 0; --i, --left_) {
    __builtin_prefetch(row_ + at_, 0, kInto == Cache::l1 ? 3 : 2);
    at_ += kLine;
    if (at_ >= bytes_) {
      at_ = 0;
      row_ += step_;
    }
  }
}

template class WeightPanels::Fetch<WeightPanels::Cache::l1>;
template class WeightPanels::Fetch<WeightPanels::Cache::l2>;

WeightPanels::Fetch<WeightPanels::Cache::l2> WeightPanels::all(const PanelWeights& w,
                                                               int64_t calls) const {
  const int64_t per_row = w.k * bits_ / 8;
  if (!along_k_ || per_row == 0 || per_row * w.count > kMostFetched) return {};
  return {w.values + w.n * w.n_step, w.count, per_row, w.n_step, calls};
}

WeightPanels::Fetch<WeightPanels::Cache::l1> WeightPanels::block(const PanelWeights& w, int64_t k,
                                                                 int64_t count,
                                                                 int64_t calls) const {
  if (bits_ == 0 || count * w.count * bits_ / 8 > kMostAhead) return {};
  if (along_k_)
    return {w.values + w.n * w.n_step + k * bits_ / 8, w.count, count * bits_ / 8, w.n_step, calls};
  return {w.values + k * w.k_step + w.n * bits_ / 8, count, w.count * bits_ / 8, w.k_step, calls};
}

void WeightPanels::fill(const PanelWeights& w, int64_t k, int64_t here,
                        const Scratch& scratch) const {
  const uint8_t* rows[std::max(int64_t{kMostCols}, panel_depth(Panel::bf16))];
  WeightBlock b;
  b.rows = rows;
  b.k = here;
  b.count = w.count;
  b.group_shift = std::countr_zero(static_cast<uint64_t>(group_));
  b.words = scratch.words;
  b.panel = scratch.panel;
  if (p_.w.form == Form::on_the_fly) {
    quantize(w, k, here, scratch.quantized);
    for (int64_t j = 0; j < kernels_.cols; ++j)
      rows[j] = scratch.quantized + std::min(j, w.count - 1) * here * panel_value_size();
  } else if (along_k_) {
    for (int64_t j = 0; j < kernels_.cols; ++j)
      rows[j] = w.values + (w.n + std::min(j, w.count - 1)) * w.n_step + k * bits_ / 8;
  } else {
    for (int64_t i = 0; i < here; ++i) rows[i] = w.values + (k + i) * w.k_step + w.n * bits_ / 8;
  }
  if (p_.w.form == Form::packed) {
    b.scales = scratch.scales;
    b.biases = scratch.biases;
    if (!along_k_) {
      scales_along_n(w, k, here, scratch);
    } else {
      // Several blocks' worth at a time.
      const int64_t group = k / group_;
      if (group % kScaleGroups == 0) {
        const int64_t groups = std::min(kScaleGroups, p_.k / group_ - group);
        scales_along_k(w, group, groups, scratch);
      }
      b.scales = scales_from(k, scratch.scales);
      b.biases = scales_from(k, scratch.biases);
    }
  }
  fill_(b);
}

// Values [k, k + count) of K of every output, as if quantized and dequantized, in what panels hold.
void WeightPanels::quantize(const PanelWeights& w, int64_t k, int64_t count, uint8_t* to) const {
  const dispatch::Matrices& m = p_.w.values;
  const int64_t first = m.offset(w.matrix) + k * k_step(p_);
  const float tensor_scale = load_tensor_scale(p_.w.tensor_scale, w.matrix);
  formats::visit_format(p_.w.spec->mode, p_.w.spec->bits, [&]<class Format>() {
    if constexpr (!formats::kIsAffine<Format>) {
      float values[panel_depth(Panel::bf16)];
      for (int64_t j = 0; j < w.count; ++j, to += count * panel_value_size()) {
        load_floats(m.data, m.dtype, first + (w.n + j) * n_step(p_), k_step(p_), count, values);
        round_trip<Format>(values, count, tensor_scale, w.packed.tensor_scale);
        store_floats(to, kind_ == Panel::bf16 ? DType::bf16 : DType::f32, 0, count, values);
      }
    }
  });
}

// scales[g][j] for groups [first, first + count) of the panel's outputs.
void WeightPanels::scales_along_k(const PanelWeights& w, int64_t first, int64_t count,
                                  const Scratch& scratch) const {
  const dispatch::Operand& o = p_.w;
  if (w.packed.swizzled_row >= 0) {
    PackedRow row = w.packed;
    for (int64_t j = 0; j < w.count; ++j) {
      row.swizzled_row = w.n + j;
      for (int64_t g = 0; g < count; ++g)
        scratch.scales[g * kernels_.cols + j] = block_scale(row, first + g);
    }
    return;
  }
  const uint8_t* rows[kMostCols];
  WeightBlock b;
  b.rows = rows;
  b.k = count;
  b.count = w.count;
  b.factor = w.packed.tensor_scale;
  b.words = scratch.words;
  const auto transpose = [&](const void* row0, const dispatch::Matrices& m, MmKernels::Fill from,
                             float* to) {
    const auto size = static_cast<int64_t>(size_of(m.dtype));
    for (int64_t j = 0; j < kernels_.cols; ++j) {
      rows[j] = static_cast<const uint8_t*>(row0) +
                ((w.n + std::min(j, w.count - 1)) * m.row_stride + first) * size;
    }
    b.panel = to;
    from(b);
  };
  const auto* floats = kernels_.dense_along_k[index(Panel::f32)];
  const MmKernels::Fill from = o.spec->mode == Mode::affine  ? floats[element_index(o.scales.dtype)]
                               : o.spec->mode == Mode::nvfp4 ? kernels_.e4m3_scales
                                                             : kernels_.e8m0_scales;
  transpose(w.packed.scales, o.scales, from, scratch.scales);
  if (o.spec->mode == Mode::affine) transpose(w.packed.biases, o.biases, from, scratch.biases);
}

// scales[i][chunk] for values [k, k + count) of K.
void WeightPanels::scales_along_n(const PanelWeights& w, int64_t k, int64_t count,
                                  const Scratch& scratch) const {
  const dispatch::Operand& o = p_.w;
  const int64_t chunks = kernels_.cols / kChunk, used = w.count / kChunk;
  PackedRow row = w.packed;
  for (int64_t i = 0; i < count; ++i) {
    if (w.packed.swizzled_row >= 0) row.swizzled_row = k + i;
    const int64_t at = w.packed.swizzled_row >= 0 ? 0 : (k + i) * o.scales.row_stride;
    row.scales = static_cast<const char*>(w.packed.scales) +
                 at * static_cast<int64_t>(size_of(o.scales.dtype));
    for (int64_t c = 0; c < used; ++c) {
      const int64_t group = (w.n + c * kChunk) / group_;
      if (o.spec->mode == Mode::affine) {
        scratch.scales[i * chunks + c] = load_float(row.scales, o.scales.dtype, group);
        scratch.biases[i * chunks + c] =
            load_float(w.packed.biases, o.biases.dtype, (k + i) * o.biases.row_stride + group);
      } else {
        scratch.scales[i * chunks + c] = block_scale(row, group);
      }
    }
  }
}

float WeightPanels::block_scale(const PackedRow& row, int64_t group) const {
  const auto byte = load_as<uint8_t>(row.scales, row.scale_index(group));
  const float scale = p_.w.spec->mode == Mode::nvfp4 ? formats::Nvfp4::decode_scale(byte)
                                                     : formats::Mxfp4::decode_scale(byte);
  return formats::mul(scale, row.tensor_scale);
}

}  // namespace moeblas::cpu
