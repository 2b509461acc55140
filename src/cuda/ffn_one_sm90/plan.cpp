#include "cuda/ffn_one_sm90/plan.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "cuda/device.h"
#include "cuda/qmv_sm90/operands.h"
#include "cuda/queue.h"
#include "cuda/strides.h"
#include "dispatch/ffn_parts.h"

namespace moeblas::cuda {
namespace {

using dispatch::FfnProblem;
using dispatch::Matrices;
using dispatch::Operand;
using dispatch::Reason;

// What a block may have on sm_90, less what the kernel declares itself.
constexpr uint32_t kSharedBytes = 232448 - 2048;
// A chunk's place belongs to one team, which may not find there what another has yet to take.
constexpr uint32_t kPlaces = kOneTeams;
// Codes of a thread block from which on seven warps that bring them are ahead of three.
constexpr int64_t kManyBytes = int64_t{300} << 10;

uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }
uint32_t rounded_up(uint32_t a, uint32_t b) { return ceil_div(a, b) * b; }
// Of a row.
uint32_t code_bytes(const Operand& w) {
  return static_cast<uint32_t>(w.values.cols * w.spec->bits / 8);
}

struct Family {
  Mode mode;
  int bits;
  DType scale;
  const char* few;   // kernels: for few chunks of codes a thread block,
  const char* many;  // and for many
};
const Family kFamilies[] = {
    {Mode::affine, 4, DType::f32, "ffn_one_sm90_affine4_f32", "ffn_one_sm90_affine4_f32_many"},
    {Mode::affine, 4, DType::f16, "ffn_one_sm90_affine4_f16", "ffn_one_sm90_affine4_f16_many"},
    {Mode::affine, 4, DType::bf16, "ffn_one_sm90_affine4_bf16", "ffn_one_sm90_affine4_bf16_many"},
    {Mode::affine, 8, DType::f32, "ffn_one_sm90_affine8_f32", "ffn_one_sm90_affine8_f32_many"},
    {Mode::affine, 8, DType::f16, "ffn_one_sm90_affine8_f16", "ffn_one_sm90_affine8_f16_many"},
    {Mode::affine, 8, DType::bf16, "ffn_one_sm90_affine8_bf16", "ffn_one_sm90_affine8_bf16_many"},
    {Mode::mxfp4, 4, DType::u8, "ffn_one_sm90_mxfp4", "ffn_one_sm90_mxfp4_many"},
    {Mode::mxfp8, 8, DType::u8, "ffn_one_sm90_mxfp8", "ffn_one_sm90_mxfp8_many"},
    {Mode::nvfp4, 4, DType::u8, "ffn_one_sm90_nvfp4", "ffn_one_sm90_nvfp4_many"},
};

const Family* family_of(const Operand& w) {
  if (w.form != dispatch::Form::packed) return nullptr;
  if (w.spec->mode == Mode::affine && w.spec->group_size < kQmvUnit) return nullptr;
  for (const Family& f : kFamilies) {
    if (f.mode == w.spec->mode && f.bits == w.spec->bits && f.scale == w.scales.dtype) return &f;
  }
  return nullptr;
}

Reason why_not_operand(const Operand& w, const Family* family, const char* what) {
  if (family_of(w) != family) return Reason::of("%s is of another format than gate", what);
  if (const Reason r = why_not_w(w)) return r;
  if (w.values.count() > 1 && *matrix_stride(w.values) == 0) {
    return Reason::of("one matrix of %s stands for all experts", what);
  }
  if (const Reason r = why_no_tensor_map(map_of(w.values, code_bytes(w), kQmvSlab, 16), what)) {
    return r;
  }
  // Scales and biases are read by the same offsets.
  const QmvTensor scales = tensor(w.scales);
  if (w.biases.data != nullptr) {
    const QmvTensor biases = tensor(w.biases);
    if (biases.matrix_stride != scales.matrix_stride || biases.row_stride != scales.row_stride) {
      return Reason::of("scales and biases of %s lie differently", what);
    }
  }
  const auto places = reinterpret_cast<uintptr_t>(scales.data) |
                      static_cast<uintptr_t>(scales.row_stride) |
                      static_cast<uintptr_t>(scales.matrix_stride);
  if (w.spec->mode == Mode::nvfp4 && places % 2 != 0) {
    return Reason::of("rows of scales of %s begin within 2 bytes", what);
  }
  return {};
}

FfnOneScales scales_of(const Operand& w) {
  const QmvTensor scales = tensor(w.scales);
  const int64_t to_biases = w.biases.data == nullptr ? 0 : tensor(w.biases).data - scales.data;
  return {scales.data, scales.matrix_stride, scales.row_stride, to_biases};
}

// What both products are told alike.
void cut_product(const Operand& w, FfnOneProduct& q) {
  q.k = static_cast<uint32_t>(w.values.cols);
  q.slabs = ceil_div(code_bytes(w), kQmvSlab);
  q.group = static_cast<uint32_t>(w.spec->group_size);
  for (q.group_shift = 0; uint32_t{kQmvUnit} << q.group_shift < q.group;) ++q.group_shift;
  q.scale_type = static_cast<int32_t>(w.scales.dtype);
}

// How a chunk's scales lie, of `values` of each of `rows` rows; `other` lies alike.
Reason cut_scales(const Operand& w, const Operand& other, uint32_t values, uint32_t rows,
                  const char* what, FfnOneProduct& q) {
  const auto bytes = static_cast<uint32_t>(size_of(w.scales.dtype));
  q.span = values / q.group * bytes;
  if (values % q.group != 0 || q.span % 4 != 0) {
    return Reason::of("%u values of a row of %s have no whole words of scales", values, what);
  }
  q.row_bytes = q.k / q.group * bytes;
  uintptr_t places = 0, rows_begin = 0;
  for (const Operand* o : {&w, &other}) {
    const QmvTensor scales = tensor(o->scales);
    places |= reinterpret_cast<uintptr_t>(scales.data);
    if (o->scales.count() > 1) places |= static_cast<uintptr_t>(scales.matrix_stride);
    if (o->biases.data != nullptr) places |= reinterpret_cast<uintptr_t>(tensor(o->biases).data);
    rows_begin |= static_cast<uintptr_t>(scales.row_stride);
  }
  if (places % 4 != 0) return Reason::of("scales of %s begin within 4 bytes", what);
  places |= rows_begin | q.span;
  q.piece = places % 16 == 0 ? 16 : places % 8 == 0 ? 8 : 4;
  // Rows that begin within words need one more; and an odd number of pieces keeps them in other
  // banks.
  q.copied = q.span + (places % 4 != 0 ? 4 : 0);
  q.one_piece = q.piece == 16 && q.copied == 16;
  q.pitch = q.copied;
  if (q.pitch / q.piece % 2 == 0) q.pitch += q.piece;
  q.biases = rounded_up(rows * q.pitch, 16);
  return {};
}
uint32_t scale_bytes(const Operand& w, const FfnOneProduct& q) {
  return w.biases.data == nullptr ? q.biases : 2 * q.biases;
}

// Gates and ups. Each team has chunks of every tile.
Reason cut_first(const FfnProblem& p, const Operand& w, const Operand& up, FfnOneParams& q) {
  cut_product(w, q.first);
  q.first.n = static_cast<uint32_t>(p.intermediate);
  q.first.lines = uint32_t{kOneBlockRows} << q.turns;
  q.first.chunks = std::max(ceil_div(q.first.slabs, kOneTileSlabs), uint32_t{kOneTeams});
  q.blocks = ceil_div(q.first.n, kOneBlockRows);
  const auto bits = static_cast<uint32_t>(w.spec->bits);
  const uint32_t values = uint32_t{kOneTileSlabs} * kQmvSlab * 8 / bits;
  q.units = q.first.chunks * values / kQmvUnit;
  return cut_scales(w, up, values, 2 * kOneBlockRows, "gate", q.first);
}

Reason cut_second(const Operand& w, uint32_t processors, FfnOneParams& q) {
  cut_product(w, q.second);
  q.second.n = static_cast<uint32_t>(w.values.rows);
  q.rows = ceil_div(q.second.n, processors);
  if (q.rows > kOneMostRows) {
    return Reason::of("%u rows of down for each multiprocessor, more than %u", q.rows,
                      uint32_t{kOneMostRows});
  }
  q.fewer = 0;
  if (q.rows > kOnePieceRows && q.rows <= 2 * kOnePieceRows) {
    const uint32_t fewer = q.top_k * q.blocks % processors;
    const uint32_t left = q.second.n - std::min(q.second.n, fewer * kOnePieceRows);
    const uint32_t rows = ceil_div(left, processors - fewer);
    if (fewer > 0 && rows > kOnePieceRows && rows <= 2 * kOnePieceRows) {
      q.fewer = fewer;
      q.rows = rows;
    }
  }
  q.down_pieces = q.rows <= kOnePieceRows ? 1 : q.rows <= 2 * kOnePieceRows ? 2 : 4;
  q.second.whole_slabs = has_whole_slabs(w.values, code_bytes(w));
  // Copies of one slab begin where the pattern of 16 bytes does.
  q.second.lines = q.second.whole_slabs ? q.rows : rounded_up(q.rows, 8);
  q.down_slabs =
      std::min(kOneChunkBytes / (q.down_pieces * kOnePieceRows * kQmvSlab), q.second.slabs);
  q.second.chunks = ceil_div(q.second.slabs, q.down_slabs);
  const uint32_t values = q.down_slabs * kQmvSlab * 8 / static_cast<uint32_t>(w.spec->bits);
  return cut_scales(w, w, values, q.down_pieces * kOnePieceRows, "down", q.second);
}

Reason share_memory(bool limbs, bool many, FfnOneParams& q, FfnOnePlan& plan) {
  const uint32_t unit_bytes = one_unit_bytes(limbs) + one_factor_bytes(limbs);
  const uint32_t fixed = 1024 + q.units * unit_bytes + kOneSetUpBytes +
                         kOneConsumers * (kOneWarpUnits * unit_bytes + (kOneTileSums + 1) * 32 * 4);
  const uint32_t chunk_bytes = kOneChunkBytes + q.scale_bytes;
  const uint32_t room = (kSharedBytes - std::min(fixed, kSharedBytes)) / chunk_bytes;
  q.chunks = std::min(room / kPlaces * kPlaces, many ? OneMany::kPlaces : OneFew::kPlaces);
  if (q.chunks < OneMany::kProducers) {
    return Reason::of("beside x, shared memory holds %u chunks of codes and scales, fewer than %u",
                      room, OneMany::kProducers);
  }
  plan.shared_bytes = fixed + q.chunks * chunk_bytes;
  return {};
}

}  // namespace

void set_warps(bool many, FfnOnePlan& plan) {
  const Family& family = kFamilies[plan.family];
  plan.kernel = many ? family.many : family.few;
  plan.threads = many ? OneMany::kThreads : OneFew::kThreads;
}

Reason plan_ffn_one_sm90(const FfnProblem& p, uint32_t processors, void* workspace,
                         FfnOnePlan& plan) {
  if (p.tokens != 1) {
    return Reason::of("%lld tokens, not one", static_cast<long long>(p.tokens));
  }
  if (p.top_k > kOneMostExperts) {
    return Reason::of("%lld experts of a token, more than %d", static_cast<long long>(p.top_k),
                      kOneMostExperts);
  }
  if (p.intermediate == 0) return Reason::of("there is nothing between the products");
  if (p.expert_map.present && p.expert_map.numel() == 0) return Reason::of("expert_map is empty");
  if (p.options.precision == Precision::exact) {
    return Reason::of("precision exact asks for sums in IEEE arithmetic");
  }
  if (p.hidden >= int64_t{1} << 19 || p.intermediate >= int64_t{1} << 19 ||
      p.experts >= int64_t{1} << 19) {
    return Reason::of("a size is beyond 2^19");
  }
  if (p.x.strides[1] != 1 || reinterpret_cast<uintptr_t>(p.x.data) % 8 != 0) {
    return Reason::of("x has gaps, or begins within 8 bytes");
  }
  const bool turns = !p.separate && p.glu_layout == GluLayout::interleaved;
  const dispatch::FfnHalves halves(p);
  const Family* family = family_of(p.gate_up);
  if (family == nullptr) return Reason::of("no kernel for the format of gate");
  const Operand& gate = turns ? p.gate_up : halves.gate;
  if (const Reason r = why_not_operand(gate, family, "gate")) return r;
  if (const Reason r = why_not_operand(turns ? gate : halves.up, family, "up")) return r;
  if (const Reason r = why_not_operand(p.down, family, "down")) return r;
  if (halves.up.spec->group_size != halves.gate.spec->group_size) {
    return Reason::of("gate and up are not of one format");
  }

  FfnOneParams& q = plan.params;
  q.top_k = static_cast<uint32_t>(p.top_k);
  q.turns = turns;
  if (const Reason r = cut_first(p, gate, turns ? gate : halves.up, q)) return r;
  if (const Reason r = cut_second(p.down, processors, q)) return r;
  q.scale_bytes = std::max(scale_bytes(gate, q.first), scale_bytes(p.down, q.second));
  plan.family = static_cast<uint32_t>(family - kFamilies);
  const bool limbs = one_has_limbs(family->bits, gate.spec->group_size);
  const int64_t in_all =
      p.top_k * (2 * p.intermediate * code_bytes(gate) + p.hidden * code_bytes(p.down));
  const bool many = in_all / processors >= kManyBytes;
  set_warps(many, plan);
  if (const Reason r = share_memory(limbs, many, q, plan)) return r;

  const uint32_t of_box = uint32_t{kOneBlockRows} << q.turns, row = code_bytes(gate);
  q.first.whole_slabs =
      has_whole_slabs(gate.values, row) && (turns || has_whole_slabs(halves.up.values, row));
  const auto code_map = [](TensorMapShape shape) {
    shape.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
    shape.fetch = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
    return shape;
  };
  const auto map = [&](const Operand& w, const FfnOneProduct& of, uint32_t slabs, uint32_t rows) {
    const uint32_t bytes = code_bytes(w);
    return code_map(of.whole_slabs ? map_in_slabs(w.values, bytes, slabs, rows)
                                   : map_of(w.values, bytes, kQmvSlab, rows));
  };
  plan.maps[0] = map(gate, q.first, kOneTileSlabs, of_box);
  plan.maps[1] = turns ? plan.maps[0] : map(halves.up, q.first, kOneTileSlabs, of_box);
  plan.maps[2] = map(p.down, q.second, q.down_slabs, q.rows);
  plan.maps[3] = map(p.down, q.second, q.down_slabs, kOnePieceRows);

  q.x = static_cast<const unsigned char*>(p.x.data);
  q.x_type = static_cast<int32_t>(p.x.dtype);
  q.ids = static_cast<const unsigned char*>(p.ids.data);
  q.id_type = static_cast<int32_t>(p.ids.dtype);
  q.id_step = p.ids.strides[1];
  q.experts.matrices = static_cast<uint32_t>(p.experts);
  if (p.expert_map.present) {
    q.experts.map = static_cast<const unsigned char*>(p.expert_map.data);
    q.experts.map_type = static_cast<int32_t>(p.expert_map.dtype);
    q.experts.map_step = p.expert_map.strides[0];
    q.experts.known = p.expert_map.shape[0];
  }
  q.weights = static_cast<const float*>(p.weights.data);
  q.weight_step = p.weights.strides[1];
  q.out = static_cast<unsigned char*>(p.out.data);
  q.words = static_cast<uint32_t*>(workspace);
  q.w[0] = weights(halves.gate, halves.gate_bias);
  q.w[1] = weights(halves.up, halves.up_bias);
  q.w[2] = weights(p.down, p.down_bias);
  q.scales[0] = scales_of(gate);
  q.scales[1] = scales_of(turns ? gate : halves.up);
  if (turns) q.scales[1].data += kOneBlockRows * q.scales[1].row_stride;
  q.scales[2] = scales_of(p.down);
  q.glu.activation = static_cast<int32_t>(p.activation);
  q.glu.alpha = p.alpha;
  q.glu.limit = p.limit;
  plan.grid = processors;
  plan.bytes = static_cast<size_t>(p.top_k * p.intermediate) * sizeof(uint32_t);
  return {};
}

namespace {

Reason plan_here(const FfnProblem& p, void* workspace, FfnOnePlan& plan) {
  return plan_ffn_one_sm90(p, static_cast<uint32_t>(multiprocessors(p.device.id)), workspace, plan);
}

}  // namespace

Reason ffn_one_sm90_reject(const FfnProblem& p) {
  if (const Reason r = dispatch::why_not_deterministic(p)) return r;
  FfnOnePlan made;
  return plan_here(p, nullptr, made);
}

size_t ffn_one_sm90_workspace(const FfnProblem& p) {
  return static_cast<size_t>(p.top_k * p.intermediate) * sizeof(uint32_t);
}

void ffn_one_sm90(const FfnProblem& p, dispatch::Workspace workspace) {
  FfnOnePlan made;
  if (plan_here(p, workspace.data, made)) return;  // selection has asked before
  struct {
    CUtensorMap map[kOneMaps];
  } maps;
  for (uint32_t i = 0; i < kOneMaps; ++i) maps.map[i] = tensor_map(made.maps[i], p.op);
  Queue(p.op, p.device.id, p.options.stream)
      .run_together(made.kernel, made.grid, made.threads, made.shared_bytes, made.params, maps);
}

}  // namespace moeblas::cuda
