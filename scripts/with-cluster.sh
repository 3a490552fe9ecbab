#!/usr/bin/env bash
# Runs a command in the repository's directory, on the cluster that KUBECONFIG
# names, else on the one of "make cluster-up", which is left running.
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ -z ${KUBECONFIG:-} ]]; then
  make cluster-up
  KUBECONFIG=$(.tools/cluster/cluster kubeconfig)
  export KUBECONFIG
fi
exec "$@"
