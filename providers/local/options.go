package local

import (
	"encoding/json"
	"fmt"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/strictjson"
)

// templateOptions is the provider's part of a template.
type templateOptions struct {
	// HostNetwork allows NetworkFull, which shares the host's network.
	HostNetwork bool `json:"host_network"`
	// WritableRoot lays a private writable layer over an image's files. The
	// user is not root, so it may write where the image lets its user write.
	WritableRoot bool `json:"writable_root"`
}

var _ providers.OptionsChecker = (*Provider)(nil)

// CheckOptions implements providers.OptionsChecker.
func (*Provider) CheckOptions(options json.RawMessage, allowed []string) error {
	var t templateOptions
	if err := strictjson.Decode(options, &t); err != nil {
		return fmt.Errorf("provider_options: %w: %w", err, providers.ErrInvalid)
	}
	if len(allowed) > 0 {
		return fmt.Errorf("allow_options: %q: the local provider takes no options of requests: %w", allowed[0], providers.ErrInvalid)
	}
	return nil
}

func decodeOptions(spec providers.Spec) (templateOptions, error) {
	var t templateOptions
	if err := strictjson.Decode(spec.TemplateOptions, &t); err != nil {
		return t, fmt.Errorf("template options of the local provider: %w: %w", err, providers.ErrInvalid)
	}
	if err := strictjson.Decode(spec.Options, &struct{}{}); err != nil {
		return t, fmt.Errorf("provider options: the local provider takes none: %w: %w", err, providers.ErrInvalid)
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
