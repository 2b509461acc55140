#include "bench/run.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>

#include "bench/build_info.h"
#include "bench/devices.h"
#include "bench/operations.h"
#include "bench/report.h"

namespace moeblas::bench {
namespace {

// The position of a word in a list of names; throws with the list.
template <class Names>
int position(const Names& names, const std::string& word, const char* what) {
  int i = 0;
  std::string known;
  for (const char* candidate : names) {
    if (word == candidate) return i;
    known += std::string(" ") + candidate;
    ++i;
  }
  throw std::invalid_argument("'" + word + "' is no " + what + ":" + known);
}

DType parse_dtype(const std::string& word) {
  const DType dtypes[] = {DType::f32, DType::f16, DType::bf16};
  const char* const names[] = {"float32", "float16", "bfloat16"};
  return dtypes[position(names, word, "dtype")];
}

std::vector<ShapeEntry> load_shapes(const Settings& s) {
  if (s.shapes_file.empty()) return parse_shapes(builtin_shapes());
  std::ifstream file(s.shapes_file);
  if (!file) throw std::invalid_argument("cannot read " + s.shapes_file);
  std::stringstream text;
  text << file.rdbuf();
  return parse_shapes(text.str());
}

// The wanted shapes of the kinds that an operation takes; none wanted: the first of them.
std::vector<ShapeEntry> shapes_for(const Settings& s, const std::vector<ShapeEntry>& all,
                                   const Operation& op) {
  std::vector<ShapeEntry> found;
  const auto fits = [&](const ShapeEntry& e) { return (op.kinds & kind_bit(e.kind)) != 0; };
  if (s.shapes.empty()) {
    const auto first = std::find_if(all.begin(), all.end(), fits);
    if (first != all.end()) found.push_back(*first);
  }
  for (const std::string& wanted : s.shapes) {
    for (const ShapeEntry& entry : find_shapes(all, wanted)) {
      if (fits(entry)) found.push_back(entry);
    }
  }
  return found;
}

std::vector<QuantSpec> formats_for(const Settings& s, const Operation& op, const ShapeEntry& e) {
  if (!op.takes_format) return {e.format.resolved()};
  std::vector<QuantSpec> formats;
  const auto vary = [&](Mode mode) {
    for (int bits : s.bits) {
      for (int group : s.group_sizes) formats.push_back(QuantSpec{mode, bits, group}.resolved());
    }
  };
  if (s.modes.empty()) {
    const bool as_stored = s.bits == std::vector{0} && s.group_sizes == std::vector{0};
    if (as_stored) return {e.format.resolved()};
    vary(e.format.mode);
  }
  for (const std::string& mode : s.modes) {
    const auto* known = std::find(std::begin(kModeNames), std::end(kModeNames), mode);
    if (known != std::end(kModeNames)) {
      vary(static_cast<Mode>(known - std::begin(kModeNames)));
    } else {
      formats.push_back(parse_format(mode));  // affine8g32 and the like
    }
  }
  return formats;
}

// The groups: cases of one operation, shape and number of tokens are timed side by side.
std::vector<std::vector<CaseSpec>> expand(const Settings& s) {
  const std::vector<ShapeEntry> all = load_shapes(s);
  for (const std::string& wanted : s.shapes) find_shapes(all, wanted);
  std::vector<std::vector<CaseSpec>> groups;
  for (const std::string& op_name : s.ops) {
    const Operation& op = find_operation(op_name);
    for (const ShapeEntry& entry : shapes_for(s, all, op)) {
      for (int64_t tokens : op.takes_tokens ? s.tokens : std::vector<int64_t>{1}) {
        std::vector<CaseSpec>& group = groups.emplace_back();
        for (const QuantSpec& format : formats_for(s, op, entry)) {
          for (const std::string& dtype : s.dtypes) {
            for (const std::string& routing :
                 op.takes_routing ? s.routings : std::vector<std::string>{"uniform"}) {
              CaseSpec c;
              c.op = op.name, c.shape = entry, c.projection = s.projection, c.tokens = tokens;
              c.format = format, c.dtype = parse_dtype(dtype);
              c.scale_dtype = parse_dtype(s.scale_dtype);
              c.routing = static_cast<Routing>(position(kRoutingNames, routing, "routing"));
              c.seed = s.seed;
              product_shape(entry, s.projection);
              group.push_back(std::move(c));
            }
          }
        }
      }
    }
  }
  return groups;
}

// A case with its kernels and its place in the rotation of buffer sets.
struct Candidate {
  std::unique_ptr<Case> problem;
  int64_t sets = 1;
  int64_t next = 0;
  std::vector<std::pair<std::string, Plan>> kernels;
};

class Runner {
 public:
  Runner(const Settings& settings, Run& result, const std::function<void(const Run&, size_t)>& done)
      : s_(settings), result_(result), done_(done) {
    const char* const names[] = {"native", "exact", "fast"};
    options_.precision = static_cast<Precision>(position(names, s_.precision, "precision"));
    options_.deterministic = s_.deterministic;
    result_.precision = s_.precision;
    result_.deterministic = s_.deterministic;
    result_.regime = s_.budget.regime;
    result_.commit = s_.commit.empty() ? kBuild.commit : s_.commit;
    result_.dirty = s_.commit.empty() && kBuild.dirty;
  }

  void run(Device& device, const std::vector<std::vector<CaseSpec>>& groups) {
    for (const std::vector<CaseSpec>& specs : groups) {
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
    find_kernels(device, c);
    const int64_t rotate = s_.rotate_bytes >= 0 ? s_.rotate_bytes : 3 * device.cache_bytes();
    constexpr int64_t kMostSets = 8192;
    const int64_t bytes = std::max<int64_t>(c.problem->work().bytes(), 1);
    c.sets = std::clamp<int64_t>((rotate + bytes - 1) / bytes, 1, kMostSets);
    return c;
  }

  // Asks the library, without data.
  void find_kernels(Device& device, Candidate& c) {
    Options options = options_;
    options.stream = device.stream();
    const auto query = [&](const char* kernel) {
      options.kernel = kernel;
      return plan([&](const Options& o) { c.problem->call(0, o); }, options);
    };
    // Arguments that no kernel takes are the case's fault, not a row's.
    const Plan chosen = query(nullptr);
    std::vector<std::string> wanted;
    for (const std::string& kernel : s_.kernels) {
      if (kernel == "chosen") {
        wanted.push_back(chosen.kernel);
      } else if (kernel == "all") {
        for (const moeblas_kernel& row : kernels()) {
          if (row.backend == device.kind()) wanted.emplace_back(row.name);
        }
      } else {
        wanted.push_back(kernel);
      }
    }
    std::string why;
    for (const std::string& kernel : wanted) {
      const auto same = [&](const auto& known) { return known.first == kernel; };
      if (std::any_of(c.kernels.begin(), c.kernels.end(), same)) continue;
      try {
        c.kernels.emplace_back(kernel, query(kernel.c_str()));
      } catch (const Error& e) {
        why = e.what();
      }
    }
    if (c.kernels.empty()) throw Error(MOEBLAS_UNSUPPORTED, why);
  }

  void time_group(Device& device, std::vector<Candidate>& cases) {
    if (cases.empty()) return;
    const size_t group = result_.groups.size();
    const size_t first = result_.records.size();
    std::vector<std::unique_ptr<Timer>> timers;
    std::vector<Memory> workspaces;
    for (Candidate& c : cases) {
      for (const auto& [kernel, plan] : c.kernels) {
        const auto bytes = static_cast<int64_t>(plan.workspace_bytes);
        workspaces.push_back(device.allocate(bytes));
        Options options = options_;
        options.kernel = kernel.empty() ? nullptr : kernel.c_str();
        options.stream = device.stream();
        options.workspace = workspaces.back().get();
        options.workspace_bytes = plan.workspace_bytes;

        Record r;
        r.spec = c.problem->spec(), r.sizes = c.problem->sizes(), r.work = c.problem->work();
        r.copies = c.problem->copies(), r.pieces = c.problem->pieces();
        r.kernel = kernel, r.precision = options.precision;
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
        c.problem->poison(0);
        device.fill(options.workspace, 0xff, bytes);
        c.next = 0;
        timer->sample(timer->whole(1));
        r.verdict = c.problem->check(0, options, s_.tamper);
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
      const std::vector<Samples> samples =
          time_interleaved(timers, s_.budget, device.sample_seconds());
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
  if (c.shape.kind == Kind::moe) text += " " + c.projection;
  if (op.takes_tokens) text += " T=" + std::to_string(c.tokens);
  if (op.takes_format) text += " " + format_name(c.format);
  text += std::string(" ") + name(c.dtype);
  if (op.takes_routing) text += std::string(" ") + name(c.routing);
  return text;
}

Floor floor_of(const Record& r, const Group& g) {
  const auto best = [&](double Ceilings::* of) { return std::max(g.before.*of, g.after.*of); };
  const Floor moves{
      static_cast<double>(r.work.bytes()) / best(r.copies ? &Ceilings::copy : &Ceilings::read),
      r.copies ? "copy" : "read"};
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
  }
  const double compute = static_cast<double>(r.work.flop) / peak;
  return compute > moves.seconds ? Floor{compute, unit} : moves;
}

Run run(const Settings& settings, const std::function<void(const Run&, size_t)>& progress) {
  Run result;
  const std::vector<std::vector<CaseSpec>> groups = expand(settings);
  Runner runner(settings, result, progress);
  for (const MakeDevice& make : devices(settings.device, settings.threads)) {
    const std::unique_ptr<Device> device = make();
    result.device_kind = device->kind();
    result.device_model = device->model();
    result.cache_bytes = device->cache_bytes();
    runner.run(*device, groups);
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

void print_list(const Settings& settings) {
  std::puts("operations:");
  for (const Operation& op : operations()) {
    std::printf("  %-18s on", op.name);
    for (Kind kind : {Kind::moe, Kind::experts, Kind::dense, Kind::segmented, Kind::qqmm}) {
      if (op.kinds & kind_bit(kind)) std::printf(" %s", name(kind));
    }
    std::puts("");
  }
  std::puts("shapes:");
  for (const ShapeEntry& e : load_shapes(settings)) {
    std::printf("  %-26s %-10s", e.name.c_str(), name(e.kind));
    const std::pair<const char*, int64_t> fields[] = {
        {"E", e.experts},     {"top_k", e.top_k},
        {"hidden", e.hidden}, {"intermediate", e.intermediate},
        {"M", e.m},           {"N", e.n},
        {"K", e.k},           {"segments", e.segments}};
    for (const auto& [key, value] : fields) {
      if (value > 0) std::printf(" %s=%lld", key, static_cast<long long>(value));
    }
    if (e.kind != Kind::segmented) std::printf(" %s", format_name(e.format.resolved()).c_str());
    std::puts("");
  }
  std::puts("routings: uniform zipf skewed (models with a seed, not recordings)");
}

}  // namespace moeblas::bench
