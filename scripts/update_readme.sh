#!/usr/bin/env bash
# Writes the table of kernels into the README from what `moeblas kernels --markdown` says; with --check,
# fails if it says something else.
#   scripts/update_readme.sh [--check] [path of the moeblas tool]
set -euo pipefail
check=false
if [[ "${1:-}" == --check ]]; then check=true; shift; fi
root=$(cd "$(dirname "$0")/.." && pwd)
tool=${1:-$root/build/release/cli/moeblas}

if ! "$tool" kernels --markdown | grep '| cuda |' >/dev/null; then
  echo "update_readme.sh: $tool was built without CUDA, whose rows the table has too" >&2
  exit 2
fi
fresh=$(mktemp)
trap 'rm -f "$fresh"' EXIT
awk -v tool="$tool kernels --markdown" '
  /<!-- end of kernels -->/ { inside = 0 }
  !inside { print }
  /<!-- kernels: / { inside = 1; while ((tool | getline line) > 0) print line }
' "$root/README.md" >"$fresh"

if ! cmp -s "$fresh" "$root/README.md"; then
  if $check; then
    echo "README.md: the table of kernels is not what the tool says; run scripts/update_readme.sh" >&2
    exit 1
  fi
  cp "$fresh" "$root/README.md"
fi
