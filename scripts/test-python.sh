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

# deepagents-code has an environment of its own, with the oldest deepagents that
# the backend works with: what depends on the version runs there too.
report=$PWD/.reports/dcode.xml
rm -f "$report"
(cd clients/python && ../../.tools/dcode/bin/python -m pytest -q -rs --junitxml="$report" tests/integration/test_dcode.py tests/test_deepagents.py tests/integration/test_sessions.py tests/integration/test_image.py) || true
scripts/testsum.py junit dcode "$report"
