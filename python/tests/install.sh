#!/usr/bin/env bash
# `pip install .` into a folder of its own, and an example run from there: the wheel holds all it needs.
#   install.sh PYTHON FOLDER
# PYTHON has the build's requirements, so that pip fetches nothing. CUDA is left out for time's sake.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$1 build=$2 folder=$2/installed
rm -rf "$folder"
# Compiler, flags and depth of the folder are the rest of the build's: ccache has the objects then.
CC=${CC:-cc} CXX=${CXX:-c++} "$python" -m pip install . --no-build-isolation --no-deps --disable-pip-version-check --no-cache-dir -q \
  --target "$folder" --config-settings=build-dir="$build" --config-settings=cmake.define.MOEBLAS_CUDA=OFF \
  --config-settings=cmake.define.MOEBLAS_WERROR=ON
cd "$folder"
ls moeblas/_core*.so moeblas/libmoeblas.so moeblas/py.typed moeblas/_core.pyi
PYTHONPATH=$folder "$python" -c 'import moeblas; print(moeblas.__file__); print(moeblas.info(), end="")'
PYTHONPATH=$folder "$python" "$OLDPWD/examples/gather_qmm.py"
