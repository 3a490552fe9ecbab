#!/usr/bin/env bash
# Runs the TypeScript client's tests against a real server, and counts them.
set -euo pipefail
cd "$(dirname "$0")/.."
report=$PWD/.reports/typescript.vitest.json
mkdir -p .reports
rm -f "$report"
export SANDGATE_BIN=$PWD/bin/sandgate
(cd clients/ts && npx --no-install vitest run --reporter=default --reporter=json --outputFile.json="$report" "$@") || true
scripts/testsum.py vitest typescript "$report"
