#!/usr/bin/env bash
# Measures on the cluster that KUBECONFIG names, else on the one of "make
# cluster-up", which is left running. Arguments go to the program.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [[ -z ${KUBECONFIG:-} ]]; then
  make cluster-up
  KUBECONFIG=$(.tools/cluster/cluster kubeconfig)
  export KUBECONFIG
fi
module=sigs.k8s.io/agent-sandbox
go -C test/cluster/agentsandbox mod download "$module"
bench/kubernetes/peers/setup.sh "$(go -C test/cluster/agentsandbox list -m -f '{{.Dir}}' "$module")"
exec go run ./bench/kubernetes "$@"
