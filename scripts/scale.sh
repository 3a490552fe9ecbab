#!/usr/bin/env bash
# Measures many sandboxes on a cluster. Arguments go to the program.
set -euo pipefail
exec "$(dirname "$0")/with-cluster.sh" go run ./test/scale "$@"
