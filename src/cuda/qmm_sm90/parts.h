// The parts of a call of qmm_sm90, for a row that makes several products of the same rows.
#pragma once

#include <optional>

#include "cuda/qmm_sm90/list_params.h"
#include "cuda/queue.h"
#include "dispatch/problem.h"
#include "dispatch/row.h"

namespace moeblas::cuda {

// Rows of x in the order of their matrices, as the products read them.
struct QmmRows {
  Runs runs{};
  const int64_t* out_rows = nullptr;  // where each goes, in elements of out
  const uint8_t* staged = nullptr;
  int64_t k = 0, stride = 0;          // of a staged row and from row to row, in elements
  const uint32_t* sources = nullptr;  // which staged row each is; null: itself
  RowsAhead ahead{};                  // of `staged`, by the first product
  // Lists that are left to the first product, which finds rows in x: nothing is staged.
  std::optional<ListPairsParams> left;
};

// The rows of a problem; or of an expert layer, `per_token` pairs of the batch to each matrix of x,
// which meet `products` matrices of p.n rows each.
// Where they go is p.out's to say; without data it stays as it is for pairs without a matrix.
struct QmmGrouping {
  size_t staged = 0;  // where in the workspace the staged rows lie: behind all else
  size_t bytes = 0;

  explicit QmmGrouping(const dispatch::MatmulProblem& p);
  QmmGrouping(const dispatch::MatmulProblem& p, int64_t per_token, int64_t products);
  static dispatch::Reason why_not(const dispatch::MatmulProblem& p);
  static dispatch::Reason why_not(const dispatch::MatmulProblem& p, int64_t per_token);
};
// Memory to be made zeros on the way, where all rows are one matrix's of x.
struct QmmZeros {
  uint32_t* data = nullptr;
  uint32_t count = 0;
};
// Whether a launch lists the pairs of a layer of experts, or a product does, if they are as few as
// list_pairs takes and their ids of 32 or 64 bits lie side by side.
enum class QmmLists : uint8_t { launched, left };
QmmRows group_rows(const dispatch::MatmulProblem& p, uint8_t* workspace, Queue& queue,
                   QmmZeros zeros = {}, QmmLists lists = QmmLists::launched);
QmmRows group_rows(const dispatch::MatmulProblem& p, int64_t per_token, int64_t products,
                   uint8_t* workspace, Queue& queue, QmmZeros zeros = {},
                   QmmLists lists = QmmLists::launched);

// The product of rows that are staged, after which a call is done.
void multiply_rows(const dispatch::MatmulProblem& p, const QmmRows& rows, Queue& queue);

// From a layer's upper rows' scales and biases to the lower ones', in bytes.
struct LowerScales {
  int64_t scales = 0, biases = 0;
};

// A product of rows that are grouped.
struct QmmProduct {
  const char* format;  // what kernels are named for, behind their kind; null: no layer's
  uint32_t rows;       // of w, in a block
  uint32_t threads, shared_bytes;
  uint32_t code_blocks;  // of K, in a copy of codes
  bool nibbles;          // the order of K in staged rows: NibbleOrder or ByteOrder
  bool either;           // the device chooses between tiles, of which `wider` is for the wider ones
  QmmSm90Params params, wider;
  RowsAhead ahead;  // by kernels that write rows themselves, where there are such

  // Without tensor maps and addresses of x where `rows` is null: for plans that are asked about.
  QmmProduct(const dispatch::MatmulProblem& p, const QmmRows* rows, const LowerScales& lower = {});
  // set(params), of all that the kernel has.
  template <class Set>
  void set(const Set& set) {
    set(params);
    if (either) set(wider);
  }
  // As a layer's first product, or as its second one right behind its first. That looks at the runs
  // before it waits for the first: where that one lists them, it does not begin early.
  enum class Which : uint8_t { first, second, second_behind_lists };
  void run(Which which, int32_t device, Queue& queue) const;
};

}  // namespace moeblas::cuda
