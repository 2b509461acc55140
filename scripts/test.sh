#!/usr/bin/env bash
# Sets up what is missing, builds, and passes the tests.
#   scripts/test.sh [preset]    release (default), debug, asan or tsan
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}

scripts/setup.sh --tests
# Code for the GPU at hand; where there is none, one architecture shows that it compiles.
architectures=90a-real
nvidia-smi -L >/dev/null 2>&1 && architectures=native
# The Python package, but for sanitizers, which would need an interpreter of their own.
python=()
if [[ $preset == release || $preset == debug ]]; then
  requirements=python/requirements
  environment=$(scripts/python_env.sh $requirements-{test,torch,transformers}.txt) || {
    # In CI this is an error: torch's tests are part of what must pass.
    [[ -z ${CI:-} ]] || exit 1
    echo "torch cannot be installed: the tests of moeblas.torch are left out" >&2
    environment=$(scripts/python_env.sh)
  }
  python=(-DMOEBLAS_PYTHON=ON -DPython_EXECUTABLE="$environment/bin/python")
fi
# Other compilers than those of CI warn of other things.
warnings=OFF
[[ -z ${CI:-} ]] || warnings=ON
# So that ccache knows an object again that another build folder has made.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD}
cmake --preset "$preset" -DMOEBLAS_WERROR="$warnings" -DMOEBLAS_CUDA_ARCHITECTURES="$architectures" \
  "${python[@]}" >/dev/null
cmake --build --preset "$preset"
ctest --preset "$preset"
