#!/usr/bin/env bash
# Runs every fuzz target, one after the other, for the given time each.
# usage: fuzz.sh DURATION
set -euo pipefail
cd "$(dirname "$0")/.."
duration=${1:?usage: fuzz.sh DURATION}
events=$(mktemp)
trap 'rm -f "$events"' EXIT

found=0
while IFS=: read -r file target; do
  found=$((found + 1))
  package=./$(dirname "$file")
  echo "fuzz: $target in $package for $duration"
  go test -buildvcs=false -run '^$' -fuzz "^$target\$" -fuzztime "$duration" -json "$package" >>"$events" || true
done < <(git ls-files --cached --others --exclude-standard '*_test.go' | sort |
  xargs -r grep -oHE '^func Fuzz[A-Za-z0-9_]+' | sed 's/func //')
if ((found == 0)); then
  echo "fuzz: no fuzz targets found" >&2
  exit 1
fi
scripts/testsum.py go fuzz <"$events"
