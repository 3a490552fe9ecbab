#!/usr/bin/env bash
# Generates all code from proto/. With an argument, writes below that folder
# instead of the repository, for comparison.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-.}

.tools/bin/buf generate --template buf.gen.yaml -o "$out"
.tools/bin/buf generate --template buf.gen.ts.yaml -o "$out"
.tools/python/bin/python scripts/gen_python.py proto sandbox/v1 "$out/clients/python/src" sandgate._gen
