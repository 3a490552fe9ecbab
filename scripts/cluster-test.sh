#!/usr/bin/env bash
# Runs the Kubernetes tests: on the cluster that KUBECONFIG names, if it answers,
# else on the one of "make cluster-up", into which it brings the agent's and the
# server's image. Leaves that one running.
set -euo pipefail
cd "$(dirname "$0")/.."

answers() {
  ! command -v kubectl >/dev/null 2>&1 || kubectl get --raw /readyz --request-timeout=10s >/dev/null 2>&1
}

if [[ -z ${KUBECONFIG:-} ]] || ! answers; then
  [[ -z ${KUBECONFIG:-} ]] || echo "test-kubernetes: $KUBECONFIG does not answer; using make cluster-up" >&2
  make cluster-up
  .tools/cluster/cluster images --agent bin/sandgate-agent
  make image
  export SANDGATE_TEST_SERVER_IMAGE=docker.io/sandgate/sandgate:test
  .tools/cluster/cluster load "$SANDGATE_TEST_SERVER_IMAGE=dist/image/$(go env GOARCH).tar"
  KUBECONFIG=$(.tools/cluster/cluster kubeconfig)
  export SANDGATE_CLUSTER=$PWD/.tools/cluster/cluster
fi
export KUBECONFIG
export GO_TEST_TIMEOUT=${GO_TEST_TIMEOUT:-40m}
status=0
# docs/operations.md, as a new operator follows it.
walkthrough() {
  local report=$PWD/.reports/walkthrough.xml
  mkdir -p .reports
  rm -f "$report"
  (cd clients/python && PATH=$OLDPWD/.tools/bin:$PATH SANDGATE_BIN=$OLDPWD/bin/sandgate .venv/bin/python -m pytest -q \
    --junitxml="$report" tests/integration/test_walkthrough.py) || true
  scripts/testsum.py junit walkthrough "$report"
}
# Not beside the others: some of them turn the enforcement of network policies on, and
# kube-router stumbles over the ranges of IPv6 in the chart's policies.
if [[ -n ${SANDGATE_TEST_SERVER_IMAGE:-} ]]; then
  walkthrough || status=1
fi
# The tests wait for pods most of the time, so more of them run at once than there
# are processors.
scripts/test-go.sh kubernetes -parallel=6 ./test/kubernetes || status=1
if [[ -n ${SANDGATE_CLUSTER:-} ]]; then
  # It kills parts of the cluster, so nothing else may run on it.
  scripts/test-go.sh faults -parallel=6 ./test/kubernetes/faults || status=1
fi
exit "$status"
