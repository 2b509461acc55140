// The check of the CUDA backend on a machine with a GPU; needs nothing but the library and CUDA.
//
//   gpu_check [--cases N] [--first SEED] [--threads N] [--op NAME] [--json FILE] [--commit ID]
//             [--fact KEY=VALUE] [--smallest] [--timings] [--no-checks] [--cpu]
//
// Every operation over its generated cases, through the table's own choice and forced through every
// row, against the CPU backend and float64, called and captured. --smallest: each kernel once or
// twice, for compute-sanitizer. --timings: also how fast the products are. --cpu: the jobs judge
// the CPU backend itself, on a machine without a GPU.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <thread>

#include "generated_jobs.h"
#include "moe_jobs.h"
#include "probe.h"
#include "report.h"
#include "smallest.h"
#include "support/generator.h"
#include "timing.h"

namespace moeblas::gpu {
namespace {

struct Arguments {
  uint64_t cases = 432;
  uint64_t first = 0;
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  std::string op, json, commit;
  std::vector<std::pair<std::string, std::string>> facts;  // for the JSON
  bool smallest = false, timings = false, checks = true, cpu = false;
};

// An operation as a source of jobs, and the table that its rows stand in.
struct Source {
  const char* op;
  const char* problem;
  std::function<Job(uint64_t)> make;
  double share = 1;  // of the cases
};

std::vector<Source> sources() {
  std::vector<Source> list;
  for (int i = 0; i < test::kOps; ++i) {
    const auto op = static_cast<test::Op>(i);
    list.push_back({test::name(op), test::is_product(op) ? "matmul" : "quantize",
                    [op](uint64_t seed) { return generated_job(op, seed); },
                    test::is_quantized(op) ? 1 : 0.5});
  }
  list.push_back(
      {"many pairs", "matmul", [](uint64_t seed) { return job_of(many_pairs_case(seed)); }, 0.1});
  list.push_back(
      {"decode", "matmul", [](uint64_t seed) { return job_of(test::decode_case(seed)); }, 2});
  list.push_back({"qqmm", "matmul", qqmm_job});
  list.push_back({"quantize_dual", "quantize", dual_job, 0.5});
  list.push_back({"moe_route", "route", route_job, 0.5});
  list.push_back({"moe_permute", "permute", permute_job, 0.5});
  list.push_back({"moe_unpermute", "permute", unpermute_job, 0.5});
  list.push_back({"moe_ffn", "ffn", ffn_job});
  return list;
}

std::vector<std::string> rows_of(const char* problem) {
  std::vector<std::string> rows;
  for (const moeblas_kernel& row : kernels()) {
    if (std::strcmp(row.backend, "cuda") == 0 && std::strcmp(row.problem, problem) == 0) {
      rows.push_back(row.name);
    }
  }
  return rows;
}

// The jobs of one source on several threads, each with a stream of its own.
void run_source(const Source& source, const Arguments& arguments, Report& report) {
  const std::vector<std::string> rows = rows_of(source.problem);
  const auto count = static_cast<uint64_t>(static_cast<double>(arguments.cases) * source.share);
  std::atomic<uint64_t> next{arguments.first};
  const auto work = [&] {
    std::unique_ptr<Lane> memory;
    for (;;) {
      const uint64_t seed = next.fetch_add(1);
      if (seed >= arguments.first + count) return;
      const Job job = source.make(seed);
      if (arguments.cpu) {
        report.add(job, nullptr, judge_cpu(job));
        continue;
      }
      if (!memory) memory = std::make_unique<Lane>(size_t{8} << 20);
      Lane& lane = *memory;
      const Outcome chosen = run_job(job, lane, nullptr, /*graph=*/true);
      report.add(job, nullptr, chosen);
      for (const std::string& row : rows) {
        if (row == chosen.kernel || chosen.kernel.empty()) continue;
        report.add(job, row.c_str(), run_job(job, lane, row.c_str(), seed % 4 == 0));
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < arguments.threads; ++i) threads.emplace_back(work);
  work();
  for (std::thread& t : threads) t.join();
}

void describe_machine(Report& report, const Arguments& arguments) {
  cudaDeviceProp properties;
  check_cuda(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
  report.fact("device", properties.name);
  report.fact("date", date);
  report.fact("commit", arguments.commit);
  report.fact("library", moeblas_info());
  for (const auto& [key, value] : arguments.facts) report.fact(key, value);
}

bool parse(int argc, char** argv, Arguments& a) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--smallest") {
      a.smallest = true;
    } else if (name == "--timings") {
      a.timings = true;
    } else if (name == "--no-checks") {
      a.checks = false;
    } else if (name == "--cpu") {
      a.cpu = true;
    } else if (i + 1 == argc) {
      return false;
    } else if (const char* value = argv[++i]; name == "--cases") {
      a.cases = std::strtoull(value, nullptr, 0);
    } else if (name == "--first") {
      a.first = std::strtoull(value, nullptr, 0);
    } else if (name == "--threads") {
      a.threads = std::atoi(value);
    } else if (name == "--op") {
      a.op = value;
    } else if (name == "--json") {
      a.json = value;
    } else if (name == "--commit") {
      a.commit = value;
    } else if (name == "--fact" && std::strchr(value, '=') != nullptr) {
      const char* equals = std::strchr(value, '=');
      a.facts.emplace_back(std::string(value, equals), equals + 1);
    } else {
      return false;
    }
  }
  return true;
}

int run(const Arguments& arguments) {
  Report report;
  std::printf("%s", moeblas_info());
  if (!arguments.cpu) describe_machine(report, arguments);
  set_num_threads(1);  // the CPU backend's share of each of this program's threads
  if (arguments.smallest) {
    run_smallest(report);
  } else if (arguments.checks) {
    if (!arguments.cpu) {
      check_queue(report);
      check_memory(report);
      check_calls(report);
    }
    for (const Source& source : sources()) {
      if (arguments.op.empty() || arguments.op == source.op) {
        run_source(source, arguments, report);
      }
    }
  }
  if (arguments.timings) run_timings(report);
  if (!arguments.cpu) report.kernels();
  report.print();
  if (!arguments.json.empty()) report.write(arguments.json);
  return report.failed() ? 1 : 0;
}

}  // namespace
}  // namespace moeblas::gpu

int main(int argc, char** argv) {
  moeblas::gpu::Arguments arguments;
  if (!moeblas::gpu::parse(argc, argv, arguments)) {
    std::fprintf(stderr, "gpu_check: see the top of gpu_check.cpp for its arguments\n");
    return 2;
  }
  try {
    return moeblas::gpu::run(arguments);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gpu_check: %s\n", e.what());
    return 2;
  }
}
