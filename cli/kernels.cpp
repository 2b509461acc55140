// moeblas info: what was found on this machine. moeblas kernels: the dispatch table.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "commands.h"
#include "moeblas/kernels.h"

namespace moeblas::cli {
namespace {

void print_markdown() {
  std::puts(
      "| kernel | backend | problem | arch | weights | activations | grouping | rows | what it is "
      "|");
  std::puts("|---|---|---|---|---|---|---|---|---|");
  for (const moeblas_kernel& k : kernels()) {
    std::printf("| `%s` | %s | %s | %s | %s | %s | %s | %s | %s |\n", k.name, k.backend, k.problem,
                k.arch, k.formats, k.dtypes, k.grouping, k.rows, k.summary);
  }
}

void print_plain() {
  for (const moeblas_kernel& k : kernels()) {
    std::printf(
        "%s\n  %s %s, arch: %s\n  weights: %s; activations: %s\n  grouping: %s; rows: %s\n  %s\n",
        k.name, k.backend, k.problem, k.arch, k.formats, k.dtypes, k.grouping, k.rows, k.summary);
  }
}

}  // namespace

void add_info(CLI::App& app) {
  app.add_subcommand("info", "What was found on this machine")->callback([] {
    std::fputs(moeblas_info(), stdout);
  });
}

void add_kernels(CLI::App& app) {
  auto* command =
      app.add_subcommand("kernels", "The kernels, in the order in which they are tried");
  auto markdown = std::make_shared<bool>(false);
  command->add_flag("--markdown", *markdown, "As a Markdown table");
  command->callback([markdown] { *markdown ? print_markdown() : print_plain(); });
}

}  // namespace moeblas::cli
