package policy

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/fault"
)

// Fields of a request that a template can allow, as in Template.Allow.
const (
	FieldImage            = "image"
	FieldResources        = "resources"
	FieldEnv              = "env"
	FieldWorkingDirectory = "working_directory"
	FieldNetwork          = "network"
	FieldAccess           = "access"
	FieldCommand          = "command"
)

var templateFields = []string{
	FieldImage, FieldResources, FieldEnv, FieldWorkingDirectory, FieldNetwork, FieldAccess, FieldCommand,
}

var templateNamePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Template is an operator's decision about sandboxes. Requests refer to it by
// name. Its values are the defaults of its sandboxes.
type Template struct {
	// Name is 1 to 63 characters of a-z, 0-9 and "-".
	Name string

	Image string
	// Resources are limits. 0: the provider's default; Unlimited: none.
	Resources        providers.Resources
	Env              map[string]string
	WorkingDirectory string // default: /workspace
	Network          providers.NetworkMode
	Command          []string
	Access           *sandboxv1.AccessPolicy

	// Allow names the fields that a request may set. Nil: all of them.
	Allow []string
	// Images are the images that a request may name, if Allow has the image. A
	// trailing "*" matches any rest without a "..". Nil: any.
	Images []string
	// Networks are the modes that a request may choose besides the template's own
	// and none.
	Networks []providers.NetworkMode
	// Egress are the rules of its sandboxes with the mode PROXY. The rules of a
	// request must lie within them. Nil: Config.EgressAnyPublic decides.
	Egress []*sandboxv1.EgressRule
	// MaxResources bounds the resources of a request. 0: the template's own
	// resource; Unlimited: no bound.
	MaxResources providers.Resources
	// ProviderOptions is the provider's own part: a JSON object or nil.
	ProviderOptions json.RawMessage
	// AllowOptions names the keys of provider_options that a request may set.
	AllowOptions []string
	// Pool is how many started sandboxes to keep ready. A request can claim one
	// if it names the template and sets nothing that a started sandbox cannot
	// adopt. 0: none.
	Pool int
}

const (
	defaultTemplate         = "default"
	defaultWorkingDirectory = "/workspace"
	// maxPool bounds the effect of a typing error.
	maxPool = 1000
)

// DefaultTemplate is the only template of a server without configured ones: no
// network, and the provider's own limits.
func DefaultTemplate() Template {
	return Template{Name: defaultTemplate, Network: providers.NetworkNone}
}

// Unlimited is a resource without a limit in a Template. A resource that is
// left out has the provider's default.
const Unlimited = -1

// resource is one of a template's resources, with its maximum.
type resource struct {
	name      string
	own, most *int64
}

// eachResource calls f with every resource of the template, and stores f's
// changes.
func (t *Template) eachResource(byDefault providers.Resources, f func(r resource, byDefault int64)) {
	own, most := &t.Resources, &t.MaxResources
	narrow := func(name string, own, most *int32, byDefault int32) {
		wideOwn, wideMost := int64(*own), int64(*most)
		f(resource{name, &wideOwn, &wideMost}, int64(byDefault))
		*own, *most = int32(wideOwn), int32(wideMost)
	}
	f(resource{"memory_bytes", &own.MemoryBytes, &most.MemoryBytes}, byDefault.MemoryBytes)
	narrow("cpu_millis", &own.CPUMillis, &most.CPUMillis, byDefault.CPUMillis)
	narrow("max_processes", &own.MaxProcesses, &most.MaxProcesses, byDefault.MaxProcesses)
	f(resource{"disk_bytes", &own.DiskBytes, &most.DiskBytes}, byDefault.DiskBytes)
}

// limit fills in the resources that the template leaves out, and their maxima,
// by default the template's own resources. It returns the names of resources
// without a limit.
func (t *Template) limit(byDefault providers.Resources) (unlimited []string) {
	t.eachResource(byDefault, func(r resource, byDefault int64) {
		if *r.own == 0 {
			*r.own = byDefault
		}
		if *r.most == 0 {
			*r.most = *r.own
		}
		// To a provider, 0 is no limit.
		*r.own, *r.most = max(*r.own, 0), max(*r.most, 0)
		if *r.own == 0 {
			unlimited = append(unlimited, r.name)
		}
	})
	return unlimited
}

func indexTemplates(list []Template) (map[string]*Template, error) {
	m := make(map[string]*Template, len(list))
	for i := range list {
		t := list[i]
		if err := t.check(); err != nil {
			return nil, fmt.Errorf("template %q: %w", t.Name, err)
		}
		if _, ok := m[t.Name]; ok {
			return nil, fmt.Errorf("template %q: given twice", t.Name)
		}
		if t.WorkingDirectory == "" {
			t.WorkingDirectory = defaultWorkingDirectory
		}
		if t.Network == providers.NetworkUnset {
			t.Network = providers.NetworkNone
		}
		if t.Allow == nil {
			t.Allow = templateFields
		}
		m[t.Name] = &t
	}
	return m, nil
}

func (t *Template) check() error {
	if !templateNamePattern.MatchString(t.Name) {
		return fmt.Errorf("a name must be 1 to 63 characters of a-z, 0-9 and '-'")
	}
	for _, f := range t.Allow {
		if !slices.Contains(templateFields, f) {
			return fmt.Errorf("allow: %q is none of %s", f, strings.Join(templateFields, ", "))
		}
	}
	v := CheckAccess("access", t.Access)
	v.Env("env", t.Env)
	v.OptionalPath("working_directory", t.WorkingDirectory)
	unset := *t
	unset.eachResource(providers.Resources{}, func(r resource, _ int64) {
		for field, n := range map[string]int64{"resources": *r.own, "max_resources": *r.most} {
			if n < Unlimited {
				v.Add(field+"."+r.name, "must be a limit, or %d for none", Unlimited)
			}
		}
	})
	if t.Pool < 0 || t.Pool > maxPool {
		v.Add("pool", "must lie between 0 and %d", maxPool)
	}
	if len(t.ProviderOptions) > 0 && !json.Valid(t.ProviderOptions) {
		v.Add("provider_options", "is not JSON")
	}
	return v.Err()
}

// forbids returns the error for a field that the template does not let a
// request set, or not to this value.
func (t *Template) forbids(field, format string, args ...any) error {
	return fault.New(sandboxv1.ErrorReason_ERROR_REASON_TEMPLATE_FORBIDS, "template %q: %s: %s",
		t.Name, field, fmt.Sprintf(format, args...)).With("template", t.Name).With("field", field)
}

func (t *Template) allows(field string) bool { return slices.Contains(t.Allow, field) }

func (t *Template) allowsImage(image string) bool {
	if t.Images == nil || image == t.Image {
		return true
	}
	// An image may be a path. It must not leave the directory of a pattern.
	climbs := slices.Contains(strings.FieldsFunc(image, func(r rune) bool { return r == '/' || r == ':' }), "..")
	return slices.ContainsFunc(t.Images, func(pattern string) bool {
		if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
			return strings.HasPrefix(image, prefix) && !climbs
		}
		return image == pattern
	})
}

func (t *Template) allowsNetwork(m providers.NetworkMode) bool {
	return m == providers.NetworkNone || m == t.Network || slices.Contains(t.Networks, m)
}
