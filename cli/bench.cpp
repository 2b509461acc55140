// moeblas bench: checks answers, then times kernels against what the machine can do.
#include "bench/expand.h"
#include "bench/run.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "commands.h"
#include "numbers.h"

namespace moeblas::cli {
namespace {

void run_bench(const bench::Settings& settings) {
  bool right = false;
  try {
    right = bench::run_and_report(settings);
  } catch (const std::invalid_argument& e) {
    throw CLI::ValidationError("bench", e.what());
  }
  if (!right) throw CLI::RuntimeError(1);
}

}  // namespace

void add_bench(CLI::App& app) {
  auto* command = app.add_subcommand("bench", "Check and time kernels on real models' shapes");
  auto s = std::make_shared<bench::Settings>();
  auto list = std::make_shared<bool>(false);
  auto rotate_mib = std::make_shared<int64_t>(-1);
  command->add_flag("--list", *list, "Operations, shapes and routings; runs nothing");
  command->add_option("--op", s->ops, "Operations")->delimiter(',');
  // One list: a model is a shape with experts.
  command
      ->add_option("--shape,--model", s->shapes,
                   "Names from the shapes file (the beginning of one is enough), 'all', sizes "
                   "MxNxK or MxNxKxSEGMENTS, or an entry: 'dense mine n=64 k=128'; default: the "
                   "first that fits")
      ->delimiter(',');
  command->add_option("--projection", s->projection, "Of a model: gate_up, gate or down");
  auto* tokens =
      command
          ->add_option("--tokens", s->tokens,
                       "Numbers of tokens, rows of x (default: the shape's M, or 1 and 16)")
          ->delimiter(',')
          ->check(positive());
  command
      ->add_option("--sweep-tokens", s->sweep_tokens,
                   "1 to this at every 2^n and 3 * 2^n and beside every border between rows, each "
                   "with every row that takes it (16384)")
      ->expected(0, 1)
      ->default_str("16384")
      ->check(positive())
      ->excludes(tokens);
  command
      ->add_option("--beside", s->beside,
                   "Operations to be timed together with --op, such as expert_loop, one "
                   "quantized_matmul per expert")
      ->delimiter(',');
  command
      ->add_option("--format,--mode", s->modes,
                   "affine, mxfp4, mxfp8, nvfp4, or with width and group, affine8-g32; default: "
                   "what the model's checkpoint holds")
      ->delimiter(',');
  command->add_option("--bits", s->bits, "Bits per code (0: the mode's default)")->delimiter(',');
  command->add_option("--group-size", s->group_sizes, "Values per scale (0: the mode's default)")
      ->delimiter(',');
  command->add_option("--dtype", s->dtypes, "Of activations: float32, float16, bfloat16")
      ->delimiter(',');
  command->add_option("--scale-dtype", s->scale_dtype, "Of affine scales");
  command
      ->add_option("--scale-layout", s->scale_layouts,
                   "Of what quantize writes in mxfp4, mxfp8 and nvfp4: rows, swizzled")
      ->delimiter(',');
  command
      ->add_option("--row-pitch", s->row_pitch,
                   "Rows of w so many times their length apart: a slice of longer rows (1)")
      ->check(CLI::Range(int64_t{1}, int64_t{64}));
  command->add_option("--routing", s->routings, "uniform, zipf, skewed, even")->delimiter(',');
  command->add_option("--precision", s->precision, "native, exact or fast");
  command->add_flag("--deterministic", s->deterministic, "Rows must not depend on other rows");
  command
      ->add_option("--kernel", s->kernels,
                   "Rows of the dispatch table, by name; chosen: the one that the library picks; "
                   "all: every one that takes the problem")
      ->delimiter(',');
  command->add_option("--device", s->device,
                      "cpu, cuda, cuda:<number>; auto: the first GPU if there is one");
  command->add_option("--threads", s->threads, "Numbers of threads of the CPU (0: the default)")
      ->delimiter(',')
      ->check(not_negative());
  command->add_option("--repeats", s->budget.repeats, "Samples of each row")->check(positive());
  command->add_option("--seconds", s->budget.seconds, "Of each row at most; 3 samples at least")
      ->check(not_negative());
  command
      ->add_option("--rest", s->budget.regime.rest,
                   "Seconds of idleness before each sample: the clocks of a cold device")
      ->check(not_negative());
  command
      ->add_option("--heat", s->budget.regime.heat,
                   "Seconds of the same work before the samples: the clocks that last")
      ->check(not_negative());
  command->add_option("--rotate", *rotate_mib,
                      "MiB that calls walk through before they come back to a buffer (default: "
                      "three last-level caches; 0: one buffer set)");
  command->add_option("--seed", s->seed, "Of data and routing");
  command->add_option("--shapes-file", s->shapes_file, "In place of the built-in shapes/moe.txt")
      ->check(CLI::ExistingFile);
  command->add_option("--commit", s->commit,
                      "What this was built from, where the build could not ask git");
  command->add_option("--json", s->json_file, "Write the results to this file");
  command->callback([=] {
    if (*rotate_mib >= 0) s->rotate_bytes = *rotate_mib << 20;
    *list ? bench::print_list(*s) : run_bench(*s);
  });
}

}  // namespace moeblas::cli
