#include "check.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <thread>

#include "generated_jobs.h"
#include "moe_jobs.h"
#include "support/generator.h"

namespace moeblas::gpu {
namespace {

struct Arguments {
  uint64_t cases = 432;
  uint64_t first = 0;
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  std::string op, row, json, commit;
  std::vector<std::pair<std::string, std::string>> facts;  // for the JSON
  Part part;
  bool smallest = false, launches = false, checks = true, cpu = false, rows = false;
};

// An operation as a source of jobs, and the table that its rows stand in.
struct Source {
  const char* op;
  const char* problem;
  std::function<Job(uint64_t)> make;
  double share = 1;  // of the cases, unless it is asked for by name
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
  list.push_back({"few rows", "matmul",
                  [](uint64_t seed) { return job_of(test::few_rows_case(seed, kBlocks)); }, 0.2});
  list.push_back(
      {"few of one", "matmul", [](uint64_t seed) { return job_of(few_of_one_case(seed)); }, 0.2});
  list.push_back({"few of experts", "matmul",
                  [](uint64_t seed) { return job_of(few_of_experts_case(seed)); }, 0.2});
  list.push_back({"few by slices", "matmul",
                  [](uint64_t seed) { return job_of(few_by_slices_case(seed)); }, 0.1});
  list.push_back(
      {"many tiles", "matmul", [](uint64_t seed) { return job_of(many_tiles_case(seed)); }, 0.5});
  list.push_back(
      {"segments", "matmul", [](uint64_t seed) { return job_of(segments_case(seed)); }, 0.5});
  list.push_back({"qqmm", "matmul", qqmm_job});
  list.push_back({"quantize_dual", "quantize", dual_job, 0.5});
  list.push_back({"quantize_swizzled", "quantize", swizzled_job, 0.5});
  list.push_back({"moe_route", "route", route_job, 0.5});
  list.push_back({"moe_permute", "permute", permute_job, 0.5});
  list.push_back({"moe_unpermute", "permute", unpermute_job, 0.5});
  list.push_back({"moe_ffn", "ffn", ffn_job});
  list.push_back({"long moe_ffn", "ffn", long_ffn_job, 0.1});
  list.push_back({"deep moe_ffn", "ffn", deep_ffn_job, 0.1});
  list.push_back({"held moe_ffn", "ffn", held_ffn_job, 0.1});
  return list;
}

std::vector<std::string> rows_of(const char* backend, const char* problem) {
  std::vector<std::string> rows;
  for (const moeblas_kernel& row : kernels()) {
    if (std::strcmp(row.backend, backend) == 0 && std::strcmp(row.problem, problem) == 0) {
      rows.push_back(row.name);
    }
  }
  return rows;
}

// The jobs of one source on several threads, each with a lane of its own.
void run_source(const Machine& machine, const Source& source, const Arguments& arguments,
                Report& report) {
  const std::vector<std::string> rows = rows_of(machine.backend, source.problem);
  const auto count = static_cast<uint64_t>(static_cast<double>(arguments.cases) *
                                           (arguments.op.empty() ? source.share : 1));
  std::atomic<uint64_t> next{arguments.first};
  const auto work = [&](uint64_t thread) {
    std::unique_ptr<Lane> memory;
    for (;;) {
      const uint64_t seed = next.fetch_add(1);
      if (seed >= arguments.first + count) return;
      const Job job = source.make(seed);
      if (arguments.cpu) {
        report.add(job, nullptr, judge_cpu(job));
        continue;
      }
      if (!memory) memory = machine.make_lane(thread);
      Lane& lane = *memory;
      const Outcome chosen = machine.run(job, lane, nullptr, /*all=*/true);
      report.add(job, nullptr, chosen);
      for (const std::string& row : rows) {
        if (!arguments.row.empty() && row != arguments.row) continue;
        if (row == chosen.kernel || chosen.kernel.empty()) continue;
        report.add(job, row.c_str(), machine.run(job, lane, row.c_str(), seed % 4 == 0));
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < arguments.threads; ++i) threads.emplace_back(work, i);
  work(0);
  for (std::thread& t : threads) t.join();
}

std::string today() {
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
  return date;
}

bool parse(int argc, char** argv, Arguments& a) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--smallest") {
      a.smallest = true;
    } else if (name == "--launches") {
      a.launches = true;
    } else if (name == "--no-checks") {
      a.checks = false;
    } else if (name == "--cpu") {
      a.cpu = true;
    } else if (name == "--rows") {
      a.rows = true;
    } else if (i + 1 == argc) {
      return false;
    } else if (const char* value = argv[++i]; name == "--cases") {
      a.cases = std::strtoull(value, nullptr, 0);
    } else if (name == "--first") {
      a.first = std::strtoull(value, nullptr, 0);
    } else if (name == "--part") {
      unsigned part = 0;
      if (std::sscanf(value, "%u/%u", &part, &a.part.count) != 2) return false;
      if (part == 0 || part > a.part.count) return false;
      a.part.first = part - 1;
    } else if (name == "--threads") {
      a.threads = std::atoi(value);
    } else if (name == "--op") {
      a.op = value;
    } else if (name == "--row") {
      a.row = value;
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

int run(const Machine& machine, const Arguments& arguments) {
  if (arguments.rows) {
    for (const moeblas_kernel& row : kernels()) {
      if (std::strcmp(row.backend, machine.backend) == 0) std::printf("%s\n", row.name);
    }
    return 0;
  }
  Report report;
  std::printf("%s", moeblas_info());
  bool usable = true;
  if (!arguments.cpu) {
    usable = machine.describe(report);
    report.fact("date", today());
    report.fact("commit", arguments.commit);
    report.fact("library", moeblas_info());
    for (const auto& [key, value] : arguments.facts) report.fact(key, value);
  }
  set_num_threads(1);  // the CPU backend's share of each of this program's threads
  if (!usable) {
    report.check("there is a device", "no");
  } else if (arguments.smallest && machine.smallest != nullptr) {
    machine.smallest(report, arguments.row, arguments.part, !arguments.launches);
  } else {
    if (arguments.checks && !arguments.cpu && machine.check != nullptr) machine.check(report);
    for (const Source& source : sources()) {
      if (arguments.op.empty() || arguments.op == source.op) {
        run_source(machine, source, arguments, report);
      }
    }
  }
  if (usable && !arguments.cpu) {
    report.kernels(machine.for_each_kernel, arguments.launches);
  }
  report.print();
  if (!arguments.json.empty()) report.write(arguments.json);
  return report.failed() ? 1 : 0;
}

}  // namespace

int run_check(int argc, char** argv, const Machine& machine) {
  Arguments arguments;
  if (!parse(argc, argv, arguments)) {
    std::fprintf(stderr, "%s: see tests/gpu/check.h for its arguments\n", machine.program);
    return 2;
  }
  try {
    return run(machine, arguments);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: %s\n", machine.program, e.what());
    return 2;
  }
}

}  // namespace moeblas::gpu
