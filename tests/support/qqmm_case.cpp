#include "support/qqmm_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <sstream>

#include "moeblas/ops.h"
#include "support/codec.h"
#include "support/generator.h"

namespace moeblas::test {
namespace {

constexpr QuantSpec kSpecs[] = {{Mode::nvfp4, 4, 16}, {Mode::mxfp4, 4, 32}, {Mode::mxfp8, 8, 32}};
constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};
constexpr int64_t kMostProducts = 120'000;

Shape joined(Shape shape, std::initializer_list<int64_t> more) {
  for (int64_t size : more) shape.push_back(size);
  return shape;
}

// Rows of a matrix; swizzled scales come in tiles of 128.
int64_t draw_rows(Random& random, bool swizzled) {
  if (random.one_in(40)) return 0;
  if (swizzled && random.one_in(3)) return random.pick<int64_t>({31, 33, 127, 128, 129, 130});
  return random.pick<int64_t>({1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 33, 45});
}

struct Batches {
  Shape x, w, lhs, rhs;
  bool has_lhs = false, has_rhs = false;
  int64_t pairs = 1;
};

Batches draw_batches(Random& random, QqmmKind kind) {
  Batches b;
  if (kind == QqmmKind::grouped) {
    b.pairs = random.one_in(30) ? 0 : random.between(1, 30);
    b.w = {random.one_in(30) ? 0 : random.between(1, 6)};
    return b;
  }
  const Shape result = random.one_in(2) ? Shape{random.one_in(30) ? 0 : random.between(1, 6)}
                                        : Shape{random.between(1, 3), random.between(1, 4)};
  b.pairs = result.numel();
  if (kind == QqmmKind::batched) {
    switch (random.below(4)) {
      case 0:
        b.pairs = 1;
        break;
      case 1:
        b.x = result;
        break;
      default:
        b.x = result;
        b.w = draw_broadcast(random, result);
        if (random.one_in(3)) std::swap(b.x, b.w);
        if (b.x.ndim() == 0) b.x = {1};
        break;
    }
    return b;
  }
  b.has_lhs = random.one_in(2);
  b.has_rhs = !random.one_in(5);
  const auto stack = [&] { return Shape{random.between(1, 7)}; };
  b.x = b.has_lhs ? stack() : draw_broadcast(random, result);
  b.w = b.has_rhs ? stack() : draw_broadcast(random, result);
  b.lhs = draw_broadcast(random, result);
  b.rhs = draw_broadcast(random, result);
  return b;
}

void draw_tensor_scale(Random& random, Values values, BlockLayout& b, int64_t matrices) {
  switch (random.below(3)) {
    case 0:
      b.tensor_scale = plain(DType::f32, {});
      break;
    case 1:
      b.tensor_scale = drawn(random, DType::f32, {matrices}, false, true);
      break;
    default:
      b.host_tensor_scale = values == Values::integers ? 0.5f : random.pick({0.25f, 0.037f, 1.7f});
      break;
  }
}

void draw_epilogue(Random& random, QqmmCase& q, int64_t n) {
  if (random.one_in(3)) return;
  const bool exact = q.values == Values::integers;
  if (random.one_in(2))
    q.alpha = exact ? random.pick({2.0f, -1.0f, 0.0f}) : random.pick({0.3f, -2.0f});
  if (random.one_in(2)) {
    q.c = drawn(random, draw_float(random), draw_broadcast(random, q.out.shape), false, true);
    q.beta = exact ? random.pick({1.0f, -2.0f, 0.0f}) : random.pick({1.0f, -0.7f, 1.9f});
  }
  if (random.one_in(2)) {
    const Shape shape = random.one_in(2) ? Shape{n} : joined(q.w.batch, {n});
    q.bias = drawn(random, draw_float(random), shape, false, true);
  }
}

TensorView shape_only(const Shape& shape) { return {nullptr, DType::f32, shape}; }

double or_zero(double v) { return std::isfinite(v) ? v : 0; }

// alpha * sum, + beta * c, + bias.
Expected with_epilogue(const Expected& sum, double alpha, double beta, const double* c,
                       const double* bias) {
  const double u = kFloat32.unit();
  const double product = alpha * sum.exact, addend = c ? beta * *c : 0, last = bias ? *bias : 0;
  Expected e;
  e.exact = product + addend + last;
  const double terms =
      std::fabs(or_zero(product)) + std::fabs(or_zero(addend)) + std::fabs(or_zero(last));
  e.magnitude = std::fabs(alpha) * sum.magnitude + std::fabs(addend) + std::fabs(last);
  e.slack = std::fabs(alpha) * sum.slack * (1 + 4 * u) + 4 * u * terms +
            4 * double{std::numeric_limits<float>::denorm_min()};
  float single = static_cast<float>(sum.single) * static_cast<float>(alpha);
  if (c) single += static_cast<float>(beta) * static_cast<float>(*c);
  if (bias) single += static_cast<float>(*bias);
  e.single = single;
  e.scatter = alpha * alpha * sum.scatter +
              u * u / 3 * (product * product + 2 * addend * addend + e.exact * e.exact);
  return e;
}

}  // namespace

QqmmCase make_qqmm_case(QqmmKind kind, uint64_t seed) {
  QqmmCase q;
  q.kind = kind;
  q.seed = seed;
  q.spec = kSpecs[seed % 3];
  DType dtype = kFloats[seed / 3 % 3];
  const bool x_packed = seed / 9 % 2 == 1, w_packed = seed / 18 % 3 != 0;
  Random random(seed * 3 + static_cast<uint64_t>(kind));
  q.values = random.pick(
      {Values::normal, Values::normal, Values::positive, Values::integers, Values::specials});
  // Scales that follow from the data are no powers of two, so sums are not exact.
  if (q.values == Values::integers && q.spec.mode == Mode::nvfp4 && !(x_packed && w_packed)) {
    q.values = Values::normal;
  }
  q.ids = random.pick({Ids::uniform, Ids::sorted, Ids::one, Ids::mixed, Ids::mixed, Ids::none});
  if (q.ids == Ids::none && !random.one_in(4)) q.ids = Ids::uniform;

  const Batches b = draw_batches(random, kind);
  const bool x_swizzled = x_packed && kind != QqmmKind::grouped && random.one_in(2);
  const bool w_swizzled = w_packed && random.one_in(2);
  const int64_t unit = q.spec.group_size;
  int64_t k = random.one_in(40) ? 0 : unit * random.pick({1, 2, 3, 4, 5, 6, 9});
  int64_t n = draw_rows(random, w_swizzled);
  int64_t m = kind == QqmmKind::grouped ? 1 : draw_rows(random, x_swizzled);
  while (b.pairs * m * n * k > kMostProducts) {
    if (k > 2 * unit) {
      k -= unit;
    } else if (m > 3) {
      m /= 2;
    } else {
      n = (n + 1) / 2;
      if (n == 1) break;
    }
  }
  if (kind == QqmmKind::grouped) {
    q.x = draw_block(random, q.spec, dtype, {}, b.pairs, k, x_packed, false);
  } else {
    q.x = draw_block(random, q.spec, dtype, b.x, m, k, x_packed, x_swizzled);
  }
  q.w = draw_block(random, q.spec, draw_float(random), b.w, n, k, w_packed, w_swizzled);
  if (q.spec.mode == Mode::nvfp4 && !random.one_in(3)) {
    draw_tensor_scale(random, q.values, q.x, b.w.numel());
    draw_tensor_scale(random, q.values, q.w, b.w.numel());
  }
  if (b.has_lhs) q.lhs = drawn(random, draw_integer(random), b.lhs, false, true);
  if (b.has_rhs) q.rhs = drawn(random, draw_integer(random), b.rhs, false, true);
  if (kind == QqmmKind::grouped) {
    q.offsets = drawn(random, random.pick({DType::i32, DType::i64}), b.w, false, true);
  }
  if (x_packed) dtype = draw_float(random);
  q.out = drawn(random, dtype, pairs_of(q, {}).out, true, false);
  draw_epilogue(random, q, n);
  q.sorted = random.one_in(2);
  q.deterministic = random.one_in(4);
  if (random.one_in(6)) q.threads = random.pick({2, 3, 8});
  return q;
}

Product pairs_of(const QqmmCase& q, const QqmmOperands& o) {
  const TensorView w = shape_only(joined(q.w.batch, {q.w.cols, q.w.rows}));
  // Before memory exists, only the shape of the result counts, and zeros do for indices.
  std::vector<std::vector<int64_t>> zeros;
  const auto index = [&](const Layout& layout, const Operand& t) -> TensorView {
    if (t.view || !layout.present) return t.view;
    zeros.emplace_back(static_cast<size_t>(layout.shape.numel()) + 1);
    return {zeros.back().data(), DType::i64, layout.shape};
  };
  if (q.kind == QqmmKind::grouped) {
    return grouped_mm_product(shape_only({q.x.rows, q.x.cols}), w, index(q.offsets, o.offsets));
  }
  const TensorView lhs = index(q.lhs, o.lhs), rhs = index(q.rhs, o.rhs);
  return gather_mm_product(shape_only(joined(q.x.batch, {q.x.rows, q.x.cols})), w, lhs, rhs);
}

QqmmOperands build(const QqmmCase& q, Side side, uint8_t poison) {
  QqmmOperands o;
  o.x = BlockOperand(q.spec, q.x, side);
  o.w = BlockOperand(q.spec, q.w, side);
  o.lhs = {q.lhs, side, kPoison};
  o.rhs = {q.rhs, side, kPoison};
  o.offsets = {q.offsets, side, kPoison};
  o.c = {q.c, side, kPoison};
  o.bias = {q.bias, side, kPoison};
  o.out = {q.out, side, poison};
  Random random(q.seed ^ 0x5deece66d1234567u);
  const bool grouped = q.kind == QqmmKind::grouped;
  if (q.lhs.present)
    fill_ids(random, random.one_in(3) ? q.ids : Ids::uniform, o.lhs, q.x.batch.numel());
  if (q.rhs.present) fill_ids(random, q.ids, o.rhs, q.w.batch.numel());
  if (grouped) fill_offsets(random, q.ids, o.offsets, q.x.rows);

  Case x_numbers, w_numbers;
  x_numbers.values = w_numbers.values = q.values;
  if (q.values == Values::specials) w_numbers.values = Values::normal;
  // Of a grouped x every row is a matrix; all rows are filled in one piece if any is used.
  const Product p = pairs_of(q, o);
  std::set<int64_t> xs, ws;
  for (const Pair& pair : p.pairs) {
    if (!pair.selected) continue;
    xs.insert(grouped ? 0 : pair.x);
    ws.insert(pair.w);
  }
  for (int64_t x : xs) o.x.fill(random, x_numbers, x);
  for (int64_t w : ws) {
    o.w.fill(random, w_numbers, w);
    o.w.fill_tensor_scale(random, q.values, w);
    o.x.fill_tensor_scale(random, q.values, w);
  }
  const int64_t n = q.w.rows, block = (grouped ? 1 : q.x.rows) * n;
  const Shape view_strides = q.c.present ? broadcast_strides(q.c, q.out.shape) : Shape();
  for (size_t i = 0; i < p.pairs.size(); ++i) {
    if (!p.pairs[i].selected) continue;
    for (int64_t j = 0; j < block && q.c.present; ++j) {
      const int64_t flat = static_cast<int64_t>(i) * block + j;
      store_value(o.c.view.data, q.c.dtype, offset_of(flat, q.out.shape, view_strides),
                  static_cast<double>(random.between(-8, 8)));
    }
    for (int64_t j = 0; j < n && q.bias.present; ++j) {
      o.bias.set(q.bias.shape.ndim() == 1 ? j : p.pairs[i].w * n + j,
                 static_cast<double>(random.between(-8, 8)));
    }
  }
  return o;
}

void call(const QqmmCase& q, const QqmmOperands& o, const Options& options) {
  switch (q.kind) {
    case QqmmKind::batched:
      return qqmm(o.x.view(), o.w.view(), o.out.view, o.epilogue(q), options);
    case QqmmKind::gathered:
      return gather_qqmm(o.x.view(), o.w.view(), o.lhs.view, o.rhs.view, q.sorted, o.out.view,
                         o.epilogue(q), options);
    case QqmmKind::grouped:
      return grouped_qqmm(o.x.view(), o.w.view(), o.offsets.view, o.out.view, o.epilogue(q),
                          options);
  }
}

std::vector<Expected> evaluate(const QqmmCase& q, const QqmmOperands& o, Path path) {
  const Product p = pairs_of(q, o);
  const bool grouped = q.kind == QqmmKind::grouped;
  const int64_t m = grouped ? 1 : q.x.rows, n = q.w.rows, k = q.w.cols;
  const Shape c_strides = q.c.present ? broadcast_strides(q.c, q.out.shape) : Shape();
  std::vector<Expected> all;
  if (m * n == 0) return all;
  for (const Pair& pair : p.pairs) {
    if (!pair.selected) {
      all.resize(all.size() + static_cast<size_t>(m * n));
      continue;
    }
    const std::vector<double>& x = o.x.values(grouped ? 0 : pair.x, o.x.tensor_scale_of(pair.w));
    const std::vector<double>& w = o.w.values(pair.w, o.w.tensor_scale_of(pair.w));
    for (int64_t i = 0; i < m; ++i) {
      const int64_t row = grouped ? pair.x : i;
      for (int64_t j = 0; j < n; ++j) {
        Accumulator sum(path, DType::f32);
        for (int64_t t = 0; t < k; ++t) {
          const double v = w[static_cast<size_t>(j * k + t)];
          sum.add(x[static_cast<size_t>(row * k + t)], v, v, 0);
        }
        double c = 0, bias = 0;
        if (q.c.present) {
          const auto flat = static_cast<int64_t>(all.size());
          c = load_value(o.c.view.data, q.c.dtype, offset_of(flat, q.out.shape, c_strides));
        }
        if (q.bias.present) bias = o.bias.get(q.bias.shape.ndim() == 1 ? j : pair.w * n + j);
        all.push_back(with_epilogue(sum.result(), q.alpha, q.beta, q.c.present ? &c : nullptr,
                                    q.bias.present ? &bias : nullptr));
      }
    }
  }
  return all;
}

namespace {

Spec infer(const QqmmCase& q, const QqmmOperands& o) {
  const DType dtype = q.out.dtype;
  switch (q.kind) {
    case QqmmKind::batched:
      return infer_qqmm(o.x.view(), o.w.view(), dtype);
    case QqmmKind::gathered:
      return infer_gather_qqmm(o.x.view(), o.w.view(), o.lhs.view, o.rhs.view, dtype);
    default:
      return infer_grouped_qqmm(o.x.view(), o.w.view(), o.offsets.view, dtype);
  }
}

// What is wrong with a result of `kernel`.
std::string judge(const QqmmCase& q, const std::string& kernel, const Result& result,
                  Agreement& agreement) {
  if (kernel.empty() != (q.out.shape.numel() == 0)) {
    return "a kernel is named for nothing to do, or none for something";
  }
  const QqmmOperands o = build(q, Side::left, kPoison);
  const Spec spec = infer(q, o);
  if (spec.dtype != q.out.dtype || !(spec.shape == q.out.shape)) {
    return "infer gives another shape or dtype";
  }
  if (kernel.empty()) return "";
  return compare(evaluate(q, o, path_of(kernel)), result.floats(0, q.out.dtype), q.out.dtype,
                 q.values == Values::integers, &agreement);
}

}  // namespace

std::string describe(const QqmmCase& q) {
  constexpr const char* kNames[] = {"qqmm", "gather_qqmm", "grouped_qqmm"};
  std::ostringstream s;
  s << kNames[static_cast<int>(q.kind)] << " " << name(q.spec.mode)
    << " values=" << kValuesNames[static_cast<int>(q.values)]
    << " ids=" << kIdsNames[static_cast<int>(q.ids)];
  const auto side = [&](const char* label, const BlockLayout& b) {
    s << " " << label << (b.packed ? b.swizzled ? "(swizzled)" : "(packed)" : "(float)")
      << text("", b.floats) << text("codes", b.codes) << text("scales", b.scales)
      << text("tensor_scale", b.tensor_scale);
    if (b.host_tensor_scale) s << " host_tensor_scale=" << *b.host_tensor_scale;
  };
  side("x", q.x);
  side("w", q.w);
  s << text("lhs", q.lhs) << text("rhs", q.rhs) << text("offsets", q.offsets) << text("c", q.c)
    << text("bias", q.bias) << " alpha=" << q.alpha << " beta=" << q.beta << text("out", q.out)
    << (q.sorted ? " sorted" : "") << (q.deterministic ? " deterministic" : "")
    << " threads=" << q.threads;
  return s.str();
}

SeededCase seeded(const QqmmCase& q) {
  const auto prepare = [q](Side side, uint8_t poison) {
    auto o = std::make_shared<QqmmOperands>(build(q, side, poison));
    Call result;
    for (const BlockOperand* b : {&o->x, &o->w}) {
      for (const Operand* t : b->operands()) result.inputs.push_back(t);
    }
    for (const Operand* t : {&o->lhs, &o->rhs, &o->offsets, &o->c, &o->bias}) {
      result.inputs.push_back(t);
    }
    result.outputs = {&o->out};
    result.run = [q, p = o.get()](const Options& options) { call(q, *p, options); };
    result.memory = o;
    return result;
  };
  return {describe(q), prepare, [q, prepare](const char* kernel) {
            Options options = forcing(kernel);
            options.deterministic = q.deterministic;
            Result result;
            Outcome outcome = run_twice(prepare, q.threads, options, result);
            if (outcome.ran())
              outcome.failure = judge(q, outcome.kernel, result, outcome.agreement);
            return outcome;
          }};
}

}  // namespace moeblas::test
