#!/usr/bin/env bash
# Installs what Sandgate is measured beside into .tools/peers, each package in an
# environment of its own: setup.sh MODULE_DIRECTORY_OF_AGENT_SANDBOX. The runtime
# that agent-sandbox's pods run is copied from that module. What cannot be
# installed is said, and its rows are left out.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(cd "$here/../../.." && pwd)/.tools/peers
mkdir -p "$out"

for peer in langchain-kubernetes langchain-k8s; do
  [[ $out/$peer/.stamp -nt $here/$peer.txt ]] && continue
  echo "installing .tools/peers/$peer"
  if python3 -m venv --clear "$out/$peer" &&
    "$out/$peer/bin/pip" install --quiet --disable-pip-version-check -r "$here/$peer.txt"; then
    touch "$out/$peer/.stamp"
  else
    echo "bench-kubernetes: $peer could not be installed" >&2
    rm -rf "${out:?}/$peer"
  fi
done

if [[ ! $out/runtime/.stamp -nt $here/runtime.txt ]]; then
  echo "installing .tools/peers/runtime"
  rm -rf "$out/runtime"
  mkdir -p "$out/runtime"
  if install -m 644 "$1/examples/python-runtime-sandbox/main.py" "$out/runtime/" &&
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
      --target "$out/runtime/site-packages" --python-version 3.11 --only-binary :all: -r "$here/runtime.txt"; then
    touch "$out/runtime/.stamp"
  else
    echo "bench-kubernetes: agent-sandbox's Python runtime could not be installed" >&2
    rm -rf "$out/runtime"
  fi
fi

# sandboxd's module does not name all that it needs; the one beside this script
# does.
if [[ ! $out/sandboxd/sandboxd -nt $here/go.mod ]]; then
  echo "installing .tools/peers/sandboxd"
  mkdir -p "$out/sandboxd"
  CGO_ENABLED=0 go -C "$here" build -o "$out/sandboxd/sandboxd" sigs.k8s.io/agent-sandbox/packages/sandboxd/cmd/sandboxd ||
    echo "bench-kubernetes: sandboxd could not be built" >&2
fi
