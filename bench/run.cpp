#include "bench/run.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <stdexcept>

#include "bench/build_info.h"
#include "bench/devices.h"
#include "bench/expand.h"
#include "bench/operations.h"
#include "bench/report.h"

namespace moeblas::bench {
namespace {

// A row that takes a case.
struct Row {
  std::string kernel;
  bool forced = false;
  Plan plan;
};

// A case with its rows and its place in the rotation of buffer sets.
struct Candidate {
  std::unique_ptr<Case> problem;
  int64_t sets = 1;
  int64_t next = 0;
  std::string chosen;  // by the library
  std::vector<Row> rows;
};

const std::vector<std::string> kAll{"all"};

class Runner {
 public:
  Runner(const Settings& settings, Run& result, const std::function<void(const Run&, size_t)>& done)
      : s_(settings), result_(result), done_(done) {
    const char* const names[] = {"native", "exact", "fast"};
    const auto* named = std::find(std::begin(names), std::end(names), s_.precision);
    if (named == std::end(names)) {
      throw std::invalid_argument("'" + s_.precision + "' is no precision: native exact fast");
    }
    options_.precision = static_cast<Precision>(named - names);
    options_.deterministic = s_.deterministic;
    result_.precision = s_.precision;
    result_.deterministic = s_.deterministic;
    result_.regime = s_.budget.regime;
    result_.commit = s_.commit.empty() ? kBuild.commit : s_.commit;
    result_.dirty = s_.commit.empty() && kBuild.dirty;
  }

  void run(Device& device) {
    const auto choose = [&](const CaseSpec& spec) -> std::string {
      try {
        return query(device, *find_operation(spec.op).make(device, spec), nullptr).kernel;
      } catch (const Error&) {
        return "";
      }
    };
    for (const std::vector<CaseSpec>& specs : expand(s_, choose)) {
      std::vector<Candidate> together;
      const int64_t room = device.memory_bytes();
      int64_t bytes = 0;
      for (const CaseSpec& spec : specs) {
        try {
          Candidate c = plan_case(device, spec);
          const int64_t needs = c.problem->footprint(c.sets);
          // What does not fit into memory together is timed one after the other.
          if (!together.empty() && bytes + needs > room) {
            time_group(device, together);
            together.clear();
            bytes = 0;
          }
          bytes += needs;
          c.problem->prepare(c.sets);
          together.push_back(std::move(c));
        } catch (const Error& e) {
          result_.skipped.push_back({describe(spec), e.what()});
        } catch (const std::bad_alloc&) {
          result_.skipped.push_back({describe(spec), "not enough memory"});
        }
      }
      time_group(device, together);
    }
  }

 private:
  Candidate plan_case(Device& device, const CaseSpec& spec) {
    Candidate c;
    c.problem = find_operation(spec.op).make(device, spec);
    find_rows(device, c);
    const int64_t rotate = s_.rotate_bytes >= 0 ? s_.rotate_bytes : 3 * device.cache_bytes();
    const int64_t bytes = std::max<int64_t>(c.problem->work().bytes(), 1);
    c.sets = std::clamp<int64_t>((rotate + bytes - 1) / bytes, 1, kMostSets);
    return c;
  }

  // What a row would do, or the library's choice for nullptr; asked without data.
  Plan query(Device& device, Case& problem, const char* kernel) const {
    Options options = options_;
    options.stream = device.stream();
    options.kernel = kernel;
    return plan([&](const Options& o) { problem.call(0, o); }, options);
  }

  void find_rows(Device& device, Candidate& c) const {
    // Arguments that no kernel takes are the case's fault, not a row's.
    const Plan chosen = query(device, *c.problem, nullptr);
    c.chosen = chosen.kernel;
    std::string why;
    const auto force = [&](const std::string& kernel) {
      const auto same = [&](const Row& row) { return row.kernel == kernel; };
      if (std::any_of(c.rows.begin(), c.rows.end(), same)) return;
      try {
        c.rows.push_back({kernel, true, query(device, *c.problem, kernel.c_str())});
      } catch (const Error& e) {
        why = e.what();
      }
    };
    for (const std::string& kernel : s_.sweep_tokens > 0 ? kAll : s_.kernels) {
      if (kernel == "chosen" || kernel == "all") c.rows.push_back({chosen.kernel, false, chosen});
      if (kernel == "all") {
        for (const moeblas_kernel& row : kernels()) {
          if (row.backend == device.kind()) force(row.name);
        }
      } else if (kernel != "chosen") {
        force(kernel);
      }
    }
    if (c.rows.empty()) throw Error(MOEBLAS_UNSUPPORTED, why);
  }

  void time_group(Device& device, std::vector<Candidate>& cases) {
    if (cases.empty()) return;
    const size_t group = result_.groups.size();
    const size_t first = result_.records.size();
    std::vector<std::unique_ptr<Timer>> timers;
    std::vector<Memory> workspaces;
    for (Candidate& c : cases) {
      for (const Row& row : c.rows) {
        const auto bytes = static_cast<int64_t>(row.plan.workspace_bytes);
        workspaces.push_back(device.allocate(bytes));
        Options options = options_;
        options.kernel = row.forced ? row.kernel.c_str() : nullptr;
        options.stream = device.stream();
        options.workspace = workspaces.back().get();
        options.workspace_bytes = row.plan.workspace_bytes;

        Record r;
        r.spec = c.problem->spec(), r.sizes = c.problem->sizes(), r.work = c.problem->work();
        r.copies = c.problem->copies(), r.pieces = c.problem->pieces();
        r.kernel = row.kernel, r.chosen = row.kernel == c.chosen, r.precision = options.precision;
        r.threads = device.kind() == "cpu" ? get_num_threads() : 0;
        r.sets = c.sets, r.workspace_bytes = bytes, r.group = group;
        // The rotation is the case's: a set that one row has just read is not the next row's.
        std::unique_ptr<Timer> timer = device.timer(
            [&c, options] {
              c.problem->call(c.next, options);
              c.next = c.next + 1 < c.sets ? c.next + 1 : 0;
            },
            c.sets);
        // What is judged is what will be timed, a replayed graph for instance.
        try {
          c.problem->poison(0);
          device.fill(options.workspace, 0xff, bytes);
          c.next = 0;
          timer->sample(timer->whole(1));
          r.verdict = c.problem->check(0, options, s_.tamper);
        } catch (const Error& e) {
          r.verdict.fail(e.what());
        }
        if (!r.verdict.right) {
          result_.wrong.push_back(std::move(r));
          continue;
        }
        result_.records.push_back(std::move(r));
        timers.push_back(std::move(timer));
      }
    }
    Group& g = result_.groups.emplace_back();
    if (!timers.empty()) {
      g.before = device.ceilings(s_.budget.regime);
      const std::vector<Samples> samples = time_interleaved(
          timers, s_.budget, device.sample_seconds(), [&](size_t timer, int64_t calls) {
            const Record& r = result_.records[first + timer];
            return floor_of(r, g).moves ? device.bandwidth(r.copies, calls * r.work.bytes()) : 0;
          });
      g.after = device.ceilings(s_.budget.regime);
      const auto change = [](double a, double b) { return std::abs(a - b) / std::max(a, b); };
      g.gap = std::max(change(g.before.read, g.after.read), change(g.before.f32, g.after.f32));
      for (size_t i = 0; i < samples.size(); ++i) result_.records[first + i].samples = samples[i];
    }
    if (done_) done_(result_, group);
  }

  const Settings& s_;
  Run& result_;
  const std::function<void(const Run&, size_t)>& done_;
  Options options_;
};

}  // namespace

std::string describe(const CaseSpec& c) {
  const Operation& op = find_operation(c.op);
  std::string text = c.op + " " + c.shape.name;
  if (c.shape.kind == Kind::moe && op.takes_projection()) text += " " + c.projection;
  if (op.takes_tokens) text += " T=" + std::to_string(c.tokens);
  if (op.takes_format) text += " " + format_name(c.format);
  if (c.scale_layout != ScaleLayout::rows) text += " swizzled";
  if (op.takes_format && c.row_pitch > 1) text += " pitch=" + std::to_string(c.row_pitch);
  text += std::string(" ") + name(c.dtype);
  if (op.takes_routing) text += std::string(" ") + name(c.routing);
  return text;
}

Floor floor_of(const Record& r, const Group& g) {
  const auto best = [&](double Ceilings::* of) { return std::max(g.before.*of, g.after.*of); };
  const Floor moves{
      static_cast<double>(r.work.bytes()) / best(r.copies ? &Ceilings::copy : &Ceilings::read),
      r.copies ? "copy" : "read", true};
  double peak = best(&Ceilings::f32);
  const char* unit = "f32";
  const auto consider = [&](double rate, const char* name) {
    if (rate > peak) peak = rate, unit = name;
  };
  // 16-bit activations may use the unit made for them, where there is one; float32 ones too, in
  // pieces, unless `exact` forbids it; what `fast` allows is faster still.
  const double bf16 = best(&Ceilings::bf16);
  if (r.spec.dtype == DType::bf16) consider(bf16, "bf16");
  if (r.spec.dtype == DType::f16) consider(best(&Ceilings::f16), "f16");
  if (r.spec.dtype == DType::f32 && r.precision != Precision::exact) {
    consider(bf16 / r.pieces, "bf16 pieces");
  }
  if (r.precision == Precision::fast) {
    if (r.spec.dtype == DType::f32) consider(bf16 / 2, "tf32");
    if (r.spec.dtype != DType::f32) consider(best(&Ceilings::fp8), "fp8");
    consider(best(&Ceilings::int8), "int8");
  }
  const double compute = static_cast<double>(r.work.flop) / peak;
  return compute > moves.seconds ? Floor{compute, unit, false} : moves;
}

Run run(const Settings& settings, const std::function<void(const Run&, size_t)>& progress) {
  Run result;
  Runner runner(settings, result, progress);
  for (const MakeDevice& make : devices(settings.device, settings.threads)) {
    const std::unique_ptr<Device> device = make();
    result.device_kind = device->kind();
    result.device_model = device->model();
    result.cache_bytes = device->cache_bytes();
    runner.run(*device);
  }
  return result;
}

bool run_and_report(const Settings& settings) {
  bool header = false;
  const Run result = run(settings, [&](const Run& so_far, size_t group) {
    if (!header) print_header(so_far);
    header = true;
    print_group(so_far, group);
  });
  print_choices(result);
  for (const Skip& skip : result.skipped) {
    std::fprintf(stderr, "skipped: %s: %s\n", skip.what.c_str(), skip.why.c_str());
  }
  for (const Record& r : result.wrong) {
    std::fprintf(stderr, "WRONG ANSWER: %s, kernel %s: %s\n", describe(r.spec).c_str(),
                 r.kernel.c_str(), r.verdict.message.c_str());
  }
  if (!settings.json_file.empty()) {
    std::ofstream file(settings.json_file);
    file << to_json(result);
    if (!file.flush()) throw std::invalid_argument("cannot write " + settings.json_file);
  }
  if (result.records.empty() && result.wrong.empty()) std::fprintf(stderr, "nothing was timed\n");
  return result.wrong.empty() && !result.records.empty();
}

}  // namespace moeblas::bench
