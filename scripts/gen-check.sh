#!/usr/bin/env bash
# Fails when the committed generated code is not what proto/ gives, or the plain
# manifests are not what the Helm chart gives.
set -euo pipefail
cd "$(dirname "$0")/.."
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT

scripts/gen.sh "$fresh"
scripts/manifests.sh "$fresh/deploy/manifests"
stale=0
for folder in gen clients/ts/src/gen clients/python/src/sandgate/_gen deploy/manifests; do
  diff --recursive --brief --exclude=__pycache__ "$folder" "$fresh/$folder" || stale=1
done
if ((stale)); then
  echo "gen-check: generated files differ from proto/ or the chart. Run 'make gen' and commit the result." >&2
  exit 1
fi
echo "gen-check: generated code and manifests are up to date"
