#!/usr/bin/env bash
# Runs every fuzz target, one after the other, for the given time each. Go's own
# coordinator sometimes reports the end of that time as a failure without an input
# (go.dev/issue/75804, fixed in Go 1.27): such a target runs again.
# FUZZ_ONE_IN=N runs one target in N, chosen by FUZZ_SEED.
# usage: fuzz.sh DURATION
set -euo pipefail
cd "$(dirname "$0")/.."
duration=${1:?usage: fuzz.sh DURATION}
events=$(mktemp) run=$(mktemp)
trap 'rm -f "$events" "$run"' EXIT

found=0
while IFS=: read -r file target; do
  chosen=$(cksum <<<"${FUZZ_SEED:-} $target")
  ((${chosen%% *} % ${FUZZ_ONE_IN:-1} == 0)) || continue
  found=$((found + 1))
  package=./$(dirname "$file")
  echo "fuzz: $target in $package for $duration"
  for try in 1 2 3; do
    go test -buildvcs=false -run '^$' -fuzz "^$target\$" -fuzztime "$duration" -json "$package" >"$run" && break
    if grep -q 'Failing input written' "$run" || ! grep -q 'context deadline exceeded' "$run"; then break; fi
    ((try == 3)) || echo "fuzz: $target met the end of its time badly; once more"
  done
  cat "$run" >>"$events"
done < <(git ls-files --cached --others --exclude-standard '*_test.go' | sort |
  xargs -r grep -oHE '^func Fuzz[A-Za-z0-9_]+' | sed 's/func //')
if ((found == 0)); then
  echo "fuzz: no fuzz targets found" >&2
  exit 1
fi
scripts/testsum.py go fuzz <"$events"
