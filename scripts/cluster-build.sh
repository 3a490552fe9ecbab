#!/usr/bin/env bash
# Builds what the test cluster runs into .tools/cluster: Kubernetes, the
# controller of agent-sandbox with the definitions of its kinds, kube-router's
# firewall, kubectl, the pause image's program. Without a build cache it takes about
# twelve minutes of processor time.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$PWD/.tools/cluster
mkdir -p "$out/crds"
cd test/cluster
# Images outlive the cluster; one from an older recipe is rebuilt.
[[ ! -d $out/images ]] || find "$out/images" -name '*.tar' ! -newer images.go -delete
kubernetes=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
version=k8s.io/component-base/version
IFS=. read -r major minor _ <<<"${kubernetes#v}"
go build -buildvcs=false -o "$out/cluster" -ldflags "-s -w \
  -X $version.gitVersion=$kubernetes -X $version.gitMajor=$major -X $version.gitMinor=$minor" .
ln -sf cluster "$out/kubectl"
CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags '-s -w' -o "$out/pause" ./pause
go -C networkpolicy build -buildvcs=false -ldflags '-s -w' -o "$out/network-policy" .
cd agentsandbox
go build -buildvcs=false -ldflags '-s -w' -o "$out/agent-sandbox-controller" \
  sigs.k8s.io/agent-sandbox/cmd/agent-sandbox-controller
install -m 644 "$(go list -m -f '{{.Dir}}' sigs.k8s.io/agent-sandbox)"/k8s/crds/*.yaml "$out/crds/"
