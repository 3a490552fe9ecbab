#!/usr/bin/env bash
# Measures the Python client's file methods beside deepagents' inherited scripts,
# in a sandbox of a server of its own. Leaves nothing behind.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
export SANDGATE_ADDRESS=unix://$work/s.sock
bin/sandgate serve --listen "$SANDGATE_ADDRESS" --state-dir "$work/state" 2>"$work/log" &
server=$!
# shellcheck disable=SC2064 # as they are now
trap "kill $server; wait $server || true; rm -rf '$work'" EXIT
for ((i = 0; i < 100; i++)); do
  if bin/sandgate info >/dev/null 2>&1; then break; fi
  sleep 0.1
done
clients/python/.venv/bin/python clients/python/benchmarks/native.py "$@"
