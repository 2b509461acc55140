// Runs one workload with everything that each library has for it, interleaved, and writes the times
// as JSON.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/build_info.h"
#include "bench/cpu_ceilings.h"
#include "bench/cpu_device.h"
#include "bench/cpu_streams.h"
#include "bench/random.h"
#include "library.h"
#include "moeblas/kernels.h"

namespace compare {
namespace {

using Json = nlohmann::ordered_json;
namespace bench = moeblas::bench;

// Shapes of one row per call take as many sets as exceed three caches of 32 MiB at 4 bits.
constexpr Workload kWorkloads[] = {
    {"decode", 1, 14336, 4096, 0, 0, 4},
    {"decode-moe", 1, 768, 2048, 128, 8, 16},
    {"prefill", 512, 14336, 4096, 0, 0, 1},
    {"prefill-moe-32", 512, 768, 2048, 128, 8, 1},
    {"prefill-moe-64", 1024, 768, 2048, 128, 8, 1},
};

Inputs make_inputs(const Workload& w) {
  Inputs in{.work = w, .pool = {}, .x = {}, .x_bf16 = {}, .ids = {}};
  const bench::Random random(1), of_w = random.stream(1), of_x = random.stream(2);
  in.pool.resize(static_cast<size_t>(kPool * w.k));
  for (size_t i = 0; i < in.pool.size(); ++i) in.pool[i] = of_w.bell(static_cast<int64_t>(i));
  in.x.resize(static_cast<size_t>(w.rows * w.k));
  in.x_bf16.resize(in.x.size());
  for (size_t i = 0; i < in.x.size(); ++i) {
    const float value = of_x.bell(static_cast<int64_t>(i));
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    in.x_bf16[i] = static_cast<uint16_t>(bits >> 16);
    in.x[i] = from_bf16(in.x_bf16[i]);
  }
  // As many rows for each expert; in no order.
  for (int set = 0; w.experts > 0 && set < w.sets; ++set) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < w.rows * w.top_k; ++i)
      ids.push_back(static_cast<int32_t>((i + set * w.rows * w.top_k) * 37 % w.experts));
    in.ids.push_back(std::move(ids));
  }
  return in;
}

// The relative RMS error over all outputs of up to 16 rows of x.
double error_of(const Inputs& in, const Product& p, int set) {
  const Workload& w = in.work;
  const std::vector<float> got = p.result(set);
  const int64_t per_row = w.experts == 0 ? 1 : w.top_k, step = (w.rows + 15) / 16;
  double error = 0, size = 0;
  for (int64_t r = 0; r < w.rows; r += step) {
    std::vector<double> expected(kPool, 0.0);
    for (int64_t i = 0; i < kPool; ++i) {
      const float *a = &in.x[static_cast<size_t>(r * w.k)],
                  *b = &p.weights[static_cast<size_t>(i * w.k)];
      double sum = 0;
      for (int64_t k = 0; k < w.k; ++k) sum += static_cast<double>(a[k]) * b[k];
      expected[static_cast<size_t>(i)] = sum;
    }
    for (int64_t o = r * per_row; o < (r + 1) * per_row; ++o) {
      for (int64_t n = 0; n < w.n; ++n) {
        const double value = expected[static_cast<size_t>(pool_row(in.matrix_of(set, o), n))];
        const double off = got[static_cast<size_t>(o * w.n + n)] - value;
        error += off * off;
        size += value * value;
      }
    }
  }
  return std::sqrt(error / size);
}

// Calls that are not timed come first, where calls are short: the threads of another library may
// spin for milliseconds after its last call (libgomp's take a core of two from whoever is next for
// longer than 10), and those of this one are to be awake.
constexpr double kWarm = 0.030, kLong = 0.050;  // seconds

class SetTimer final : public bench::Timer {
 public:
  SetTimer(const Product& p, int sets) : product_(p), sets_(sets) {}
  double sample(int64_t calls) override {
    if (last_ < kLong) {
      const auto warm = std::chrono::steady_clock::now();
      while (since(warm) < kWarm) next();
    }
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < calls; ++i) next();
    last_ = since(start);
    return last_;
  }

 private:
  static double since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  void next() { product_.call(set_++ % sets_); }
  const Product& product_;
  const int sets_;
  int set_ = 0;
  double last_ = 0;
};

std::string now() {
  char text[32];
  const std::time_t t = std::time(nullptr);
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&t));
  return text;
}

std::vector<Library> libraries() {
  std::vector<Library> all = {ours()};
#if defined(COMPARE_GGML)
  all.push_back(ggml());
#endif
  return all;
}

int run(int argc, char** argv) {
  CLI::App app("Times products on the CPU by several libraries, interleaved, on the same numbers.");
  std::string name, json;
  std::vector<std::string> formats;
  std::vector<int> thread_counts = {1, 2};
  double seconds = 0.4;
  app.add_option("--workload", name, "decode, decode-moe, prefill, prefill-moe-32, prefill-moe-64")
      ->required();
  app.add_option("--format", formats, "these alone, by the names of the table")->delimiter(',');
  app.add_option("--threads", thread_counts)->delimiter(',');
  app.add_option("--seconds", seconds, "of samples for each product");
  app.add_option("--json", json);
  CLI11_PARSE(app, argc, argv);

  const Workload* work = nullptr;
  for (const Workload& w : kWorkloads) {
    if (name == w.name) work = &w;
  }
  if (work == nullptr) return std::fprintf(stderr, "unknown workload %s\n", name.c_str()), 2;
  moeblas::set_num_threads(2);
  const Inputs in = make_inputs(*work);
  std::vector<Product> products;
  const std::vector<Library> all = libraries();
  Json j = {{"schema", 1},
            {"date", now()},
            {"device", bench::make_cpu_device(0)->model()},
            {"libraries", Json::object()}};
  for (const Library& library : all) {
    j["libraries"][library.name] = library.version;
    for (Product& p : library.products(in, formats)) products.push_back(std::move(p));
  }
  j["commit"] = bench::kBuild.commit;
  j["workload"] = {{"name", work->name}, {"rows", work->rows},       {"n", work->n},
                   {"k", work->k},       {"experts", work->experts}, {"top_k", work->top_k},
                   {"sets", work->sets}, {"flop", work->flop()}};
  j["results"] = Json::array();
  for (int threads : thread_counts) {
    for (const Library& library : all) library.set_threads(threads);
    bench::CpuStreams streams(threads, 128 << 20);
    const double read_before = bench::measure_cpu_ceilings(threads, streams).read;
    std::vector<double> errors;
    std::vector<std::unique_ptr<bench::Timer>> timers;
    for (const Product& p : products) {
      const int set = work->sets - 1;
      p.poison();
      p.call(set);
      errors.push_back(error_of(in, p, set));
      // Not a number is no answer either.
      if (!(errors.back() <= p.limit)) {
        std::fprintf(stderr, "%s %s %s is off by %.2e, expected at most %.2e\n", p.library.c_str(),
                     p.format.c_str(), p.kernel.c_str(), errors.back(), p.limit);
        return 1;
      }
      timers.push_back(std::make_unique<SetTimer>(p, work->sets));
    }
    const auto samples =
        bench::time_interleaved(timers, {.repeats = 25, .seconds = seconds, .regime = {}}, 0.002);
    const double read = std::max(read_before, bench::measure_cpu_ceilings(threads, streams).read);
    std::printf("%s, %d threads, read stream %.1f GB/s\n", work->name, threads, read / 1e9);
    for (size_t i = 0; i < products.size(); ++i) {
      const Product& p = products[i];
      const double median = samples[i].median();
      const auto touched = static_cast<double>(
          work->experts == 0 ? 1 : std::min(work->experts, work->rows * work->top_k));
      const double bytes = touched * static_cast<double>(work->n * work->k) * p.bits_per_weight / 8;
      std::printf("  %-8s %-12s %-20s %9.1f us %7.1f GFLOP/s %6.1f GB/s of weights, error %.1e\n",
                  p.library.c_str(), p.format.c_str(), p.kernel.c_str(), median * 1e6,
                  work->flop() / median / 1e9, bytes / median / 1e9, errors[i]);
      j["results"].push_back({{"library", p.library},
                              {"format", p.format},
                              {"kernel", p.kernel},
                              {"threads", threads},
                              {"bits_per_weight", p.bits_per_weight},
                              {"seconds", median},
                              {"min_seconds", samples[i].quantile(0)},
                              {"samples", samples[i].seconds.size()},
                              {"flop_per_s", work->flop() / median},
                              {"weight_bytes_per_s", bytes / median},
                              {"read_bytes_per_s", read},
                              {"relative_rms_error", errors[i]},
                              {"error_limit", p.limit},
                              {"limit_is", p.limit_is}});
    }
  }
  if (!json.empty()) std::ofstream(json) << j.dump(1) << "\n";
  return 0;
}

}  // namespace
}  // namespace compare

int main(int argc, char** argv) { return compare::run(argc, argv); }
