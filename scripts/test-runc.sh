#!/usr/bin/env bash
# Runs what the local provider does with runc on the runc of tools/runc, where sandboxes
# have user namespaces: the provider's tests, the conformance suite over a server, also
# for networks, and the attempts to escape. That runc is built from source and nothing
# else uses it. The headers of libseccomp come from Debian's package if they are missing.
set -euo pipefail
cd "$(dirname "$0")/.."

((EUID == 0)) || { echo "test-runc: run it as root" >&2; exit 1; }
if ! echo '#include <seccomp.h>' | gcc -E - >/dev/null 2>&1; then
  if ! command -v apt-get >/dev/null; then
    echo "test-runc: the headers of libseccomp are needed" >&2
    exit 1
  fi
  echo "test-runc: installing libseccomp-dev"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends --no-upgrade -o APT::Get::Upgrade-By-Source-Package=false libseccomp-dev >/dev/null
fi
make .tools/runc/.stamp
export PATH=$PWD/.tools/runc:$PATH
runc features | grep -q '"mountExtensions"' || { echo "test-runc: $(runc --version | head -n 1) has no idmapped mounts" >&2; exit 1; }

status=0
scripts/test-go.sh runc ./providers/local || status=1
scripts/test-go.sh runc-e2e -run '^Test(Suite|Escape|EscapeOfRoot|Conformance|LiteralsOnRunc|EveryAddressRouted)$' -skip '/(runsc|gvisor)' ./test/e2e ./test/network || status=1
exit $status
