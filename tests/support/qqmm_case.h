// Generated cases of the block-quantized products and what they mean.
#pragma once

#include "support/block_operand.h"
#include "support/seeds.h"

namespace moeblas::test {

enum class QqmmKind { batched, gathered, grouped };

struct QqmmCase {
  QqmmKind kind = QqmmKind::batched;
  uint64_t seed = 0;
  QuantSpec spec;
  BlockLayout x, w;
  Layout lhs, rhs, offsets;
  Layout c, bias;
  float alpha = 1, beta = 0;
  Layout out;
  bool sorted = false;
  Values values = Values::normal;
  Ids ids = Ids::uniform;
  bool deterministic = false;
  int threads = 1;
};

struct QqmmOperands {
  BlockOperand x, w;
  Operand lhs, rhs, offsets, c, bias, out;

  Epilogue epilogue(const QqmmCase& q) const { return {q.alpha, q.beta, c.view, bias.view}; }
};

QqmmCase make_qqmm_case(QqmmKind kind, uint64_t seed);
std::string describe(const QqmmCase& q);

// What no index selects stays NaN: matrices, rows of c, biases.
QqmmOperands build(const QqmmCase& q, Side side, uint8_t poison);
void call(const QqmmCase& q, const QqmmOperands& o, const Options& options);

// Which matrices meet, and the shape of the result.
Product pairs_of(const QqmmCase& q, const QqmmOperands& o);
// (alpha * sum + beta * c) + bias, each operation in float32, with what four more roundings allow.
std::vector<Expected> evaluate(const QqmmCase& q, const QqmmOperands& o, Path path);

// The case from end to end (seeds.h).
SeededCase seeded(const QqmmCase& q);

}  // namespace moeblas::test
