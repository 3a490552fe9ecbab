#!/usr/bin/env bash
# Rewrites tools/python/constraints.txt from a new environment with what
# clients/python/pyproject.toml asks for.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check 'clients/python[dev]'
{
  echo "# Every package that the development environment of clients/python holds, pinned."
  echo "# Direct ones are named in clients/python/pyproject.toml. Renew it with 'make constraints'."
  "$work/venv/bin/pip" freeze | grep -v '^sandgate '
} >"$work/constraints.txt"
mv "$work/constraints.txt" tools/python/constraints.txt
