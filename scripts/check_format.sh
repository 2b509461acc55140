#!/usr/bin/env bash
# Fails if a C, C++ or Objective-C++ file is not as clang-format leaves it; with --fix, formats instead.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=(--dry-run --Werror)
[[ "${1:-}" == --fix ]] && mode=(-i)
git ls-files -z '*.h' '*.c' '*.cpp' '*.cu' '*.cuh' '*.mm' | xargs -0 clang-format-19 "${mode[@]}"
