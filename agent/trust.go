package agent

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// trust keeps the files that make commands trust the authority of the sandbox's
// intercepted connections, in addition to the authorities of the image.
type trust struct {
	dir string // empty: there is no writable directory
	log *slog.Logger

	mu   sync.Mutex
	made string // from what the files were made
}

const (
	authorityFile = "egress-ca.pem"     // the authority alone
	bundleFile    = "egress-bundle.pem" // and those of the image
	// maxBundle bounds the image's authorities, in bytes.
	maxBundle = 8 << 20
)

// systemBundles are where distributions keep their authorities. The first one
// that exists counts.
var systemBundles = []string{
	"/etc/ssl/certs/ca-certificates.crt",
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem",
	"/etc/pki/tls/cacert.pem",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"/etc/ssl/cert.pem",
}

// bundleVariables name a file with all authorities that a program trusts.
var bundleVariables = []string{
	"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO", "AWS_CA_BUNDLE",
	"CARGO_HTTP_CAINFO", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "BUNDLE_SSL_CA_CERT", "NIX_SSL_CERT_FILE",
}

// authorityVariables name a file whose authorities are added to those of a program.
var authorityVariables = []string{"NODE_EXTRA_CA_CERTS", "DENO_CERT"}

// environ returns env with the variables that name the files, where env does not
// set them itself. If the files cannot be written, the command runs without them:
// it does not trust intercepted connections then.
func (t *trust) environ(certificate []byte, env []string) []string {
	if err := t.write(certificate); err != nil {
		t.log.Warn("commands do not trust the sandbox's certificate authority", "error", err)
		return env
	}
	var more []string
	for _, name := range bundleVariables {
		more = append(more, name+"="+filepath.Join(t.dir, bundleFile))
	}
	for _, name := range authorityVariables {
		more = append(more, name+"="+filepath.Join(t.dir, authorityFile))
	}
	return withDefault(env, more)
}

// write writes the files if they are missing, or if the image's authorities or the
// certificate have changed.
func (t *trust) write(certificate []byte) error {
	if t.dir == "" {
		return errors.New("there is no writable directory")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	path, info := systemBundle()
	made := fmt.Sprintf("%s\n%s", path, certificate)
	if info != nil {
		made += fmt.Sprintf("%d %d", info.Size(), info.ModTime().UnixNano())
	}
	if made == t.made && exists(filepath.Join(t.dir, bundleFile)) && exists(filepath.Join(t.dir, authorityFile)) {
		return nil
	}
	var bundle []byte
	if info != nil {
		var err error
		if bundle, err = readBundle(path); err != nil {
			return err
		}
		bundle = append(bundle, '\n')
	}
	bundle = append(bundle, certificate...)
	for name, content := range map[string][]byte{authorityFile: certificate, bundleFile: bundle} {
		if err := replace(filepath.Join(t.dir, name), content); err != nil {
			return err
		}
	}
	t.made = made
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// systemBundle returns the file with the image's authorities, or no info if it has
// none.
func systemBundle() (string, os.FileInfo) {
	for _, path := range systemBundles {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, info
		}
	}
	return "", nil
}

func readBundle(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	content, err := io.ReadAll(io.LimitReader(file, maxBundle+1))
	if err == nil && len(content) > maxBundle {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxBundle)
	}
	return content, err
}

// replace writes a file that readers see either old or whole.
func replace(path string, content []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	err = errors.Join(err, file.Chmod(0o644), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}

// withDefault adds the variables of more that env does not have.
func withDefault(env, more []string) []string {
	have := make(map[string]bool, len(env))
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		have[name] = true
	}
	for _, kv := range more {
		if name, _, _ := strings.Cut(kv, "="); !have[name] {
			env = append(env, kv)
		}
	}
	return env
}
