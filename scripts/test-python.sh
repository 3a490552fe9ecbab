#!/usr/bin/env bash
# Runs the Python client's tests against a real server, and counts them.
set -euo pipefail
cd "$(dirname "$0")/.."
report=$PWD/.reports/python.xml
mkdir -p .reports
rm -f "$report"
export SANDGATE_BIN=$PWD/bin/sandgate
(cd clients/python && .venv/bin/python -m pytest -q -rs --junitxml="$report" "$@") || true
scripts/testsum.py junit python "$report"

# deepagents-code has an environment of its own.
report=$PWD/.reports/dcode.xml
rm -f "$report"
(cd clients/python && ../../.tools/dcode/bin/python -m pytest -q -rs --junitxml="$report" tests/integration/test_dcode.py) || true
scripts/testsum.py junit dcode "$report"
