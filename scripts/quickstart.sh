#!/usr/bin/env bash
# Starts a server, runs both example agents against it, stops it and leaves nothing
# behind. `make quickstart` has set up and built everything that it needs. As root on
# Linux the server's provider is local, elsewhere docker; PROVIDER names another, and
# SERVE_FLAGS more flags of the server.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
export SANDGATE_ADDRESS=unix://$work/sandgate.sock
unset SANDGATE_TOKEN SANDGATE_CA_FILE SANDGATE_CERT_FILE SANDGATE_KEY_FILE
server=
cleanup() {
  local status=$?
  trap - EXIT INT TERM
  if [[ -n $server ]] && kill -0 "$server" 2>/dev/null; then
    # The agents delete their sandboxes; this is for one that was interrupted.
    bin/sandgate ls --quiet 2>/dev/null | xargs -r bin/sandgate rm >/dev/null || true
    kill "$server"
    wait "$server" || true
  fi
  if ((status != 0)) && [[ -s $work/server.log ]]; then
    echo "--- the server's log:" >&2
    tail -n 40 "$work/server.log" >&2
  fi
  rm -rf "$work"
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

provider=${PROVIDER:-local}
if [[ -z ${PROVIDER:-} && ($EUID != 0 || $(uname -s) != Linux) ]]; then
  provider=docker
fi
read -ra flags <<<"${SERVE_FLAGS:-}"
bin/sandgate serve --provider "$provider" --listen "$SANDGATE_ADDRESS" --state-dir "$work/state" ${flags[@]+"${flags[@]}"} 2>"$work/server.log" &
server=$!
for ((i = 0; i < 1000; i++)); do
  if bin/sandgate info >/dev/null 2>&1; then break; fi
  if ! kill -0 "$server" 2>/dev/null; then
    echo "quickstart: the server did not start" >&2
    exit 1
  fi
  sleep 0.1
done
bin/sandgate info

printf '\n=== a Python agent\n'
clients/python/.venv/bin/python examples/python/agent.py
printf '\n=== a TypeScript agent\n'
(cd examples/typescript && npm start --silent)

cat <<END

Both agents did their task in a real sandbox. Next:
  bin/sandgate serve --provider $(printf '%-25s' "$provider")a server on 127.0.0.1:7777
  bin/sandgate run -- sh -c 'echo hello from \$(id -un)'  a command in a fresh sandbox
END
