package local

import (
	"encoding/json"
	"fmt"
	"path"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/pattern"
	"github.com/sandgate/sandgate/providers/internal/strictjson"
)

// templateOptions is the provider's part of a template.
type templateOptions struct {
	// Images are the image references that may be used, exactly or with the
	// wildcards of path.Match.
	Images []string `json:"images"`
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
	if err := pattern.Check(t.Images); err != nil {
		return fmt.Errorf("provider_options: images: %w", err)
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
	case providers.NetworkNone:
	case providers.NetworkFull:
		if !t.HostNetwork {
			return t, fmt.Errorf("network full: template %q does not set host_network: %w", spec.Template, providers.ErrForbidden)
		}
	default:
		return t, fmt.Errorf("network %v: %w by the local provider", spec.Network, providers.ErrUnsupported)
	}
	if spec.Image != "" && !t.allowsImage(spec.Image) {
		return t, fmt.Errorf("image %q is not among the images of template %q: %w", spec.Image, spec.Template, providers.ErrForbidden)
	}
	return t, nil
}

func (t templateOptions) allowsImage(ref string) bool {
	for _, allowed := range t.Images {
		if ref == allowed {
			return true
		}
		if ok, err := path.Match(allowed, ref); err == nil && ok {
			return true
		}
	}
	return false
}
