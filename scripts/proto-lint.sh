#!/usr/bin/env bash
# Lints and format-checks the protocol, and refuses changes that break it.
#
# BREAKING_AGAINST is any buf input to compare with. The default is the newest
# release tag; before the first release the point where this branch left the
# origin's default branch, or on that branch itself the parent commit. Until the
# first release a break is allowed where one of the commits in between carries a
# `Breaking-Change: why` trailer.
set -euo pipefail
cd "$(dirname "$0")/.."
buf=.tools/bin/buf

$buf lint
if ! $buf format --diff --exit-code; then
  echo "proto-lint: not formatted. Run '$buf format --write'." >&2
  exit 1
fi

base='' released=''
if [[ -n ${BREAKING_AGAINST:-} ]]; then
  against=$BREAKING_AGAINST
else
  if base=$(git describe --tags --abbrev=0 --match 'v[0-9]*' HEAD 2>/dev/null); then
    released=yes
  else
    base=$(git merge-base HEAD origin/main 2>/dev/null || git merge-base HEAD main)
    if [[ $base == $(git rev-parse HEAD) ]]; then base=$(git rev-parse HEAD~1); fi
  fi
  against=".git#ref=$(git rev-parse "$base^{commit}")"
fi
if $buf breaking --against "$against"; then
  echo "proto-lint: compatible with ${base:-$against}"
elif [[ -n $base && -z $released ]] &&
  why=$(git log --format='%(trailers:key=Breaking-Change,valueonly)' "$base..HEAD" | grep .); then
  echo "proto-lint: breaks the unreleased protocol, on purpose: $why"
else
  echo "proto-lint: breaks the protocol as of ${base:-$against}" >&2
  exit 1
fi
