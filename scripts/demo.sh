#!/usr/bin/env bash
# Sets up what is missing, builds, and runs the product of a real model's expert layer on this
# machine: the answer is checked against float64, the speed printed.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
cmake --preset release -DMOEBLAS_TESTS=OFF -B build/demo >/dev/null
cmake --build build/demo
build/demo/cli/moeblas info
build/demo/examples/example_gather_qmm "$@"
