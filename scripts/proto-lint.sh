#!/usr/bin/env bash
# Lints and format-checks the protocol, and refuses changes that break it.
#
# BREAKING_AGAINST is any buf input to compare with. The default is the default
# branch of the origin, else the local main; without a proto tree there, there
# is nothing to break yet.
set -euo pipefail
cd "$(dirname "$0")/.."
buf=.tools/bin/buf

$buf lint
if ! $buf format --diff --exit-code; then
  echo "proto-lint: not formatted. Run '$buf format --write'." >&2
  exit 1
fi

against=${BREAKING_AGAINST:-}
if [[ -z $against ]]; then
  for ref in origin/main main; do
    if git cat-file -e "$ref:proto" 2>/dev/null; then
      against=".git#ref=$(git rev-parse "$ref")"
      break
    fi
  done
fi
if [[ -z $against ]]; then
  echo "proto-lint: no earlier proto tree to compare with"
else
  $buf breaking --against "$against"
  echo "proto-lint: compatible with $against"
fi
