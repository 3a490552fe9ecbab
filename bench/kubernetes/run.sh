#!/usr/bin/env bash
# Measures on a cluster, beside packages that it installs. Arguments go to the
# program.
set -euo pipefail
cd "$(dirname "$0")/../.."
module=sigs.k8s.io/agent-sandbox
go -C test/cluster/agentsandbox mod download "$module"
bench/kubernetes/peers/setup.sh "$(go -C test/cluster/agentsandbox list -m -f '{{.Dir}}' "$module")"
exec scripts/with-cluster.sh go run ./bench/kubernetes "$@"
