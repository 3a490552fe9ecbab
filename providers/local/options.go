package local

import (
	"encoding/json"
	"fmt"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/strictjson"
	"github.com/sandgate/sandgate/providers/local/image"
)

// templateOptions is the provider's part of a template.
type templateOptions struct {
	requestOptions
	// HostNetwork allows NetworkFull, which shares the host's network.
	HostNetwork bool `json:"host_network"`
	// WritableRoot lays a private writable layer over an image's files. The
	// user is not root, so it may write where the image lets its user write.
	WritableRoot bool `json:"writable_root"`
	// Pull is when an image is pulled from its registry. Default: missing.
	Pull image.Policy `json:"pull"`
}

// requestOptions are those that a template can leave to requests.
type requestOptions struct {
	// Root makes commands root of a user namespace, over a private writable layer. It
	// needs an image.
	Root bool `json:"root"`
}

var _ providers.OptionsChecker = (*Provider)(nil)

// CheckOptions implements providers.OptionsChecker.
func (*Provider) CheckOptions(options json.RawMessage, allowed []string) error {
	if _, err := parseOptions(options); err != nil {
		return fmt.Errorf("provider_options: %w: %w", err, providers.ErrInvalid)
	}
	if err := strictjson.CheckNames(allowed, &requestOptions{}); err != nil {
		return fmt.Errorf("allow_options: %w: %w", err, providers.ErrInvalid)
	}
	return nil
}

func parseOptions(raw json.RawMessage) (templateOptions, error) {
	var t templateOptions
	if err := strictjson.Decode(raw, &t); err != nil {
		return t, err
	}
	switch t.Pull {
	case "", image.PullMissing, image.PullAlways, image.PullNever:
		return t, nil
	}
	return t, fmt.Errorf("pull: %q is none of %q, %q, %q", t.Pull, image.PullMissing, image.PullAlways, image.PullNever)
}

func decodeOptions(spec providers.Spec) (templateOptions, error) {
	t, err := parseOptions(spec.TemplateOptions)
	if err != nil {
		return t, fmt.Errorf("template options of the local provider: %w: %w", err, providers.ErrInvalid)
	}
	if err := strictjson.Decode(spec.Options, &t.requestOptions); err != nil {
		return t, fmt.Errorf("provider options of the local provider: %w: %w", err, providers.ErrInvalid)
	}
	switch spec.Network {
	case providers.NetworkNone, providers.NetworkProxy:
	case providers.NetworkFull:
		if !t.HostNetwork {
			return t, fmt.Errorf("network full: template %q does not set host_network: %w", spec.Template, providers.ErrForbidden)
		}
	default:
		return t, fmt.Errorf("network %v: %w by the local provider", spec.Network, providers.ErrUnsupported)
	}
	return t, nil
}
