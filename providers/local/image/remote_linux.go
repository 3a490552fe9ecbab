package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/sandgate/sandgate/providers"
)

// maxLayers limits the requests for one image.
const maxLayers = 1000

// remoteFiles is an image in a registry as a fileSet, under the names that the files
// have in a layout.
type remoteFiles struct {
	ctx      context.Context //nolint:containedctx // it lives for one pull
	repo     *repository
	manifest []byte
	digest   v1.Hash // of the manifest
	sizes    map[string]int64
	done     *atomic.Int64
	fetches  *fetches // nil until the layers are read
}

// openRemote finds the image of a reference for this machine in a repository.
func openRemote(ctx context.Context, repo *repository, ref Reference, p *progress) (*source, error) {
	f := &remoteFiles{ctx: ctx, repo: repo, sizes: make(map[string]int64), done: &p.done}
	id := ref.identifier()
	for range maxIndexDepth {
		data, kind, digest, err := repo.manifest(ctx, id)
		if err != nil {
			return nil, err
		}
		switch {
		case kind.IsIndex():
			chosen, err := choose(data)
			if err != nil {
				return nil, err
			}
			id = chosen.Digest.String()
		case kind.IsImage():
			f.manifest, f.digest = data, digest
			total, err := f.measure()
			if err != nil {
				return nil, err
			}
			p.total.Store(total)
			return &source{files: f, key: digest.Hex, manifest: &v1.Descriptor{MediaType: kind, Digest: digest, Size: int64(len(data))}, packed: total}, nil
		default:
			return nil, fmt.Errorf("the registry has the image in a format that is not supported, %.80q: %w", kind, providers.ErrStartFailed)
		}
	}
	return nil, fmt.Errorf("the image has indexes of more than %d levels: %w", maxIndexDepth, providers.ErrStartFailed)
}

// measure reads the sizes of all parts from the manifest, and returns their sum.
func (f *remoteFiles) measure() (total int64, err error) {
	var m v1.Manifest
	if err := json.Unmarshal(f.manifest, &m); err != nil {
		return 0, fmt.Errorf("the image's manifest: %w: %w", err, providers.ErrStartFailed)
	}
	if len(m.Layers) > maxLayers {
		return 0, fmt.Errorf("the image has more than %d layers: %w", maxLayers, providers.ErrExhausted)
	}
	for _, d := range append(m.Layers, m.Config) {
		if d.Size < 0 || d.Size > maxBytes-total {
			return 0, errTooLarge
		}
		total += d.Size
		f.sizes[blobFile(d.Digest)] = d.Size
	}
	return total, nil
}

// open implements fileSet.
func (f *remoteFiles) open(name string) (io.ReadCloser, int64, error) {
	if name == blobFile(f.digest) {
		return io.NopCloser(strings.NewReader(string(f.manifest))), int64(len(f.manifest)), nil
	}
	size, ok := f.sizes[name]
	if !ok {
		return nil, 0, fmt.Errorf("the image's manifest does not have %q: %w", name, providers.ErrStartFailed)
	}
	if f.fetches != nil {
		return f.fetches.open(name), size, nil
	}
	return f.blob(f.ctx, name), size, nil
}

func (f *remoteFiles) blob(ctx context.Context, name string) *blob {
	digest := strings.Replace(strings.TrimPrefix(name, "blobs/"), "/", ":", 1)
	return &blob{ctx: ctx, repo: f.repo, digest: digest, size: f.sizes[name], done: f.done}
}

// Close implements fileSet.
func (f *remoteFiles) Close() error { return nil }

var manifestTypes = []string{
	string(types.OCIImageIndex), string(types.DockerManifestList), string(types.OCIManifestSchema1), string(types.DockerManifestSchema2),
}

// manifest returns a manifest or an index by tag or digest.
func (r *repository) manifest(ctx context.Context, id string) ([]byte, types.MediaType, v1.Hash, error) {
	fail := func(err error) ([]byte, types.MediaType, v1.Hash, error) { return nil, "", v1.Hash{}, err }
	resp, err := r.get(ctx, "manifests", id, http.Header{"Accept": {strings.Join(manifestTypes, ", ")}})
	if err != nil {
		return fail(err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxJSON+1))
	if err != nil {
		return fail(err)
	}
	if len(data) > maxJSON {
		return fail(fmt.Errorf("the image's manifest has more than %d bytes: %w", maxJSON, providers.ErrExhausted))
	}
	sum := sha256.Sum256(data)
	digest := v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}
	if strings.Contains(id, ":") && id != digest.String() {
		return fail(fmt.Errorf("the manifest from the registry does not match its digest %s: %w", id, providers.ErrStartFailed))
	}
	kind := types.MediaType(resp.Header.Get("Content-Type"))
	if kind, _, _ := strings.Cut(string(kind), ";"); kind != "" {
		return data, types.MediaType(strings.TrimSpace(kind)), digest, nil
	}
	return data, kind, digest, nil
}

// choose returns the image of an index for this machine.
func choose(data []byte) (v1.Descriptor, error) {
	var index v1.IndexManifest
	if err := json.Unmarshal(data, &index); err != nil {
		return v1.Descriptor{}, fmt.Errorf("the image's index: %w: %w", err, providers.ErrStartFailed)
	}
	if i := slices.IndexFunc(index.Manifests, runsHere); i >= 0 {
		return index.Manifests[i], nil
	}
	const most = 20
	var platforms []string
	for _, d := range index.Manifests {
		if d.Platform != nil && d.Platform.OS != "unknown" && len(platforms) < most {
			platforms = append(platforms, fmt.Sprintf("%.60s", d.Platform))
		}
	}
	return v1.Descriptor{}, fmt.Errorf("the image has nothing for linux/%s; it has %s: %w", runtime.GOARCH, strings.Join(platforms, ", "), providers.ErrStartFailed)
}

// runsHere reports whether an entry of an index is for any machine like this one.
func runsHere(d v1.Descriptor) bool {
	if d.MediaType.IsIndex() {
		return true
	}
	baseline := map[string]string{"amd64": "v1", "arm64": "v8"}[runtime.GOARCH]
	p := d.Platform
	return d.MediaType.IsImage() && (p == nil || p.OS == "linux" && p.Architecture == runtime.GOARCH && (p.Variant == "" || p.Variant == baseline))
}
