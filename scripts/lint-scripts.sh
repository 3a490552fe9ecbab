#!/usr/bin/env bash
# Checks the scripts: syntax always, style where shellcheck is installed, and those
# in Python by their own tests. Checks that the tests that pages name exist, and that
# no large file is tracked.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts=(.ci/run scripts/*.sh bench/kubernetes/*.sh bench/kubernetes/peers/*.sh)
for script in "${scripts[@]}"; do
  bash -n "$script"
done
if command -v shellcheck >/dev/null 2>&1; then
  shellcheck "${scripts[@]}"
elif [[ ${CI:-} == true ]]; then
  echo "lint-scripts: shellcheck is not installed; make setup installs it" >&2
  exit 1
else
  echo "lint-scripts: shellcheck is not installed; only the syntax was checked"
fi
ruff=clients/python/.venv/bin/ruff
$ruff format --check --isolated --line-length 110 scripts
$ruff check --isolated --line-length 110 --select E,F,I,B,UP,SIM scripts
python3 -B -m unittest --quiet scripts/testsum_test.py scripts/coverage_test.py scripts/lint_words_test.py
scripts/coverage.py lint
scripts/lint-words.py

# Whatever was built stays out of the repository.
large=$(git ls-files -z | xargs -0 -r du --bytes --threshold=1M --)
if [[ -n $large ]]; then
  echo "lint-scripts: tracked files of more than 1 MiB:" >&2
  echo "$large" >&2
  exit 1
fi

# A test that a page names must exist. docs/coverage.md was checked above.
while read -r name; do
  git grep -q "^func $name(" -- '*_test.go' || {
    echo "lint-scripts: a page names the test $name, which does not exist" >&2
    exit 1
  }
done < <(grep -ohwE 'Test[A-Z][A-Za-z0-9_]+' docs/*.md --exclude=coverage.md | sort -u)
