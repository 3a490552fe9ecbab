#!/usr/bin/env bash
# Runs the Python client's tests against a real server, and counts them: all of
# them with the Python of clients/python/.venv, and the quick ones with the other
# supported Pythons that this machine has. PYTHONS=must makes a missing one an
# error.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p .reports
export SANDGATE_BIN=$PWD/bin/sandgate
status=0

# Prints the interpreter of a version: pyenv's, else the one on PATH, else nothing.
interpreter() {
  local found
  found=$(compgen -G "$HOME/.pyenv/versions/$1.*/bin/python" | sort -V | tail -n 1 || true)
  echo "${found:-$(command -v "python$1" || true)}"
}

# run NAME PYTHON ARGUMENT...: in clients/python
run() {
  local name=$1 python=$2 report=$PWD/.reports/$1.xml
  shift 2
  rm -f "$report"
  (cd clients/python && "$python" -m pytest -q -rs --junitxml="$report" "$@") || true
  scripts/testsum.py junit "$name" "$report" || status=1
}

run python "$PWD/clients/python/.venv/bin/python" "$@"

# deepagents-code has an environment of its own, with the oldest deepagents that
# the backend works with: what depends on the version runs there too.
run dcode "$PWD/.tools/dcode/bin/python" tests/integration/test_dcode.py tests/test_deepagents.py \
  tests/integration/test_sessions.py tests/integration/test_image.py

# The unit tests, and what a session and a server need, elsewhere.
mapfile -t units < <(cd clients/python && compgen -G 'tests/test_*.py')
while read -r -u 3 version deepagents; do
  [[ $version =~ ^[0-9] ]] || continue
  python=$(interpreter "$version")
  if [[ -z $python ]]; then
    echo "python$version: not on this machine, so nothing was tried with it"
    [[ ${PYTHONS:-} != must ]] || status=1
    continue
  fi
  venv=$PWD/clients/python/.venvs/tests-$version
  wanted="$python deepagents $deepagents $(cat clients/python/pyproject.toml tools/python/constraints.txt | sha256sum)"
  if [[ $(cat "$venv/.made" 2>/dev/null || true) != "$wanted" ]]; then
    echo "installing $venv"
    "$python" -m venv --clear "$venv"
    grep -Ev '^deepagents==' tools/python/constraints.txt >"$venv/constraints.txt"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -c "$venv/constraints.txt" \
      -e clients/python "deepagents==$deepagents" pytest pytest-asyncio
    echo "$wanted" >"$venv/.made"
  fi
  run "python$version" "$venv/bin/python" -p no:cacheprovider "${units[@]}" \
    tests/integration/test_sessions.py tests/integration/test_server.py
  # docs/coverage.md is the same on every machine.
  rm -f ".reports/python$version.passed.txt"
done 3<tools/python/pythons.txt
exit "$status"
