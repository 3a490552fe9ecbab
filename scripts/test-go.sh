#!/usr/bin/env bash
# Runs Go tests with the race detector and counts them.
# usage: test-go.sh NAME PACKAGE...
set -euo pipefail
cd "$(dirname "$0")/.."
name=$1
shift
if (($# == 0)); then
  echo "test-go: no packages for $name" >&2
  exit 1
fi
export SANDGATE_BIN=$PWD/bin/sandgate SANDGATE_AGENT_BIN=$PWD/bin/sandgate-agent
export PATH=$PWD/.tools/bin:$PATH
# The exit status is the counter's: it sees failures, skips, and packages that do
# not build.
{ go test -race -buildvcs=false -timeout "${GO_TEST_TIMEOUT:-20m}" -json "$@" || true; } |
  scripts/testsum.py go "$name"
