package build

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/distribution/reference"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/sandgate/sandgate/providers"
)

// stopTime is how long buildctl may take to end a build that is no longer wanted. It is
// shorter than the 10 s after which the clients kill the program that waits for it.
const stopTime = 5 * time.Second

// kitImage is what buildctl reports about an image.
type kitImage struct {
	ID string `json:"containerimage.config.digest"`
}

// run runs buildctl. output says what becomes of the image; an archive goes to a file.
func (k *kit) run(ctx context.Context, output string, archive *os.File) (image kitImage, err error) {
	program, err := exec.LookPath("buildctl")
	if err != nil {
		return image, fmt.Errorf("building by a buildkitd needs buildctl, which comes with BuildKit, in PATH: %w: %w", err, providers.ErrUnsupported)
	}
	dir, err := os.MkdirTemp("", "sandgate-build-")
	if err != nil {
		return image, err
	}
	defer func() { _ = remove(dir) }()
	if err := k.snapshot.unpack(filepath.Join(dir, "context")); err != nil {
		return image, fmt.Errorf("unpack the build context: %w", err)
	}
	// Of its own, as the Dockerfile may be a link or be ignored.
	if err := os.Mkdir(filepath.Join(dir, "file"), 0o700); err != nil {
		return image, err
	}
	if err := os.WriteFile(filepath.Join(dir, "file", defaultDockerfile), k.snapshot.text, 0o600); err != nil {
		return image, err
	}
	policy, err := k.policy()
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, policyFile), policy, 0o600)
	}
	if err != nil {
		return image, err
	}
	args, err := k.args(dir, output)
	if err != nil {
		return image, err
	}
	cmd := exec.CommandContext(ctx, program, args...)
	out := &lines{to: k.Output}
	cmd.Stderr = out
	if archive != nil {
		cmd.Stdout = archive
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = stopTime
	k.ran = true
	err = runChild(cmd)
	out.flush()
	switch exited := (*exec.ExitError)(nil); {
	case ctx.Err() != nil:
		return image, context.Cause(ctx)
	case errors.As(err, &exited):
		return image, fmt.Errorf("%w: %w: %s", ErrFailed, exited, out.last)
	case err != nil:
		return image, fmt.Errorf("run %s: %w", program, err)
	}
	data, err := os.ReadFile(filepath.Join(dir, metadataFile))
	if err == nil {
		err = json.Unmarshal(data, &image)
	}
	if err == nil && image.ID == "" {
		err = errors.New("no id of the image")
	}
	if err != nil {
		return image, fmt.Errorf("%w: what buildctl reports: %w", ErrFailed, err)
	}
	return image, nil
}

const (
	metadataFile = "metadata.json"
	policyFile   = "policy.json"
)

// policy returns the source policy by which what is in the hash is what is built on,
// whatever the registry, a mirror or a cache of the buildkitd has for a tag. A named
// context would do it too, but replaces a stage that has the name of its image.
func (k *kit) policy() ([]byte, error) {
	type source struct {
		Identifier string `json:"identifier"`
	}
	type rule struct {
		Action   string `json:"action"`
		Selector source `json:"selector"`
		Updates  source `json:"updates"`
	}
	rules := []rule{}
	for _, image := range slices.Sorted(maps.Keys(k.pins)) {
		named, err := reference.ParseNormalizedNamed(image)
		if err != nil {
			return nil, err
		}
		tagged := "docker-image://" + reference.TagNameOnly(named).String()
		rules = append(rules, rule{"CONVERT", source{tagged}, source{tagged + "@" + k.pins[image]}})
	}
	return json.Marshal(map[string]any{"rules": rules})
}

// args returns the command line of buildctl. The context and the Dockerfile are below a
// directory.
func (k *kit) args(dir, output string) ([]string, error) {
	args := []string{
		"--addr", k.Address, "build", "--progress", "plain", "--frontend", "dockerfile.v0",
		"--local", "context=" + filepath.Join(dir, "context"), "--local", "dockerfile=" + filepath.Join(dir, "file"),
		"--metadata-file", filepath.Join(dir, metadataFile), "--output", output,
		"--opt", "platform=" + k.Platform,
	}
	if k.Target != "" {
		args = append(args, "--opt", "target="+k.Target)
	}
	for _, name := range slices.Sorted(maps.Keys(k.Args)) {
		args = append(args, "--opt", "build-arg:"+name+"="+k.Args[name])
	}
	if len(k.pins) > 0 {
		args = append(args, "--source-policy-file", filepath.Join(dir, policyFile))
	}
	switch k.Network {
	case "", "default":
	case "none":
		args = append(args, "--opt", "force-network-mode=none")
	case "host":
		args = append(args, "--opt", "force-network-mode=host", "--allow", "network.host")
	default:
		return nil, fmt.Errorf("%w: a buildkitd has the networks none and host, not %q", ErrInput, k.Network)
	}
	// A second run makes the same image from the cache of the first.
	if k.NoCache && !k.ran {
		args = append(args, "--no-cache")
	}
	return args, nil
}

// unpack writes the files of a context to a new directory.
func (s *snapshot) unpack(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	var directories []*tar.Header
	for archive := tar.NewReader(s.file); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := root.MkdirAll(path.Dir(h.Name), 0o700); err != nil {
			return err
		}
		switch h.Typeflag {
		case tar.TypeDir:
			// Their modes come last: one may forbid to write.
			directories = append(directories, h)
			err = root.MkdirAll(path.Clean(h.Name), 0o700)
		case tar.TypeSymlink:
			err = root.Symlink(filepath.FromSlash(h.Linkname), h.Name)
		default:
			err = unpackFile(root, h, archive)
		}
		if err != nil {
			return err
		}
	}
	for _, h := range slices.Backward(directories) {
		if err := setAttributes(root, h); err != nil {
			return err
		}
	}
	return nil
}

// remove removes a directory, even if the modes of what is below forbid it.
func remove(dir string) error {
	_ = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = os.Chmod(name, 0o700) //nolint:gosec // a directory
		}
		return err
	})
	return os.RemoveAll(dir)
}

func unpackFile(root *os.Root, h *tar.Header, content io.Reader) error {
	f, err := root.OpenFile(h.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return setAttributes(root, h)
}

func setAttributes(root *os.Root, h *tar.Header) error {
	name := path.Clean(h.Name)
	// Those of a header are the bits of Unix.
	if err := root.Chmod(name, h.FileInfo().Mode()&(fs.ModePerm|fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky)); err != nil {
		return err
	}
	return root.Chtimes(name, h.ModTime, h.ModTime)
}

// registryOptions are those of requests to registries: the credentials of "docker
// login", helpers included.
func registryOptions(ctx context.Context) []remote.Option {
	return []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
}

// missing reports that a registry does not have an image, as far as it lets this user
// know: some forbid to look for what is not there.
func missing(err error) bool {
	answer := (*transport.Error)(nil)
	return errors.As(err, &answer) &&
		slices.Contains([]int{http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound}, answer.StatusCode)
}

func registryError(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w: %s: %w", ErrFailed, what, err)
}
