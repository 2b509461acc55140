#include "bench/report.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "bench/build_info.h"
#include "bench/operations.h"

namespace moeblas::bench {
namespace {

using Json = nlohmann::ordered_json;

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

double load_average() {
  double load[1] = {0};
  return getloadavg(load, 1) == 1 ? load[0] : 0;
}

// Five digits: more than repeats agree in, and a third of the text.
double rounded(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.5g", value);
  return std::strtod(text, nullptr);
}

Json to_json(const Ceilings& c) {
  return {{"read_bytes_per_s", rounded(c.read)}, {"copy_bytes_per_s", rounded(c.copy)},
          {"f32_flop_per_s", rounded(c.f32)},    {"bf16_flop_per_s", rounded(c.bf16)},
          {"f16_flop_per_s", rounded(c.f16)},    {"fp8_flop_per_s", rounded(c.fp8)},
          {"int8_flop_per_s", rounded(c.int8)},  {"isa", c.isa}};
}

// What means nothing to the operation is null.
Json case_json(const Record& r) {
  const Operation& op = find_operation(r.spec.op);
  const auto if_taken = [](bool taken, Json value) { return taken ? std::move(value) : Json(); };
  const bool affine = op.takes_format && r.spec.format.mode == Mode::affine;
  Json j{{"name", describe(r.spec)},
         {"op", r.spec.op},
         {"shape", r.spec.shape.name},
         {"projection",
          if_taken(r.spec.shape.kind == Kind::moe && op.takes_projection(), r.spec.projection)},
         {"tokens", if_taken(op.takes_tokens, r.spec.tokens)},
         {"format", if_taken(op.takes_format, format_name(r.spec.format))},
         {"dtype", name(r.spec.dtype)},
         {"scale_dtype", if_taken(affine, name(r.spec.scale_dtype))},
         {"scale_layout", if_taken(op.takes_scale_layout,
                                   kScaleLayoutNames[static_cast<int>(r.spec.scale_layout)])},
         {"row_pitch", if_taken(op.takes_format, r.spec.row_pitch)},
         {"routing", if_taken(op.takes_routing, name(r.spec.routing))},
         {"seed", r.spec.seed}};
  for (const auto& [key, value] : r.sizes) j["sizes"][key] = value;
  j["kernel"] = r.kernel;
  j["chosen"] = r.chosen;
  j["threads"] = r.threads > 0 ? Json(r.threads) : Json();
  return j;
}

// Of what memory brought beside each sample, the median share. 0: not measured.
double share_in_turn(const Record& r) { return r.samples.share_of_bandwidth(r.work.bytes()); }

Json record_json(const Record& r, const Group& g) {
  Json j = case_json(r);
  const Floor floor = floor_of(r, g);
  const double median = r.samples.median();
  j["group"] = r.group;
  j["buffer_sets"] = r.sets;
  j["rotated_bytes"] = r.sets * r.work.bytes();
  j["workspace_bytes"] = r.workspace_bytes;
  j["work"] = {{"read_bytes", r.work.read_bytes},
               {"write_bytes", r.work.write_bytes},
               {"flop", r.work.flop}};
  j["check"] = {{"samples", r.verdict.samples},
                {"worst_error_over_limit", rounded(r.verdict.worst)}};
  std::vector<double> samples = r.samples.seconds;
  for (double& seconds : samples) seconds = rounded(seconds);
  j["seconds"] = {{"median", rounded(median)},
                  {"min", rounded(r.samples.quantile(0))},
                  {"max", rounded(r.samples.quantile(1))},
                  {"q1", rounded(r.samples.quantile(0.25))},
                  {"q3", rounded(r.samples.quantile(0.75))},
                  {"calls_per_sample", r.samples.calls},
                  {"samples", samples}};
  j["bytes_per_s"] = rounded(static_cast<double>(r.work.bytes()) / median);
  j["flop_per_s"] = rounded(static_cast<double>(r.work.flop) / median);
  j["floor"] = {{"seconds", rounded(floor.seconds)},
                {"bound", floor.bound},
                {"share", rounded(floor.seconds / median)}};
  if (!r.samples.bandwidth.empty()) {
    std::vector<double> beside = r.samples.bandwidth;
    for (double& bytes_per_s : beside) bytes_per_s = rounded(bytes_per_s);
    j["in_turn"] = {{"share", rounded(share_in_turn(r))}, {"bytes_per_s", beside}};
  }
  return j;
}

// The keys, and the elements of lists, on lines of their own: short, and readable as a difference.
std::string one_per_line(const Json& j) {
  std::string text = "{";
  const char* between = "\n";
  for (const auto& [key, value] : j.items()) {
    text += between + Json(key).dump() + ": ";
    between = ",\n";
    if (!value.is_array() || value.empty()) {
      text += value.dump();
      continue;
    }
    const char* before = "[\n";
    for (const Json& element : value) {
      text += before + element.dump();
      before = ",\n";
    }
    text += "\n]";
  }
  return text + "\n}\n";
}

}  // namespace

namespace {

// The fastest of what multiplies as `r` does and leaves out quantizing x: with x as it is; or, as
// the rows of `fast` make another product of codes than of floats, with x in codes, by the same
// row.
const Record* product_of(const Run& run, const Record& r) {
  const bool fast = run.precision == "fast";
  const Record* best = nullptr;
  for (const Record& other : run.records) {
    if (other.group != r.group || other.spec.op != (fast ? "qqmm_packed" : "quantized_matmul") ||
        (fast && other.kernel != r.kernel) || other.threads != r.threads ||
        other.spec.tokens != r.spec.tokens ||
        format_name(other.spec.format) != format_name(r.spec.format) ||
        other.spec.dtype != r.spec.dtype) {
      continue;
    }
    if (best == nullptr || other.samples.median() < best->samples.median()) best = &other;
  }
  return best;
}

// The share of what the machine can bring to a product that one thread alone does not exhaust: of
// the reads of all threads in turn with it, or, where that is less, of as many threads as fast as
// the same kernel is on one. 0 where the run has no such record, or reads are not the bound.
double share_of_bandwidth(const Run& run, const Record& r) {
  const Floor floor = floor_of(r, run.groups[r.group]);
  if (r.threads <= 1 || std::string_view(floor.bound) != "read") return 0;
  const std::string name = describe(r.spec);
  for (const Record& one : run.records) {
    if (one.threads != 1 || one.kernel != r.kernel || describe(one.spec) != name) continue;
    return std::max(share_in_turn(r), one.samples.median() / r.threads / r.samples.median());
  }
  return 0;
}

void print_shares_of_bandwidth(const Run& run, size_t group) {
  for (const Record& r : run.records) {
    if (r.group != group) continue;
    if (const double share = share_of_bandwidth(run, r); share > 0) {
      std::printf("%s, %s: %.1f%% of the smaller of the read stream and %d times one thread\n",
                  describe(r.spec).c_str(), r.kernel.c_str(), 100 * share, r.threads);
    }
  }
}

// What of a qqmm is the product, and what x's way there. Of bfloat16 alone: the values of codes are
// bfloat16 whatever x was, and so the product of another x is another product.
void print_splits(const Run& run, size_t group) {
  for (const Record& r : run.records) {
    if (r.group != group || r.spec.op != "qqmm" || r.spec.dtype != DType::bf16) continue;
    const Record* product = product_of(run, r);
    if (product == nullptr) continue;
    const double all = r.samples.median() * 1e6, part = product->samples.median() * 1e6;
    std::printf("%s, %s: %.2f us = %.2f for quantizing x + %.2f for the product%s (%s)\n",
                describe(r.spec).c_str(), r.kernel.c_str(), all, all - part, part,
                product->spec.op == "qqmm_packed" ? " of codes" : "", product->kernel.c_str());
  }
}

}  // namespace

void print_header(const Run& run) {
  std::printf("%s: %s, last-level cache %.0f MiB; moeblas %s, %s%s, %s, %s\n",
              run.device_kind.c_str(), run.device_model.c_str(),
              static_cast<double>(run.cache_bytes) / (1 << 20), moeblas_version(),
              run.commit.c_str(), run.dirty ? " (dirty)" : "", kBuild.compiler, utc_now().c_str());
}

void print_group(const Run& run, size_t group) {
  const Group& g = run.groups[group];
  const Record* first = nullptr;
  size_t width = 4, kernel_width = 6;
  for (const Record& r : run.records) {
    if (r.group != group) continue;
    if (first == nullptr) first = &r;
    width = std::max(width, describe(r.spec).size());
    kernel_width = std::max(kernel_width, r.kernel.size());
  }
  if (first == nullptr) return;
  // Units for people: a GPU's rates in TB/s and TFLOP/s, a CPU's in GB/s and GFLOP/s.
  const bool tera = std::max(g.before.read, g.after.read) > 0.5e12;
  const double unit = tera ? 1e-12 : 1e-9;
  const char* letter = tera ? "T" : "G";
  std::printf("\n");
  if (first->threads > 0) std::printf("%d threads; ", first->threads);
  const auto rate = [&](const char* before, double Ceilings::* of, const char* what) {
    const double best = std::max(g.before.*of, g.after.*of);
    if (best <= 0) return;
    std::printf("%s %.*f %s%s", before, best * unit < 10 ? 2 : 0, best * unit, letter, what);
  };
  rate("ceilings: read", &Ceilings::read, "B/s");
  rate(", copy", &Ceilings::copy, "B/s");
  rate(", f32", &Ceilings::f32, "FLOP/s");
  rate(", bf16", &Ceilings::bf16, "FLOP/s");
  rate(", f16", &Ceilings::f16, "FLOP/s");
  rate(", fp8", &Ceilings::fp8, "FLOP/s");
  rate(", int8", &Ceilings::int8, "FLOP/s");
  std::printf("%s\n", g.gap > 0.1 ? "; THE MACHINE CHANGED MEANWHILE: shares are uncertain" : "");
  if (group == 0) std::printf("arithmetic by %s\n", g.before.isa.c_str());
  const std::string bytes = std::string(letter) + "B/s", flop = std::string(letter) + "FLOP/s";
  std::printf("%-*s  %-*s %12s %6s %9s %9s %12s %7s %-5s%s\n", static_cast<int>(width), "case",
              static_cast<int>(kernel_width), "kernel", "us", "IQR", bytes.c_str(), flop.c_str(),
              "floor us", "share", "bound", first->threads > 0 ? " in turn" : "");
  for (const Record& r : run.records) {
    if (r.group != group) continue;
    const Floor floor = floor_of(r, g);
    const double median = r.samples.median();
    const double iqr = (r.samples.quantile(0.75) - r.samples.quantile(0.25)) / median;
    std::printf("%-*s  %-*s %12.*f %5.1f%% %9.2f %9.2f %12.*f %6.1f%% %-5s",
                static_cast<int>(width), describe(r.spec).c_str(), static_cast<int>(kernel_width),
                r.kernel.c_str(), tera ? 2 : 1, median * 1e6, 100 * iqr,
                static_cast<double>(r.work.bytes()) / median * unit,
                static_cast<double>(r.work.flop) / median * unit, tera ? 2 : 1, floor.seconds * 1e6,
                100 * floor.seconds / median, floor.bound);
    if (const double share = share_in_turn(r); share > 0) std::printf(" %6.1f%%", 100 * share);
    std::printf("\n");
  }
  print_splits(run, group);
  print_shares_of_bandwidth(run, group);
  std::fflush(stdout);
}

std::vector<Choice> choices(const Run& run) {
  std::map<std::string, Choice> by_case;
  std::vector<std::string> order;
  for (const Record& r : run.records) {
    const std::string key = describe(r.spec) + " " + std::to_string(r.threads);
    Choice& c = by_case[key];
    if (c.rows++ == 0) order.push_back(key);
    if (r.chosen) c.chosen = &r;
    if (c.best == nullptr || r.samples.median() < c.best->samples.median()) c.best = &r;
  }
  std::vector<Choice> found;
  for (const std::string& key : order) {
    const Choice& c = by_case[key];
    if (c.rows > 1 && c.chosen != nullptr) found.push_back(c);
  }
  return found;
}

void print_choices(const Run& run) {
  const std::vector<Choice> all = choices(run);
  if (all.empty()) return;
  size_t width = 4, kernel_width = 6;
  const Choice* worst = &all[0];
  for (const Choice& c : all) {
    width = std::max(width, describe(c.chosen->spec).size());
    kernel_width = std::max(kernel_width, c.chosen->kernel.size());
    if (c.ratio() > worst->ratio()) worst = &c;
  }
  std::printf("\nthe library's choice beside the best of the rows that took the case\n");
  std::printf("%-*s  %-*s %12s %12s %7s  %s\n", static_cast<int>(width), "case",
              static_cast<int>(kernel_width), "chosen", "us", "best us", "ratio", "best");
  for (const Choice& c : all) {
    std::printf("%-*s  %-*s %12.2f %12.2f %7.3f  %s\n", static_cast<int>(width),
                describe(c.chosen->spec).c_str(), static_cast<int>(kernel_width),
                c.chosen->kernel.c_str(), c.chosen->samples.median() * 1e6,
                c.best->samples.median() * 1e6, c.ratio(), c.best->kernel.c_str());
  }
  std::printf("largest ratio %.3f: %s\n", worst->ratio(), describe(worst->chosen->spec).c_str());
}

std::string to_json(const Run& run) {
  Json j{{"schema", 2},
         {"date", utc_now()},
         {"device",
          {{"kind", run.device_kind},
           {"model", run.device_model},
           {"cache_bytes", run.cache_bytes},
           {"load_average", load_average()}}},
         {"library",
          {{"version", moeblas_version()},
           {"commit", run.commit},
           {"dirty", run.dirty},
           {"compiler", kBuild.compiler},
           {"build_type", kBuild.type}}},
         {"precision", run.precision},
         {"deterministic", run.deterministic},
         {"regime", {{"rest_seconds", run.regime.rest}, {"heat_seconds", run.regime.heat}}}};
  j["groups"] = Json::array();
  for (const Group& g : run.groups) {
    j["groups"].push_back({{"ceilings_before", to_json(g.before)},
                           {"ceilings_after", to_json(g.after)},
                           {"change", rounded(g.gap)}});
  }
  j["results"] = Json::array();
  for (const Record& r : run.records) {
    Json record = record_json(r, run.groups[r.group]);
    if (const double share = share_of_bandwidth(run, r); share > 0)
      record["share_of_bandwidth"] = rounded(share);
    j["results"].push_back(std::move(record));
  }
  j["wrong"] = Json::array();
  for (const Record& r : run.wrong) {
    Json w = case_json(r);
    w["message"] = r.verdict.message;
    j["wrong"].push_back(std::move(w));
  }
  j["skipped"] = Json::array();
  for (const Skip& s : run.skipped) j["skipped"].push_back({{"name", s.what}, {"why", s.why}});
  return one_per_line(j);
}

}  // namespace moeblas::bench
