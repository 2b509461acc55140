#!/usr/bin/env bash
# Fails if a C, C++ or Objective-C++ file is not as clang-format leaves it, or a Python file not as ruff
# formats it, or if ruff finds fault with it; with --fix, formats and mends instead.
set -euo pipefail
cd "$(dirname "$0")/.."
clang=(--dry-run --Werror) format=(--check) check=()
if [[ "${1:-}" == --fix ]]; then clang=(-i) format=() check=(--fix); fi
git ls-files -z '*.h' '*.c' '*.cpp' '*.cu' '*.cuh' '*.mm' | xargs -0 clang-format-19 "${clang[@]}"
ruff=$(scripts/python_env.sh python/requirements-checks.txt)/bin/ruff
git ls-files -z '*.py' '*.pyi' | xargs -0 "$ruff" check --quiet --no-cache "${check[@]}"
git ls-files -z '*.py' '*.pyi' | xargs -0 "$ruff" format --quiet --no-cache "${format[@]}"
