// moeblas quantize: a checkpoint of floats becomes a quantized one in MLX's layout.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/quantize.h"
#include "commands.h"
#include "progress.h"

namespace moeblas::cli {
namespace {

struct Request {
  std::string in, out;
  checkpoint::QuantizeOptions options;
};

void run(const Request& r) {
  ProgressBar bar("quantizing");
  const auto result = checkpoint::quantize_checkpoint(
      r.in, r.out, r.options, [&](uint64_t done, uint64_t total) { bar.show(done, total); });
  bar.clear();
  std::printf("%s: %llu tensors, %.2f MB, %llu parameters, %.2f bits per weight\n", r.out.c_str(),
              static_cast<unsigned long long>(result.tensors),
              static_cast<double>(result.bytes) / 1e6,
              static_cast<unsigned long long>(result.parameters),
              8.0 * static_cast<double>(result.bytes) / static_cast<double>(result.parameters));
}

}  // namespace

void add_quantize(CLI::App& app) {
  auto* command = app.add_subcommand(
      "quantize", "Quantize a checkpoint of floats (OLMoE, Qwen3-MoE) into MLX's layout");
  auto r = std::make_shared<Request>();
  static const std::map<std::string, Mode> modes = {{"affine", Mode::affine},
                                                    {"mxfp4", Mode::mxfp4},
                                                    {"mxfp8", Mode::mxfp8},
                                                    {"nvfp4", Mode::nvfp4}};
  auto mode = std::make_shared<std::string>("affine");
  command->add_option("in", r->in, "Folder of config.json and model*.safetensors")->required();
  command->add_option("out", r->out, "Folder to write; must not exist")->required();
  command->add_option("--mode", *mode, "Of quantization")
      ->check(CLI::IsMember(modes))
      ->capture_default_str();
  command->add_option("--bits", r->options.spec.bits, "Bits per code (0: the mode's default)");
  command->add_option("--group-size", r->options.spec.group_size,
                      "Values per scale (0: the mode's default)");
  command->add_option("--skip", r->options.skip,
                      "Patterns of modules that stay floats, such as '*.mlp.gate' or lm_head");
  command->callback([r, mode] {
    r->options.spec.mode = modes.at(*mode);
    run(*r);
  });
}

}  // namespace moeblas::cli
