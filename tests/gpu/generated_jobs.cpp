#include "generated_jobs.h"

#include <array>

#include "support/codec.h"
#include "support/execute.h"
#include "support/generator.h"

namespace moeblas::gpu {
namespace {

using test::Case;
using test::Op;
using test::Operand;
using test::Operands;

struct Held {
  Case c;
  Operands o;
};

// The operands in the order of a job's tensors.
template <class O>
auto listed(O& o) {
  return std::array{&o.x,   &o.w,   &o.codes,  &o.scales, &o.biases, &o.tensor_scale,
                    &o.lhs, &o.rhs, &o.ranges, &o.out};
}

Role role_of(const Case& c, size_t i) {
  if (i == 9) return Role::output;
  if (i >= 6) return Role::ids;
  if (test::is_product(c.op)) return Role::input;
  const bool encodes = c.op == Op::quantize || c.op == Op::to_fp8;
  return (i == 0) != encodes && i <= 4 ? Role::output : Role::input;
}

Judgement judge_product(const Held& held, const std::string& kernel, std::span<const uint8_t> got) {
  const Case& c = held.c;
  if (kernel.empty()) return {};
  const auto expected =
      test::evaluate(test::product_of(c, held.o), test::path_of(kernel), c.x.dtype);
  std::vector<double> values(expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = test::load_value(got.data(), c.out.dtype, static_cast<int64_t>(i));
  }
  test::Agreement agreement;
  Judgement j;
  j.failure =
      test::compare(expected, values, c.out.dtype, c.values == test::Values::integers, &agreement);
  j.worst = agreement.worst;
  j.rms = agreement.rms;
  return j;
}

}  // namespace

Job job_of(const Case& c) {
  auto held = std::make_shared<Held>(Held{c, test::build(c, test::Side::right, test::kPoison)});
  if (!test::is_product(c.op)) test::fill_conversion(c, held->o);
  Job job;
  job.op = test::name(c.op);
  job.line = test::describe(c) + " seed=" + std::to_string(c.seed);
  const auto operands = listed(held->o);
  for (size_t i = 0; i < operands.size(); ++i) {
    const Operand& t = *operands[i];
    job.tensors.push_back({role_of(c, i), t.view, t.memory.data(), t.memory.size()});
  }
  job.call = [held](Views views, const Options& options) {
    Operands o;
    size_t i = 0;
    for (Operand* t : listed(o)) t->view = views[i++];
    o.host_tensor_scale = held->o.host_tensor_scale;
    o.spec = held->o.spec;
    Options all = options;
    all.precision = held->c.precision;
    all.deterministic = held->c.deterministic;
    test::call(held->c, o, all);
  };
  if (test::is_product(c.op)) {
    job.judge = [held](const std::string& kernel, std::span<const uint8_t> cuda,
                       std::span<const uint8_t>) { return judge_product(*held, kernel, cuda); };
  }
  job.keeps = held;
  return job;
}

Job generated_job(Op op, uint64_t seed) { return job_of(test::make_case(op, seed)); }

}  // namespace moeblas::gpu
