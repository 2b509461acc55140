// The moeblas command line tool.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "commands.h"
#include "moeblas/moeblas.h"

int main(int argc, char** argv) {
  CLI::App app{"moeblas: the matrix products of mixture-of-experts models"};
  app.set_version_flag("--version", moeblas_version());
  moeblas::cli::add_info(app);
  moeblas::cli::add_kernels(app);
  moeblas::cli::add_explain(app);
  moeblas::cli::add_bench(app);
  moeblas::cli::add_inspect(app);
  moeblas::cli::add_quantize(app);
  moeblas::cli::add_generate(app);
  moeblas::cli::add_eval(app);
  try {
    app.parse(argc, argv);
    // Not require_subcommand, which would hide which word is no subcommand.
    if (app.get_subcommands().empty()) throw CLI::RequiredError("A subcommand");
  } catch (const CLI::ParseError& e) {
    return app.exit(e);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "moeblas: %s\n", e.what());
    return 1;
  }
  return 0;
}
