# Sourced by cpu_bench.sh and gpu_bench.sh: one JSON file for each name that is measured.
#   out, binary, only, seconds  as their arguments say; only is ",NAME,NAME," or nothing
#   common                      what every call of the bench is told
failed=0 known=()

# measure NAME ARGUMENTS...
measure() {
  local name=$1
  shift
  known+=("$name")
  [[ -z $only || $only == *,$name,* ]] || return 0
  local begin=$SECONDS
  "$binary" bench "${common[@]}" --seconds "$seconds" --json "$out/$name.json" "$@" \
    >"$out/$name.log" 2>&1 || {
    failed=1
    echo "${0##*/}: $name failed:" >&2
    tail -5 "$out/$name.log" >&2
  }
  rm -f "$out/$name.log"
  echo "$name: $((SECONDS - begin)) s"
}

# Behind the last name: a name asked for that there is not is an error, as is a failure.
end_of_names() {
  local name
  for name in ${only//,/ }; do
    if [[ " ${known[*]} " != *" $name "* ]]; then
      echo "${0##*/}: --only: no $name; there are ${known[*]}" >&2
      exit 2
    fi
  done
  exit $failed
}
