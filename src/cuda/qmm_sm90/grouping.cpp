// The rows of a product of qmm_sm90, in the order of their matrices: lists, and staged rows.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "cuda/device.h"
#include "cuda/qmm_sm90/kernels.h"
#include "cuda/qmm_sm90/layout.h"
#include "cuda/qmm_sm90/list_params.h"
#include "cuda/qmm_sm90/parts.h"
#include "cuda/qmm_sm90/plan.h"
#include "cuda/strides.h"
#include "simt/pairs_plan.h"

namespace moeblas::cuda {

using dispatch::MatmulProblem;
using dispatch::Matrices;
using dispatch::Reason;

int64_t alignment(const Matrices& m) {
  int64_t bits = m.rows > 1 ? m.row_stride : 0;
  for (int d = 0; d < m.batch.ndim(); ++d) bits |= m.batch[d] > 1 ? m.batch_stride[d] : 0;
  bits = bits * static_cast<int64_t>(size_of(m.dtype)) |
         static_cast<int64_t>(reinterpret_cast<uintptr_t>(m.data)) | 16;
  return bits & -bits;
}

int64_t row_stride_in_place(const MatmulProblem& p) {
  const Matrices& x = p.x.values;
  if (p.grouping == dispatch::Grouping::offsets) return x.batch_stride[0];
  return p.grouping == dispatch::Grouping::none ? x.row_stride : 0;
}
bool lies_in_place(const MatmulProblem& p) {
  const Matrices& x = p.x.values;
  if (x.col_stride != 1 || alignment(x) != 16) return false;
  if (row_stride_in_place(p) < p.k || row_stride_in_place(p) % 8 != 0) return false;
  return p.grouping == dispatch::Grouping::offsets ? p.m == 1 : p.batch.numel() == 1;
}
bool reads_in_place(const MatmulProblem& p) {
  return lies_in_place(p) && (!p.w.spec || qmm_sm90_is_natural(p));
}

namespace {

// The plan's own tiles are not used.
constexpr uint32_t kPlanTile = 256;
constexpr int64_t kStageWarps = kStageThreads / 32, kBlocksPerMultiprocessor = 5;
// Loads of kPartBlocks are under way at once: parts of fewer would not be staged earlier.
constexpr int64_t kPartBlocks = 8;

// How many neighbouring pairs meet each matrix of x, as in a layer of experts; 0 where it is not
// so.
int64_t pairs_per_x(const MatmulProblem& p, const simt::PairPlan& plan) {
  if (p.grouping != dispatch::Grouping::gather || plan.source() != simt::kGroupedPairs) return 0;
  if (p.x_position.index != nullptr || p.w.values.count() > kPlaceMatrices) return 0;
  const simt::PairParams q = plan.params();
  int64_t per_x = 0;
  if (q.ndim == 1) per_x = q.x_step[0] == 1 ? 1 : q.x_step[0] == 0 ? q.pairs : 0;
  if (q.ndim == 2 && q.x_step[0] == 1 && q.x_step[1] == 0) per_x = q.shape[1];
  return per_x > kPlaceMostPairs ? 0 : per_x;
}

// From row to row of x, in elements, where products that write rows themselves take them from
// there: they multiply them in the order in which x lies, and copy whole units of 16 bytes.
std::optional<int64_t> stride_of_x(const MatmulProblem& p) {
  const Matrices& x = p.x.values;
  if (p.w.spec || x.col_stride != 1 || alignment(x) != 16 || p.k % 8 != 0) return std::nullopt;
  const std::optional<int64_t> stride = row_stride(x);
  return stride && *stride >= p.k ? stride : std::nullopt;
}

// Where things lie in the workspace.
struct Room {
  size_t lists = 0;  // of the pairs, by PairPlan
  size_t counts = 0, totals = 0, runs = 0, matrices = 0, sources = 0, out_rows = 0, staged = 0;
  size_t wider = 0;  // what is chosen of tiles
  // Of rows that the products write: x as it lies, and what they count by.
  size_t once = 0, counters = 0, placed = 0;
  uint32_t front = 0, counter_count = 0;
  bool from_x = false;  // there is nothing at `once`: they are written from x itself
  int64_t k = 0;        // of a staged row
  size_t bytes = 0;
  uint32_t blocks = 0, block_pairs = 0;  // of place_rows, or of list_pairs:
  bool listed = false;

  Room(const MatmulProblem& p, const simt::PairPlan& plan, int64_t per_x, int64_t products) {
    const int64_t rows = p.total_rows();
    int64_t staged_rows = rows;
    k = staged_k(p);
    // Boxes of rows that begin within 256 bytes took 3 % longer.
    const auto take = [&](int64_t size) {
      const size_t at = bytes;
      bytes += static_cast<size_t>(ceil_div(size, 256) * 256);
      return at;
    };
    if (per_x > 0) {
      const int64_t keys = p.w.values.count() + 1, pairs = p.batch.numel();
      const int64_t most = kPlaceMostPairs / per_x;  // of x's matrices
      const bool gathers = qmm_sm90_gathers(p, per_x, products);
      listed = gathers && pairs <= kListedPairs;
      block_pairs = static_cast<uint32_t>(
          listed ? ceil_div(ceil_div(pairs * kListedByBlock, kListedPairs), 32) * 32
                 : per_x * std::min(most,
                                    ceil_div(ceil_div(pairs, gathers ? kListBlocks : kPlaceBlocks),
                                             per_x)));
      blocks = static_cast<uint32_t>(ceil_div(pairs, block_pairs));
      front = static_cast<uint32_t>(qmm_sm90_front(p, per_x, products));
      if (!listed) {
        counts = take(keys * ceil_div(blocks, kStageWarps) * kStageWarps * 4);
        totals = take(keys * ceil_div(blocks, kStageWarps) * 4);
      }
      runs = take((keys + 2) * 4);
      matrices = take(keys * 4);
      wider = take(4);
      if (gathers) {
        sources = take(rows * 4);
        staged_rows = rows / per_x;
      }
      if (front > 0) {
        counter_count = static_cast<uint32_t>(1 + ceil_div(rows, kReadyRows));
        sources = take(rows * 4);
        counters = take(counter_count * 4);
        placed = take(2 * keys * 4);
        from_x = stride_of_x(p).has_value();
        if (from_x) k = p.k;
        once = take(from_x ? 0 : rows / per_x * k * 2);
      }
    } else {
      lists = take(static_cast<int64_t>(plan.workspace()));
      wider = take(plan.source() == simt::kOnePair ? 0 : 4);
    }
    out_rows = take(rows * 8);
    staged = take(reads_in_place(p) ? 0 : staged_rows * k * 2);
  }
};

StagedRows staged_rows(const MatmulProblem& p, uint8_t* staged) {
  const Matrices& x = p.x.values;
  StagedRows s{};
  s.x = static_cast<const uint8_t*>(x.data);
  s.staged = staged;
  s.col_stride = x.col_stride;
  s.k = static_cast<uint32_t>(p.k);
  s.staged_k = static_cast<uint32_t>(staged_k(p));
  s.wide = x.col_stride == 1 && alignment(x) == 16 && p.k % 8 == 0;
  return s;
}

// By the order in which the weights decode.
std::string staging(const char* what, const MatmulProblem& p) {
  const int bits = p.w.spec ? p.w.spec->bits : 16;
  return std::string(what) + (bits == 16  ? "natural"
                              : bits == 4 ? "nibbles"
                              : bits == 8 ? "bytes"
                                          : "neighbours");
}

// Which tiles the device may choose, or what all tiles are where rows follow them.
WiderTiles wider_tiles(const MatmulProblem& p, int64_t products, uint32_t* chosen, bool ahead) {
  WiderTiles t{};
  if (ahead) {
    const QmmSm90Kernel& kernel = *qmm_sm90_ahead(p, products);
    t.base = kernel.tokens;
    t.least = kernel.least_tokens;
  }
  if (const QmmSm90Either* either = qmm_sm90_either(p, ahead)) {
    t.chosen = chosen;
    t.base = either->wider.tokens - either->wider.extra;
    t.least = either->wider.least_tokens;
    t.extra = either->wider.extra;
    t.step = either->wider.extra_step;
    t.loss = either->loss;
  }
  return t;
}

// An id's bytes, where ids are words side by side.
uint32_t id_bytes(const PlaceRowsParams& q) {
  const bool in_order = q.w_steps[1] == 1 && q.w_steps[0] == q.top_k;
  const int32_t type = q.pairs.w_index_type;
  if (!in_order) return 0;
  if (type == simt::kI32 || type == simt::kU32) return 4;
  return type == simt::kI64 || type == simt::kU64 ? 8 : 0;
}

// What who lists the pairs of an expert layer is told.
ListPairsParams lists_of(const MatmulProblem& p, const simt::PairPlan& plan, int64_t per_x,
                         int64_t products, uint8_t* base, const Room& at, const RowsAhead& ahead) {
  ListPairsParams q{};
  q.pairs = plan.params();
  q.rows = staged_rows(p, base + (at.front > 0 ? at.once : at.staged));
  if (at.front > 0) {
    q.front_from = ahead.from;
    q.front = ahead.to;
    q.front_from_chunks = ahead.from_pitch / 16;
    q.front_chunks = ahead.row_bytes / 16;
    q.front_rows = at.front;
    q.zeros = reinterpret_cast<uint32_t*>(base + at.counters);
    q.zero_count = at.counter_count;
    q.placed = reinterpret_cast<uint32_t*>(base + at.placed);
    q.out_rows_by_runs = products > 1;
  }
  q.w_index = static_cast<const uint8_t*>(plan.w_index());
  q.counts = reinterpret_cast<uint32_t*>(base + at.counts);
  q.totals = reinterpret_cast<uint32_t*>(base + at.totals);
  q.runs = reinterpret_cast<uint32_t*>(base + at.runs);
  q.matrices = reinterpret_cast<int32_t*>(base + at.matrices);
  q.out_rows = reinterpret_cast<int64_t*>(base + at.out_rows);
  if (at.sources > 0) q.sources = reinterpret_cast<uint32_t*>(base + at.sources);
  q.out = static_cast<uint8_t*>(p.out.data);
  q.row_stride = p.x.values.row_stride;
  q.out_row_stride = p.out.row_stride;
  q.rows_per_pair = static_cast<uint32_t>(p.m);
  q.top_k = static_cast<uint32_t>(per_x);
  q.n = static_cast<uint32_t>(p.n);
  q.blocks = at.blocks;
  q.block_pairs = at.block_pairs;
  // One dimension, or two, the second of the pairs that meet a matrix of x (pairs_per_x).
  const auto steps = [&](const int64_t(&of)[simt::kMaxDims], int64_t(&to)[2]) {
    if (q.pairs.ndim == 0) return;
    to[1] = of[q.pairs.ndim - 1];
    to[0] = q.pairs.ndim == 2 ? of[0] : per_x * of[0];
  };
  steps(q.pairs.w_step, q.w_steps);
  steps(q.pairs.out_step, q.out_steps);
  q.wider = wider_tiles(p, products, reinterpret_cast<uint32_t*>(base + at.wider), at.front > 0);
  if (at.listed) q.id_bytes = id_bytes(q);
  return q;
}

// Groups the pairs of an expert layer, and stages the rows of x: as they lie, where the products
// gather them, or in the order of their matrices.
void place(const MatmulProblem& p, int64_t per_x, const Room& at, ListPairsParams q, Queue& queue) {
  const int64_t blocks = staged_k(p) / kBlockK, x_rows = p.total_rows() / per_x;
  q.part_blocks = static_cast<uint32_t>(std::min(blocks, kPartBlocks));
  q.row_parts = static_cast<uint32_t>(ceil_div(blocks, q.part_blocks));
  const int64_t parts = x_rows * q.row_parts;
  if (at.listed) {
    // It reads several at once.
    if (reinterpret_cast<uintptr_t>(q.w_index) % 16 != 0) q.id_bytes = 0;
    q.counters = at.blocks + 1;
    // All of them at once, so that few parts are staged by as many blocks.
    const int64_t room = kListBlocksAtOnce * multiprocessors(p.device.id) - q.counters;
    const int64_t stagers = std::clamp<int64_t>(room, 1, parts);
    queue.run(staging("list_pairs_", p).c_str(), q.counters + static_cast<uint32_t>(stagers),
              kListThreads, 0, q);
  } else {
    q.counters = static_cast<uint32_t>(ceil_div(at.blocks, kStageWarps));
    const int64_t stagers = std::min(ceil_div(parts, kStageWarps),
                                     kBlocksPerMultiprocessor * multiprocessors(p.device.id));
    const PlaceRowsParams& both = q;
    queue.run(staging("count_pairs_", p).c_str(),
              q.counters + static_cast<uint32_t>(at.sources > 0 && !at.from_x ? stagers : 0),
              kStageThreads, 0, both);
    queue.run_early(at.front > 0 ? "place_front" : staging("place_rows_", p).c_str(),
                    at.blocks + (q.wider.chosen != nullptr && at.front == 0 ? 1 : 0), kStageThreads,
                    0, both);
  }
}
Runs runs_of(const ListPairsParams& q) {
  Runs runs{};
  runs.runs = q.runs;
  runs.matrices = q.matrices;
  runs.rows_per_pair = q.rows_per_pair;
  runs.wider = q.wider.chosen;
  return runs;
}

// Stages the rows of all pairs in the order of their matrices.
Runs stage(const MatmulProblem& p, const simt::PairPlan& plan, uint8_t* base, const Room& at,
           QmmZeros zeros, Queue& queue) {
  const simt::PairLists lists = plan.run(base + at.lists, queue);
  StageRowsParams q{};
  q.rows = staged_rows(p, reads_in_place(p) ? nullptr : base + at.staged);
  q.runs.rows_per_pair = static_cast<uint32_t>(p.m);
  q.runs.pair_count = static_cast<uint32_t>(p.batch.numel());
  if (plan.source() != simt::kOnePair) {
    q.runs.pairs = lists.pairs;
    q.runs.order = lists.order;
    q.runs.runs = lists.runs;
    q.wider = wider_tiles(p, 1, reinterpret_cast<uint32_t*>(base + at.wider), false);
    q.runs.wider = q.wider.chosen;
  }
  q.out_rows = reinterpret_cast<int64_t*>(base + at.out_rows);
  q.out = static_cast<uint8_t*>(p.out.data);
  q.row_stride = p.x.values.row_stride;
  q.out_row_stride = p.out.row_stride;
  q.row_count = static_cast<uint32_t>(p.total_rows());
  q.n = static_cast<uint32_t>(p.n);
  q.zeros = zeros.data;
  q.zero_count = zeros.count;
  const int64_t choosers = q.wider.chosen != nullptr ? 1 : 0;
  const int64_t most = kBlocksPerMultiprocessor * multiprocessors(p.device.id) - choosers;
  const int64_t blocks = staged_k(p) / kBlockK;
  const int64_t parts = q.rows.staged == nullptr
                            ? 1
                            : std::clamp<int64_t>(most * kStageWarps / p.total_rows(), 1,
                                                  ceil_div(blocks, kPartBlocks));
  q.part_blocks = static_cast<uint32_t>(ceil_div(blocks, parts));
  q.row_parts = static_cast<uint32_t>(ceil_div(blocks, q.part_blocks));
  const int64_t stagers =
      std::min(ceil_div(p.total_rows() * int64_t{q.row_parts}, kStageWarps), most);
  queue.run_early(staging("stage_rows_", p).c_str(), static_cast<uint32_t>(stagers + choosers),
                  kStageThreads, 0, q);
  return q.runs;
}

}  // namespace

Reason QmmGrouping::why_not(const MatmulProblem& p) {
  return simt::PairPlan(p, kPlanTile).why_not();
}
Reason QmmGrouping::why_not(const MatmulProblem& p, int64_t per_token) {
  if (p.w.values.count() > kPlaceMatrices) {
    return Reason::of("%lld matrices, more than %u", static_cast<long long>(p.w.values.count()),
                      kPlaceMatrices);
  }
  if (per_token > kPlaceMostPairs) {
    return Reason::of("%lld matrices for a row of x, more than %u",
                      static_cast<long long>(per_token), kPlaceMostPairs);
  }
  return why_not(p);
}

QmmGrouping::QmmGrouping(const MatmulProblem& p)
    : QmmGrouping(p, pairs_per_x(p, simt::PairPlan(p, kPlanTile)), 1) {}
QmmGrouping::QmmGrouping(const MatmulProblem& p, int64_t per_token, int64_t products) {
  const Room at(p, simt::PairPlan(p, kPlanTile), per_token, products);
  staged = at.staged;
  bytes = at.bytes;
}

QmmRows group_rows(const MatmulProblem& p, uint8_t* workspace, Queue& queue, QmmZeros zeros,
                   QmmLists lists) {
  return group_rows(p, pairs_per_x(p, simt::PairPlan(p, kPlanTile)), 1, workspace, queue, zeros,
                    lists);
}
QmmRows group_rows(const MatmulProblem& p, int64_t per_token, int64_t products, uint8_t* workspace,
                   Queue& queue, QmmZeros zeros, QmmLists lists) {
  const simt::PairPlan plan(p, kPlanTile);
  const Room at(p, plan, per_token, products);
  QmmRows rows;
  rows.out_rows = reinterpret_cast<const int64_t*>(workspace + at.out_rows);
  const bool in_place = reads_in_place(p);
  rows.staged = in_place ? static_cast<const uint8_t*>(p.x.values.data) : workspace + at.staged;
  rows.k = in_place ? p.k : at.k;
  rows.stride = in_place ? row_stride_in_place(p) : at.k;
  if (at.sources > 0) rows.sources = reinterpret_cast<const uint32_t*>(workspace + at.sources);
  if (at.front > 0) {
    RowsAhead& ahead = rows.ahead;
    ahead.from = at.from_x ? static_cast<const uint8_t*>(p.x.values.data) : workspace + at.once;
    ahead.to = workspace + at.staged;
    ahead.sources = std::exchange(rows.sources, nullptr);
    ahead.placed = reinterpret_cast<const uint32_t*>(workspace + at.placed);
    ahead.from_pitch = static_cast<uint64_t>(at.from_x ? *stride_of_x(p) : at.k) * 2;
    ahead.row_bytes = static_cast<uint32_t>(at.k * 2);
    ahead.first = at.front;
    ahead.claimed = reinterpret_cast<uint32_t*>(workspace + at.counters);
    ahead.ready = ahead.claimed + 1;
  }
  if (per_token == 0) {
    rows.runs = stage(p, plan, workspace, at, zeros, queue);
    return rows;
  }
  const ListPairsParams q = lists_of(p, plan, per_token, products, workspace, at, rows.ahead);
  rows.runs = runs_of(q);
  // Where tiles are to be chosen, more than lists are wanted.
  if (lists == QmmLists::left && q.id_bytes != 0 && q.wider.chosen == nullptr) {
    rows.left = q;
  } else {
    place(p, per_token, at, q, queue);
  }
  return rows;
}

}  // namespace moeblas::cuda
