#!/usr/bin/env bash
# Measures many sandboxes on the cluster that KUBECONFIG names, else on the one of
# "make cluster-up", which is left running. Arguments go to the program.
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ -z ${KUBECONFIG:-} ]]; then
  make cluster-up
  KUBECONFIG=$(.tools/cluster/cluster kubeconfig)
  export KUBECONFIG
fi
exec go run ./test/scale "$@"
