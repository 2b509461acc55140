// The subcommands: each adds itself to the program's parser and runs from there.
#pragma once

namespace CLI {
class App;
}

namespace moeblas::cli {

void add_info(CLI::App& app);
void add_kernels(CLI::App& app);
void add_explain(CLI::App& app);
void add_bench(CLI::App& app);
void add_inspect(CLI::App& app);
void add_quantize(CLI::App& app);

}  // namespace moeblas::cli
