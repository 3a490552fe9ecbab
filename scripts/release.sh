#!/usr/bin/env bash
# Builds the artifacts of a release into dist/release: the program for each
# platform, Debian packages, the image, the Python and the npm package, bills of
# materials in CycloneDX's format, and the checksums of all.
# usage: release.sh VERSION    such as v0.1.0; both clients must have the same version
# Publishes nothing: .github/workflows/release.yml does.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:?usage: release.sh VERSION}
if [[ ! $version =~ ^v[0-9]+\.[0-9]+\.[0-9]+$ ]]; then
  echo "release: $version is not a version such as v0.1.0" >&2
  exit 2
fi
python=$(sed -n 's/^version = "\(.*\)"$/\1/p' clients/python/pyproject.toml)
npm=$(node -p "require('./clients/ts/package.json').version")
for have in "$python" "$npm"; do
  if [[ v$have != "$version" ]]; then
    echo "release: a client has version $have, the release is $version" >&2
    exit 1
  fi
done

out=$PWD/dist/release
rm -rf "$out"
mkdir -p "$out"
make agent-amd64 agent-arm64 VERSION="$version"
for target in linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64; do
  os=${target%/*} arch=${target#*/} suffix=
  [[ $os != windows ]] || suffix=.exe
  # Neither paths nor times of the building machine: the same source gives the
  # same bytes.
  CGO_ENABLED=0 GOOS=$os GOARCH=$arch go build -trimpath -buildvcs=false \
    -ldflags "-s -w -X main.version=$version" -o "$out/sandgate-$version-$os-$arch$suffix" ./cmd/sandgate
done
for arch in amd64 arm64; do
  scripts/deb.sh "$version" "$arch" "$out/sandgate-$version-linux-$arch" "$out"
done
.tools/bin/cyclonedx-gomod app -json -licenses -main cmd/sandgate -output "$out/sandgate-$version.cdx.json" .
(cd clients/ts && npm sbom --omit=dev --sbom-format=cyclonedx) >"$out/sandgate-npm-$version.cdx.json"
go -C deploy/image run . --out "$out/image" --tag "sandgate:$version" \
  "amd64=$out/sandgate-$version-linux-amd64,$PWD/cmd/sandgate/agentbin/bin/sandgate-agent-linux-amd64" \
  "arm64=$out/sandgate-$version-linux-arm64,$PWD/cmd/sandgate/agentbin/bin/sandgate-agent-linux-arm64"
for arch in amd64 arm64; do
  mv "$out/image/$arch.tar" "$out/sandgate-$version-image-$arch.tar"
done
rm -r "$out/image"
.tools/python/bin/python -m build --quiet --outdir "$out" clients/python
(cd clients/ts && npm run --silent build && npm pack --silent --pack-destination "$out" >/dev/null)
(cd "$out" && sha256sum -- * >SHA256SUMS)
cat "$out/SHA256SUMS"
