package docker

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/docker/image"
	"github.com/sandgate/sandgate/providers/internal/strictjson"
)

// options is the provider's part of a template.
type options struct {
	requestOptions
	// User is "UID:GID", or "image" for the user of the image. Default: 1000:1000.
	User string `json:"user"`
	// Runtime is one of the daemon's runtimes, such as "runsc". Default: the daemon's.
	Runtime string `json:"runtime"`
	// WritableRoot lets the user write where the image lets it write. Such a sandbox
	// cannot be suspended.
	WritableRoot bool `json:"writable_root"`
	// Network is the Docker network of sandboxes with network full. Default: bridge.
	Network string `json:"network"`
	// GPUs is how many GPUs a sandbox has; -1: all.
	GPUs int `json:"gpus"`
	// Pull is "missing" or "never". Default: missing.
	Pull string `json:"pull"`
}

// requestOptions are those that a template can leave to requests.
type requestOptions struct {
	// Root is an option of the local provider. Create rejects it here.
	Root bool `json:"root"`
}

const (
	defaultUser = "1000:1000"
	imageUser   = "image"
	pullNever   = "never"
)

var (
	_ providers.OptionsChecker = (*Provider)(nil)

	// numericUser is not root: no other number begins with 0.
	numericUser = regexp.MustCompile(`^[1-9][0-9]{0,8}:[0-9]{1,9}$`)
	networkName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)
)

// userOf returns the user of the sandboxes of an image.
func (o options) userOf(i image.Image) image.User {
	if o.User == imageUser {
		return image.ParseUser(i.User)
	}
	return image.ParseUser(o.User)
}

// CheckOptions implements providers.OptionsChecker.
func (*Provider) CheckOptions(raw json.RawMessage, allowed []string) error {
	if _, err := parseOptions(raw); err != nil {
		return fmt.Errorf("provider_options: %w: %w", err, providers.ErrInvalid)
	}
	if err := strictjson.CheckNames(allowed, &requestOptions{}); err != nil {
		return fmt.Errorf("allow_options: %w: %w", err, providers.ErrInvalid)
	}
	return nil
}

func parseOptions(raw json.RawMessage) (options, error) {
	var o options
	if err := strictjson.Decode(raw, &o); err != nil {
		return o, err
	}
	if o.User == "" {
		o.User = defaultUser
	}
	if o.Network == "" {
		o.Network = "bridge"
	}
	if o.Pull == "" {
		o.Pull = "missing"
	}
	switch {
	case o.User != imageUser && !numericUser.MatchString(o.User):
		return o, fmt.Errorf("user: %q is neither UID:GID with a UID above 0 nor %q", o.User, imageUser)
	case o.Network == "host" || o.Network == "none" || !networkName.MatchString(o.Network):
		return o, fmt.Errorf("network: %q: name a network of the daemon that gives containers a network of their own, such as bridge", o.Network)
	case o.GPUs < -1:
		return o, fmt.Errorf("gpus: %d is below -1", o.GPUs)
	case o.Pull != "missing" && o.Pull != pullNever:
		return o, fmt.Errorf("pull: %q is neither %q nor %q", o.Pull, "missing", pullNever)
	}
	return o, nil
}

// decodeOptions returns the options of a spec, and checks what else the provider
// cannot do for it.
func decodeOptions(spec providers.Spec) (options, error) {
	o, err := parseOptions(spec.TemplateOptions)
	if err != nil {
		return o, fmt.Errorf("template options of the docker provider: %w: %w", err, providers.ErrInvalid)
	}
	if err := strictjson.Decode(spec.Options, &o.requestOptions); err != nil {
		return o, fmt.Errorf("provider options of the docker provider: %w: %w", err, providers.ErrInvalid)
	}
	if o.Root {
		return o, fmt.Errorf("option root: %w by the docker provider; use the local provider with runc", providers.ErrUnsupported)
	}
	switch spec.Network {
	case providers.NetworkNone, providers.NetworkProxy, providers.NetworkFull:
	default:
		return o, fmt.Errorf("network %v: %w by the docker provider", spec.Network, providers.ErrUnsupported)
	}
	if wd := spec.WorkingDirectory; wd != "" && !strings.HasPrefix(wd, "/") {
		return o, fmt.Errorf("working directory %q is not absolute: %w", wd, providers.ErrInvalid)
	}
	// Docker refuses less, and takes CPU time in hundredths.
	const leastMemory = 6 << 20
	if m := spec.Resources.MemoryBytes; m > 0 && m < leastMemory {
		return o, fmt.Errorf("resources: memory of %d bytes is less than the %d that Docker allows: %w", m, leastMemory, providers.ErrInvalid)
	}
	return o, nil
}
