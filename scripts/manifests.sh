#!/usr/bin/env bash
# Renders the Helm chart with its defaults as plain manifests, one file per provider,
# for an installation without Helm.
# usage: manifests.sh [DIRECTORY], deploy/manifests by default
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-deploy/manifests}
mkdir -p "$out"

for provider in kubernetes agentsandbox; do
  {
    cat <<EOF
# Sandgate with the provider $provider, in the namespace "sandgate", and its
# sandboxes in "sandgate-sandboxes", which "kubectl delete" of this file deletes
# with all of them. Made from the chart in deploy/helm by "make gen"; edit that one.
# Create beforehand, as docs/kubernetes.md shows: the namespace "sandgate", and in
# it the secrets sandgate-tls and sandgate-tokens. The image must be one that your
# nodes can pull.
EOF
    .tools/bin/helm template sandgate deploy/helm/sandgate --namespace sandgate --set \
      "provider=$provider,tls.secretName=sandgate-tls,auth.tokensSecretName=sandgate-tokens" | tail -n +2 |
      sed -e '/^# Source: /d' -e '/app.kubernetes.io\/managed-by: Helm/d' -e '/^[[:space:]]*$/d'
  } >"$out/$provider.yaml"
done
