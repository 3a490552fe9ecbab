#!/usr/bin/env bash
# Fails if committed generated files are stale: code from proto/, plain manifests
# from the Helm chart, docs/configuration.md from the server's options, or pictures.
set -euo pipefail
cd "$(dirname "$0")/.."
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT

scripts/gen.sh "$fresh"
scripts/manifests.sh "$fresh/deploy/manifests"
python3 -B scripts/pictures/draw.py "$fresh/docs/pictures"
stale=0
go test -run '^TestConfigurationPage$' ./cmd/sandgate/internal/serve >/dev/null || {
  echo "docs/configuration.md differs" >&2
  stale=1
}
for folder in gen clients/ts/src/gen clients/python/src/sandgate/_gen deploy/manifests docs/pictures; do
  diff --recursive --brief --exclude=__pycache__ "$folder" "$fresh/$folder" || stale=1
done
if ((stale)); then
  echo "gen-check: generated files are stale. Run 'make gen' and commit the result." >&2
  exit 1
fi
echo "gen-check: generated files are up to date"
