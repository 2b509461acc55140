#include "run_job.h"

#include <cmath>
#include <cstring>

#include "cpu/elements.h"

namespace moeblas::gpu {
namespace {

constexpr uint8_t kPoisons[] = {kPoison, 0x3c};  // NaN; a small number

}  // namespace

std::string difference(const Job& job, std::span<const uint8_t> a, std::span<const uint8_t> b) {
  if (a.size() != b.size()) return "the results differ in size";
  size_t at = 0;
  for (size_t i = 0; i < job.tensors.size(); ++i) {
    const Tensor& t = job.tensors[i];
    if (t.role != Role::output || !t.view.present) continue;
    const size_t width = size_of(t.view.dtype);
    for (int64_t e = 0; e < t.view.numel(); ++e, at += width) {
      if (std::memcmp(&a[at], &b[at], width) == 0) continue;
      char text[160];
      if (is_float(t.view.dtype)) {
        const float x = cpu::load_float(&a[at], t.view.dtype, 0);
        const float y = cpu::load_float(&b[at], t.view.dtype, 0);
        if (std::isnan(x) && std::isnan(y)) continue;
        std::snprintf(text, sizeof text, "tensor %zu element %lld is %.9g, expected %.9g", i,
                      static_cast<long long>(e), static_cast<double>(x), static_cast<double>(y));
      } else {
        std::snprintf(text, sizeof text, "tensor %zu element %lld is 0x%02x.., expected 0x%02x..",
                      i, static_cast<long long>(e), a[at], b[at]);
      }
      return text;
    }
  }
  return "";
}

std::vector<uint8_t> call_once(const Job& job, Lane& lane, const Block& block, Options options) {
  lane.send(block);
  options.stream = lane.stream();
  options.workspace = block.workspace(lane.base());
  options.workspace_bytes = block.workspace_bytes();
  job.call(block.views(lane.base(), lane.device()), options);
  return lane.fetch(block);
}

Outcome run_job(const Job& job, Lane& lane, const char* kernel) {
  Outcome outcome;
  Options options;
  options.kernel = kernel;
  try {
    Plan plan;
    try {
      plan = plan_on(job, lane.device(), options);
    } catch (const Error& e) {
      if (e.status() != MOEBLAS_UNSUPPORTED) throw;
      outcome.unsupported = e.what();
      return outcome;
    }
    outcome.kernel = plan.kernel;
    outcome.workspace_bytes = plan.workspace_bytes;
    const std::vector<uint8_t> cpu = run_on_cpu(job);
    std::vector<uint8_t> first;
    for (uint8_t poison : kPoisons) {
      const Block block(job, plan.workspace_bytes, poison);
      const std::vector<uint8_t> got = block.results(call_once(job, lane, block, options));
      if (poison == kPoisons[0]) {
        first = got;
      } else if (got != first) {
        outcome.failure =
            "two calls differ (memory or order show through): " + difference(job, got, first);
        return outcome;
      }
    }
    const std::string off = difference(job, first, cpu);
    outcome.same_as_cpu = off.empty();
    if (job.judge) {
      outcome.judgement = job.judge(plan.kernel, first, cpu);
      outcome.failure = outcome.judgement.failure;
    } else {
      outcome.failure = off;
    }
  } catch (const std::exception& e) {
    outcome.failure = std::string("unexpected error: ") + e.what();
  }
  return outcome;
}

Outcome judge_cpu(const Job& job) {
  Outcome outcome;
  try {
    outcome.kernel = plan_on(job, {}, {}).kernel;
    const std::vector<uint8_t> first = run_on_cpu(job), second = run_on_cpu(job);
    outcome.same_as_cpu = first == second;
    if (job.judge) outcome.judgement = job.judge(outcome.kernel, first, second);
    outcome.failure = outcome.judgement.failure;
  } catch (const std::exception& e) {
    outcome.failure = std::string("unexpected error: ") + e.what();
  }
  return outcome;
}

}  // namespace moeblas::gpu
