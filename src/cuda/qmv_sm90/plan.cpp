#include <algorithm>
#include <cmath>

#include "cuda/qmv_sm90/family.h"
#include "cuda/qmv_sm90/operands.h"
#include "cuda/strides.h"

namespace moeblas::cuda {
namespace {

using dispatch::Form;
using dispatch::Grouping;
using dispatch::MatmulProblem;
using dispatch::Reason;

using Size = long long;
// What a block may have on sm_90, less what the kernel declares itself.
constexpr uint32_t kSharedBytes = 232448 - 12288;
constexpr uint32_t kLeastStages = 2;
constexpr uint32_t kLargeBoxRows = 64;
// On the average. Few of the matrices then have more than eight rows.
constexpr int64_t kFewRowsPerMatrix = 5;
// That tiles of 256 rows and sections of K leave room for.
constexpr uint32_t kStagesOfRoom = 3;
// Of x, that are not given up for a third stage.
constexpr uint32_t kFewestColumns = 4;
// That stand as bytes, each in the room of two columns. Of three or four, products of bytes take as
// many operations as those of float16.
constexpr uint32_t kMostByteRows = 2;
// Of x beside the stages.
constexpr uint64_t kMostBytesOfX = 96 << 10, kMostBytesOfFew = 112 << 10;
constexpr uint32_t kMostSlotBytes = 64 << 10;
// Tiles of each thread block, where other warps store.
constexpr double kLeastTilesOfHelped = 2;
constexpr int64_t kMostRowsPerMatrix = 64;
// How often w may be read: as often as it takes to have met all rows in columns.
constexpr int64_t kMostPasses = 24;
constexpr uint64_t kUnit = 16;  // bytes: bulk copies begin and end at multiples

uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }
uint32_t rounded_up(uint32_t a, uint32_t b) { return ceil_div(a, b) * b; }

// Without gaps between its dimensions there is one matrix, and nothing to look up.
bool has_one_matrix(const MatmulProblem& p) {
  return p.grouping == Grouping::none && p.batch.numel() == 1;
}

// The most matrices that rows can meet.
int64_t matrices_met(const MatmulProblem& p) {
  if (has_one_matrix(p)) return 1;
  return std::max<int64_t>(1, std::min(p.batch.numel(), p.w.values.count()));
}

// If all that can be met are met alike.
int64_t rows_per_matrix(const MatmulProblem& p) {
  const int64_t met = matrices_met(p);
  return (p.total_rows() + met - 1) / met;
}

// Whether rows meet few enough matrices twice that each may stand alone.
bool mostly_distinct(const MatmulProblem& p) {
  const int64_t rows = p.total_rows();
  return p.grouping == Grouping::gather && p.m == 1 && rows * rows <= 4 * p.w.values.count();
}

Reason why_not_sizes(const MatmulProblem& p) {
  const int64_t rows = p.total_rows(), matrices = p.w.values.count(), met = matrices_met(p);
  if (rows > kQmvMostRows) {
    return Reason::of("%lld rows, more than %d", Size{rows}, kQmvMostRows);
  }
  if (matrices > kQmvMostMatrices) {
    return Reason::of("%lld matrices, more than %d", Size{matrices}, kQmvMostMatrices);
  }
  if (rows > kMostRowsPerMatrix * met) {
    return Reason::of("%lld rows of x per matrix of w, more than %lld", Size{rows_per_matrix(p)},
                      Size{kMostRowsPerMatrix});
  }
  if (p.k == 0) return Reason::of("K is 0");
  // Shares of the work are counted in 32 bits, in blocks of at least one row.
  if (p.n >= int64_t{1} << 19 || p.k >= int64_t{1} << 24) {
    return Reason::of("N or K is beyond 2^19 or 2^24");
  }
  return {};
}

// Whether one matrix's rows of x come in sections of K with the stages of w, made columns by a
// launch of their own, since they would take too much room beside stages. By sizes alone.
bool stages_x(const MatmulProblem& p, const QmvParams& q, uint32_t few_tokens) {
  if (!has_one_matrix(p)) return false;
  const bool few = q.limbs == 1 && q.rows <= few_tokens;
  const uint32_t rows = std::min(q.rows, kQmvMostColumns / q.column_step);
  return uint64_t{(rows - 1) * q.column_step + q.limbs} * q.k * 2 >
         (few ? kMostBytesOfFew : kMostBytesOfX);
}

// How many matrices are met, of rows that meet all of them alike.
double matrices_likely(const MatmulProblem& p, const QmvParams& q) {
  const auto matrices = static_cast<double>(p.w.values.count());
  return matrices * (1 - std::pow(1 - 1 / matrices, static_cast<double>(q.rows)));
}

// Whether tiles of 256 rows, half a stage wide, take less time than those of 128: where K ends in
// the first half of a stage the other half is nothing, and what is done at the end of each tile
// counts as much as a stage. A block may have more of them than its share, though. Of rows that
// meet matrices alike.
bool wants_tall_tiles(const MatmulProblem& p, const QmvParams& q, uint32_t processors) {
  // Scales of half a stage are fewer than a box of them has room for; and x becomes columns by
  // eight units, which half a stage of bytes is not.
  if (q.scale_slots == 0 || p.w.spec->bits != 4) return false;
  const double met = matrices_likely(p, q);
  const auto steps = [&](uint32_t row_groups) {
    return ceil_div(code_bytes(p), kQmvConsumers / row_groups * kQmvItemBytes);
  };
  if (steps(8) == 2 * steps(4)) return false;
  const auto cost = [&](uint32_t row_groups) {
    const uint32_t rows = row_groups * kQmvItemRows >> q.paired;
    return std::ceil(met * ceil_div(q.n, rows) / processors) * (steps(row_groups) + 1);
  };
  return cost(8) < cost(4);
}

// How rows of w are cut into boxes and tiles. `multiple`: of a box's rows.
void cut_rows(QmvParams& q, uint32_t matrices, uint32_t processors, uint32_t bytes_of_row,
              uint32_t multiple, bool few, bool staged, bool tall) {
  const uint64_t all = uint64_t{matrices} * q.n << q.paired;
  const auto share = static_cast<uint32_t>((all + processors - 1) / processors);
  // Wide stages read longer runs of memory; but a tile of short rows is over too soon, where there
  // are many columns in particular.
  // Sections of x come with every tile.
  const uint32_t most = staged || bytes_of_row <= (few ? 1024 : 2048) ? 4 : 2;
  q.row_groups = share <= 32 ? 1 : share <= 64 ? 2 : most;
  // A box of x has 256 lines at most.
  if (q.paired != 0 || staged) q.row_groups = std::max(q.row_groups, 2u);
  if (q.row_groups == 4 && tall) q.row_groups = 8;
  if (matrices == 1 && q.paired == 0) {
    const uint32_t tile = q.row_groups * kQmvItemRows;
    q.box_rows = std::min(rounded_up(ceil_div(share, ceil_div(share, tile)), multiple), tile);
    q.tile_blocks = 1;
  } else {
    // Larger boxes are fewer copies; smaller ones, shares that differ less.
    const bool large = q.row_groups >= 4 && share >= 8 * kLargeBoxRows;
    q.box_rows = large ? kLargeBoxRows : uint32_t{kQmvItemRows};
    q.tile_blocks = q.row_groups * kQmvItemRows / q.box_rows >> q.paired;
  }
  q.blocks = ceil_div(q.n, q.box_rows);
  // Tiles that all thread blocks have one of may be smaller.
  q.tile_blocks = std::min(q.tile_blocks, ceil_div(matrices * q.blocks, processors));
  q.tiles = ceil_div(q.blocks, q.tile_blocks);
  const uint32_t grid = std::min(processors, q.blocks);  // where there is one matrix
  q.share = q.blocks / grid;
  q.remainder = q.blocks % grid;
}

// By how many bytes at a time an item's scales of a row are loaded from a slot, where rows stand
// one behind the other as they lie in w. They are a word in all; so where rows are words, K ends
// with an item. (nvfp4's would be two.)
uint32_t words_in_slots(const MatmulProblem& p, const QmvParams& q) {
  const Mode mode = p.w.spec->mode;
  if (q.group > 64 || mode == Mode::nvfp4) return 0;
  const uint32_t row = row_bytes(p.w.scales);
  return row % 4 == 0 ? 4 : mode == Mode::mxfp4 && row % 2 == 0 ? 2 : 0;
}

// Stages and what they hold of a row's section.
void cut_stages(const MatmulProblem& p, const QmvLayer& layer, uint32_t sections, QmvParams& q) {
  const auto bits = static_cast<uint32_t>(p.w.spec->bits);
  q.group = static_cast<uint32_t>(p.w.spec->group_size);
  q.parts = kQmvConsumers / q.row_groups;
  for (q.parts_shift = 0; 1u << q.parts_shift < q.parts;) ++q.parts_shift;
  // Items are read whole, whatever rows a box has: what nobody uses is the same stage's.
  const uint32_t tile = q.row_groups * kQmvItemRows, of_operand = tile >> q.paired;
  const uint32_t boxes = q.tile_blocks << q.paired;
  q.slabs = q.parts * kQmvItemBytes / kQmvSlab;
  const uint32_t values = q.slabs * kQmvSlab * 8 / bits;
  q.k_steps = ceil_div(q.k, sections * values);
  q.step_units = values / kQmvUnit;
  q.units = q.k_steps * q.step_units;
  q.filled_units = std::min(q.units, ceil_div(q.k, kQmvUnit));
  q.section_tiles = q.tiles;
  q.tiles *= sections;
  q.section_inverse =
      sections == 1 ? 0 : static_cast<uint32_t>((uint64_t{1} << 32) / q.section_tiles) + 1;
  q.whole_slabs = has_whole_slabs(p, layer);
  q.slab_rows = q.whole_slabs != 0 ? q.box_rows : rounded_up(q.box_rows, 8);
  q.box_bytes =
      rounded_up((q.slabs * q.slab_rows + (boxes == 1 ? tile - q.box_rows : 0)) * kQmvSlab, 1024);
  q.box_shift = boxes == 1 ? 3 : q.box_rows == kLargeBoxRows ? 1 : 0;
  q.operand_shift = q.paired != 0 ? q.box_shift : 0;
  q.scales_at = q.stage_bytes = boxes * q.box_bytes;
  for (q.group_shift = 0; uint32_t{kQmvUnit} << q.group_shift < q.group;) ++q.group_shift;
  const uint32_t scales = is_affine(p) ? 2 : 1;
  if (q.scale_slots > 0) {
    const uint32_t run = rounded_up(of_operand * q.scale_pitch, kUnit);
    if (q.scale_runs == 2) q.scale_operand = run;
    q.scale_bytes = rounded_up(run * q.scale_runs, 128);
    // Enough for the tiles that are under way, unless they are large.
    const uint32_t tiles = q.k_steps >= 4 ? 2 : q.k_steps >= 2 ? 3 : 5;
    q.scale_slots = std::clamp(kMostSlotBytes / (scales * q.scale_bytes), 1u, tiles);
    // Counted in units where a unit holds two groups.
    q.last_group = q.k / std::max(q.group, uint32_t{kQmvUnit}) - 1;
    q.scale_words = words_in_slots(p, q);
  } else {
    q.last_group = values / std::max(q.group, uint32_t{kQmvUnit}) - 1;
    q.scale_words = q.group <= 64 ? 4 : 0;
    q.scale_step = values / q.group * static_cast<uint32_t>(size_of(p.w.scales.dtype));
    q.scale_pitch = std::max(q.scale_step, static_cast<uint32_t>(kUnit));
    q.scale_bytes = rounded_up(tile * q.scale_pitch, 128);
    q.stage_bytes += rounded_up(scales * q.scale_bytes, 1024);
  }
  const uint32_t of_row = q.slabs * kQmvSlab + (q.scale_slots == 0 ? scales * q.scale_pitch : 0);
  q.block_bytes = (q.box_rows << q.paired) * of_row;
}

// Whether eight columns of x at a time are enough for most matrices: sixteen take room that stages
// could have, and twice the products.
bool has_few_rows_each(const MatmulProblem& p) {
  return p.grouping == Grouping::gather && p.total_rows() <= kFewRowsPerMatrix * p.w.values.count();
}

// The same where x comes with the stages.
Reason share_memory_in_stages(const MatmulProblem& p, QmvPlan& plan) {
  QmvParams& q = plan.params;
  q.column_bytes = q.step_units * 64 + 64;
  q.tokens = std::min(q.rows, kQmvMostColumns / q.column_step);
  q.columns = rounded_up(q.tokens * q.column_step, 2);
  q.x_room = (q.tokens - 1) * q.column_step + q.limbs;
  const uint32_t factor_units = q.group < 64 ? q.step_units : q.step_units / 2;
  q.x_at = q.stage_bytes;
  q.x_bytes = rounded_up(q.x_room * q.column_bytes + factor_units * q.columns * 8, kQmvLine);
  q.stage_bytes += rounded_up(q.x_bytes, 1024);
  const uint32_t sums = 2 * kQmvConsumers * kQmvSumsPitch * kQmvSumsColumns * 4;
  const uint32_t fixed = 1024 + 64 + sums + q.scale_slots * (is_affine(p) ? 2 : 1) * q.scale_bytes;
  q.stages = std::min<uint32_t>((kSharedBytes - fixed) / q.stage_bytes, kQmvMostStages);
  if (q.stages < kLeastStages) {
    return Reason::of("of sections of %u rows, shared memory holds %u", q.tokens, q.stages);
  }
  plan.shared_bytes = fixed + q.stages * q.stage_bytes;
  plan.column_sections = q.k_steps * ceil_div(q.rows, q.tokens);
  plan.workspace = size_t{plan.column_sections} * q.x_bytes;
  // In boxes of a section; where it lies, the launch knows.
  TensorMapShape& x = plan.maps[kQmvMapOfX];
  x = {};
  x.add(kQmvLine, 1, kQmvLine);
  x.add(plan.workspace / kQmvLine, kQmvLine, q.x_bytes / kQmvLine);
  x.add(1, kQmvLine, 1);
  x.add(1, kQmvLine, 1);
  return {};
}

// Rows of x that are wanted in shared memory at a time.
uint32_t wanted_rows(const MatmulProblem& p, const QmvFamily& family, bool few,
                     const QmvParams& q) {
  const uint32_t columns = has_few_rows_each(p) ? kQmvMostColumns / 2 : kQmvMostColumns;
  return q.one_x ? 1 : std::min(q.rows, few ? family.few_tokens : columns / q.column_step);
}

// Whether other warps make the columns of further passes and store what those who multiply hand
// over. x is copied in runs of 16 bytes then, a tile's sums have two places, and outputs are whole
// and stored by fours. It pays where thread blocks have several tiles.
bool wants_helpers(const MatmulProblem& p, const QmvFamily& family, uint32_t processors,
                   const QmvParams& q) {
  if (family.helped == nullptr || has_one_matrix(p) || q.x_runs != 8 || q.limbs != 1 ||
      q.one_x != 0 || q.k % 8 != 0 || q.section_inverse != 0 || q.tokens > 2 * kQmvSumsColumns ||
      q.n % 4 != 0 || !has_runs_of(4, p.out)) {
    return false;
  }
  // Instances whose scales come by tiles load two at a time.
  if (p.w.spec->mode == Mode::mxfp4 && q.scale_words == 0) return false;
  const double met = matrices_likely(p, q);
  return met * q.tiles >= kLeastTilesOfHelped * processors;
}

// How many of them stand there beside how many stages.
Reason share_memory(const MatmulProblem& p, const QmvFamily& family, uint32_t processors, bool few,
                    QmvPlan& plan) {
  QmvParams& q = plan.params;
  // Columns that fall on other banks.
  q.column_bytes = q.units * 64 + 64;
  const uint32_t factor_units = few || q.group < 64 ? q.units : q.units / 2;
  const bool few_each = has_few_rows_each(p);
  // Sums of two places in turn; before there are any, schedule_many counts there.
  const uint32_t together = few ? family.few_tokens : uint32_t{kQmvSumsColumns};
  const uint32_t sums =
      std::max<uint32_t>(2 * kQmvConsumers * kQmvSumsPitch * together * 4, kQmvMostMatrices * 4);
  const uint32_t fixed = 1024 + 64 + sums + q.scale_slots * (is_affine(p) ? 2 : 1) * q.scale_bytes;
  for (q.tokens = wanted_rows(p, family, few, q); q.tokens > 0; --q.tokens) {
    q.columns = rounded_up(q.tokens * q.column_step, 2);
    q.x_room = (q.tokens - 1) * q.column_step + q.limbs;
    const uint32_t taken = fixed + q.x_room * q.column_bytes + factor_units * q.columns * 8;
    const bool spared = few_each && q.tokens > kFewestColumns;
    if (taken + (spared ? 3 : kLeastStages) * q.stage_bytes > kSharedBytes) continue;
    q.stages = std::min<uint32_t>((kSharedBytes - taken) / q.stage_bytes, kQmvMostStages);
    plan.shared_bytes = taken + q.stages * q.stage_bytes;
    break;
  }
  plan.kernel = few ? family.few : family.many;
  q.column_costs = family.costs;
  q.x_first = 0;
  if (!few && q.tokens > 0 && wants_helpers(p, family, processors, q)) {
    // As many columns more as cost no stage, up to two passes'.
    const uint32_t of_column = q.column_bytes + factor_units * 8;
    const uint32_t others = fixed + q.stages * q.stage_bytes;
    const uint32_t room = std::min((kSharedBytes - others) / of_column / 2 * 2, 2 * q.columns);
    if (room >= q.columns) {
      const bool words = q.scale_slots == 0 && q.scale_words != 0;
      plan.kernel = words ? family.helped : family.slots_helped;
      q.column_costs = family.helped_costs;
      q.x_first = 1;
      q.columns = q.x_room = room;
      q.byte_rows = std::min(room / 2, kMostByteRows);
      plan.shared_bytes = others + room * of_column;
    }
  }
  if (q.tokens == 0 ||
      (!mostly_distinct(p) && kMostPasses * matrices_met(p) * q.tokens < p.total_rows())) {
    return Reason::of("of %u rows of K = %u, shared memory holds %u", q.rows, q.k, q.tokens);
  }
  return {};
}

// Cuts w into tiles and stages, and K into so many sections.
Reason cut(const MatmulProblem& p, const QmvLayer& layer, const QmvFamily& family,
           uint32_t processors, bool few, bool staged, bool tall, uint32_t sections,
           QmvPlan& plan) {
  QmvParams& q = plan.params;
  plan.sections = sections;
  cut_rows(q, static_cast<uint32_t>(matrices_met(p)) * sections, processors,
           code_bytes(p) / sections, q.scale_slots > 0 ? 16 : 1, few, staged, tall);
  cut_stages(p, layer, sections, q);
  if (staged) return share_memory_in_stages(p, plan);
  return share_memory(p, family, processors, few, plan);
}

// Cuts w as all of it fits: into tiles of 256 rows where they pay; and where rows of x are so long
// that few of them stand beside few stages, K into sections, each with outputs of its own, as few
// as leave room for what is wanted.
Reason cut_to_fit(const MatmulProblem& p, const QmvLayer& layer, const QmvFamily& family,
                  uint32_t processors, bool few, bool staged, QmvPlan& plan) {
  QmvParams& q = plan.params;
  const auto whole = [&](bool tall) {
    return cut(p, layer, family, processors, few, staged, tall, 1, plan);
  };
  if (few || staged) return whole(false);
  const uint32_t wanted = wanted_rows(p, family, few, q);
  const auto has_room = [&] { return q.tokens == wanted && q.stages >= kStagesOfRoom; };
  if (wants_tall_tiles(p, q, processors) && !whole(true) && has_room() && q.scale_slots > 1) {
    return {};
  }
  const Reason made = whole(false);
  // A section's scales come with its stages, from a multiple of 16 bytes on.
  if (layer.most_sections == 1 || q.scale_slots > 0 || (!made && has_room())) return made;
  for (uint32_t sections = 2; sections <= layer.most_sections; ++sections) {
    const Reason r = cut(p, layer, family, processors, few, staged, false, sections, plan);
    const bool even = q.k == sections * q.units * kQmvUnit &&
                      q.k_steps * q.scale_step % kUnit == 0 && q.section_tiles > 1;
    if (!r && even && has_room()) {
      q.section_step = int64_t{q.rows} * q.n;
      return {};
    }
  }
  return whole(false);
}

// What an expert layer has beside its product.
Reason place_layer(const MatmulProblem& p, const QmvLayer& layer, QmvParams& q) {
  q.w[0] = q.w[1] = weights(p.w, p.epilogue.bias);
  q.paired = layer.up != nullptr;
  if (layer.up != nullptr) q.w[1] = weights(*layer.up, layer.up_bias);
  // One number says for all of these whether there are as many matrices as experts.
  const bool one = q.matrix_step == 0;
  if ((layer.up != nullptr && (*matrix_stride(layer.up->values) == 0) != one) ||
      (one && q.pairs.matrices > 1 && (layer.up != nullptr || q.w[0].added != nullptr))) {
    return Reason::of("one matrix of w stands for all experts");
  }
  q.glu = layer.glu;
  q.combine = layer.combine;
  q.combined = layer.combine.rows != nullptr;
  // What nobody has written, of rows without a matrix, is not to be read either.
  if (q.combined) q.one_x = 0;
  q.added =
      (q.w[0].added != nullptr ? 1 : 0) | (layer.up != nullptr && q.w[1].added != nullptr ? 2 : 0);
  q.cleared = layer.cleared;
  q.cleared_count = layer.cleared_count;
  if (layer.expert_map.present) {
    q.pairs.map = static_cast<const unsigned char*>(layer.expert_map.data);
    q.pairs.map_type = static_cast<int32_t>(layer.expert_map.dtype);
    q.pairs.map_step = layer.expert_map.strides[0];
    q.pairs.known = layer.expert_map.shape[0];
  }
  return {};
}

// What is fetched before ids are known, where at least two matrices in five are going to be chosen
// by ids drawn at random. Qwen3-30B's gates and ups of affine 4 bits gained 3, 4 and 3 % by it of
// 8, 16 and 64 tokens (half or twice as much of it gained less of 16), its layers 4, 4 and 2 %.
// Block-scaled floats, whose decoding is the limit, gained 1 % or lost it, and so did DeepSeek-V3,
// of whose 4 GiB a thread block's place cannot be guessed.
void place_likely(const MatmulProblem& p, QmvParams& q) {
  constexpr uint32_t kLikelyBytes = 48 * 1024;  // of codes, of a thread block
  constexpr int64_t kMostBytes = int64_t{1} << 30;
  if (q.one_matrix != 0 || q.combined != 0 || q.rows * 2 < q.pairs.matrices) return;
  if (p.w.spec->mode != Mode::affine || q.matrix_step == 0) return;
  if (p.n * p.k / 8 * p.w.spec->bits * q.pairs.matrices > kMostBytes) return;
  q.likely_codes = static_cast<uint32_t>(p.k / 8 * p.w.spec->bits);
  q.likely_scales = static_cast<uint32_t>(p.k / p.w.spec->group_size) *
                    static_cast<uint32_t>(size_of(p.w.scales.dtype));
  q.likely_rows = (kLikelyBytes >> q.paired) / q.likely_codes;
}

}  // namespace

bool qmv_sm90_reads(const dispatch::Operand& w) { return qmv_sm90_family(w) != nullptr; }

Reason plan_qmv_sm90(const MatmulProblem& p, uint32_t processors, QmvPlan& plan,
                     const QmvLayer& layer) {
  if (p.w.form != Form::packed) return Reason::of("w is not packed");
  if (!p.transpose) return Reason::of("w is packed along N");
  if (p.x.form != Form::dense) return Reason::of("x is quantized");
  if (p.options.precision == Precision::exact) {
    return Reason::of("precision exact asks for sums in IEEE arithmetic");
  }
  const QmvFamily* family = qmv_sm90_family(p.w);
  if (family == nullptr) return Reason::of("groups of %d, less than 32", p.w.spec->group_size);
  if (const Reason r = why_not_sizes(p)) return r;
  if (const Reason r = why_not_w(p.w)) return r;
  if (layer.up != nullptr) {
    if (layer.up->form != Form::packed || qmv_sm90_family(*layer.up) != family ||
        layer.up->spec->group_size != p.w.spec->group_size) {
      return Reason::of("gate and up are not of one format");
    }
    if (const Reason r = why_not_w(*layer.up)) return r;
  }
  QmvParams& q = plan.params;
  if (const Reason r = place_pairs(p, q)) return r;
  place_rows(p, q);
  q.one_matrix = has_one_matrix(p);
  q.matrix_step = *matrix_stride(p.w.values) != 0;
  q.scale_type = static_cast<int32_t>(p.w.scales.dtype);
  if (const Reason r = place_layer(p, layer, q)) return r;

  if (const Reason r = place_scales(p, layer, q)) return r;
  const bool staged = stages_x(p, q, family->few_tokens);
  const bool few = !staged && q.limbs == 1 && (q.rows <= family->few_tokens || mostly_distinct(p));
  plan.kernel = family->many;
  if (staged) plan.columns_kernel = family->columns;
  if (const Reason r = cut_to_fit(p, layer, *family, processors, few, staged, plan)) return r;
  q.pass_cost = pass_cost(q, q.tokens);
  q.scale_odd = q.scale_slots == 0 ? 15 : 0;
  q.scales_of_tile = q.scale_slots > 0;
  q.scales_in_stage = q.scale_slots == 0;
  // Kernels for few columns have x beside the stages.
  q.x_whole = q.x_bytes == 0;
  q.x_in_stage = q.x_bytes > 0;
  if (q.combine.counters != nullptr && q.blocks > kQmvMostCounters) {
    return Reason::of("%u boxes of rows, more than %u", q.blocks, uint32_t{kQmvMostCounters});
  }
  if (const Reason r = map_operand(p, p.w, q, plan.maps)) return r;
  if (!staged) {
    const dispatch::Operand& second = layer.up != nullptr ? *layer.up : p.w;
    if (const Reason r = map_operand(p, second, q, plan.maps + kQmvMaps)) return r;
  }
  // In few instructions: a box's slabs by one copy, and scales beside them.
  q.ahead = q.whole_slabs != 0 && q.scale_slots == 0 ? std::min(q.stages, q.k_steps) : 0;
  if (q.x_first != 0) q.ahead = std::min(q.ahead, 1u);
  plan.passes = few ? 1 : static_cast<uint32_t>((rows_per_matrix(p) + q.tokens - 1) / q.tokens);
  const auto most = static_cast<uint64_t>(matrices_met(p)) * q.tiles;
  plan.grid = static_cast<uint32_t>(std::min<uint64_t>(processors, most));
  q.grid_inverse = static_cast<uint32_t>((uint64_t{1} << 32) / std::max(plan.grid, 2u));
  place_likely(p, q);
  return {};
}

}  // namespace moeblas::cuda
