package policy

import (
	"encoding/json"
	"maps"
	"slices"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/wire"
)

// Spec merges a request for a tenant's sandbox with its template, and rejects
// what the template does not allow.
func (p *Policy) Spec(tenant, id string, req *sandboxv1.CreateSandboxRequest) (providers.Spec, error) {
	t, err := p.Template(req.GetTemplate())
	if err != nil {
		return providers.Spec{}, err
	}
	want := req.GetSpec()
	if err := t.admit(want); err != nil {
		return providers.Spec{}, err
	}
	if err := checkSpec(want); err != nil {
		return providers.Spec{}, err
	}
	spec := providers.Spec{
		Tenant: tenant, ID: id, Template: t.Name, Hash: specHash(p.cfg.Secret, tenant, id, t.Name, req),
		Image: t.Image, Resources: t.Resources, WorkingDirectory: t.WorkingDirectory,
		Network: t.Network, Command: t.Command, Labels: req.GetLabels(),
		TemplateOptions: t.ProviderOptions,
	}
	if want.GetImage() != "" {
		spec.Image = want.GetImage()
	}
	if want.GetWorkingDirectory() != "" {
		spec.WorkingDirectory = want.GetWorkingDirectory()
	}
	if len(want.GetCommand()) > 0 {
		spec.Command = want.GetCommand()
	}
	spec.Env = maps.Clone(t.Env)
	if len(want.GetEnv()) > 0 {
		if spec.Env == nil {
			spec.Env = make(map[string]string, len(want.GetEnv()))
		}
		maps.Copy(spec.Env, want.GetEnv())
	}
	if err := t.mergeResources(&spec.Resources, want.GetResources()); err != nil {
		return providers.Spec{}, err
	}
	if err := t.mergeNetwork(&spec.Network, want.GetNetwork()); err != nil {
		return providers.Spec{}, err
	}
	if spec.Egress, err = p.egressRules(t, tenant, createRules, spec.Network, want.GetNetwork().GetAllow()); err != nil {
		return providers.Spec{}, err
	}
	if spec.Access, err = EncodeAccess(t.Access, want.GetAccess()); err != nil {
		return providers.Spec{}, err
	}
	if spec.Options, err = t.options(req); err != nil {
		return providers.Spec{}, err
	}
	spec.TTL, err = lifetime("ttl", req.GetTtl(), p.cfg.DefaultTTL, p.cfg.MaxTTL)
	if err != nil {
		return providers.Spec{}, err
	}
	spec.IdleTTL, err = lifetime("idle_ttl", req.GetIdleTtl(), p.cfg.DefaultIdleTTL, p.cfg.MaxIdleTTL)
	return spec, err
}

// admit rejects fields that the template does not allow a request to set.
func (t *Template) admit(want *sandboxv1.SandboxSpec) error {
	for _, f := range []struct {
		name string
		set  bool
	}{
		{FieldImage, want.GetImage() != ""},
		{FieldResources, want.GetResources() != nil},
		{FieldEnv, len(want.GetEnv()) > 0},
		{FieldWorkingDirectory, want.GetWorkingDirectory() != ""},
		{FieldNetwork, want.GetNetwork() != nil},
		{FieldAccess, want.GetAccess() != nil},
		{FieldCommand, len(want.GetCommand()) > 0},
	} {
		if f.set && !t.allows(f.name) {
			return t.forbids("spec."+f.name, "a request must not set it; the template's allow has no %q", f.name)
		}
	}
	if image := want.GetImage(); image != "" && !t.allowsImage(image) {
		return t.forbids("spec.image", "%q is not in \"images\", the template's list of images that a request can name", fault.Bounded(image))
	}
	return nil
}

func checkSpec(want *sandboxv1.SandboxSpec) error {
	v := CheckAccess("spec.access", want.GetAccess())
	v.Env("spec.env", want.GetEnv())
	v.OptionalPath("spec.working_directory", want.GetWorkingDirectory())
	v.NoNUL("spec.image", want.GetImage())
	v.Argv("spec.command", want.GetCommand())
	if c := want.GetCommand(); len(c) > 0 && c[0] == "" {
		v.Add("spec.command[0]", "must not be empty")
	}
	if r := want.GetResources(); r != nil {
		v.resources("spec.resources", wire.ResourcesFrom(r))
	}
	v.Enum("spec.network.mode", int32(want.GetNetwork().GetMode()), sandboxv1.NetworkMode_name)
	return v.Err()
}

func (t *Template) mergeResources(have *providers.Resources, want *sandboxv1.Resources) error {
	r, limit := wire.ResourcesFrom(want), t.MaxResources
	for _, f := range []struct {
		name        string
		want, limit int64
		set         func()
	}{
		{"memory_bytes", r.MemoryBytes, limit.MemoryBytes, func() { have.MemoryBytes = r.MemoryBytes }},
		{"cpu_millis", int64(r.CPUMillis), int64(limit.CPUMillis), func() { have.CPUMillis = r.CPUMillis }},
		{"max_processes", int64(r.MaxProcesses), int64(limit.MaxProcesses), func() { have.MaxProcesses = r.MaxProcesses }},
		{"disk_bytes", r.DiskBytes, limit.DiskBytes, func() { have.DiskBytes = r.DiskBytes }},
	} {
		if f.want == 0 {
			continue
		}
		if f.limit > 0 && f.want > f.limit {
			return t.forbids("spec.resources."+f.name, "at most %d", f.limit)
		}
		f.set()
	}
	return nil
}

func (t *Template) mergeNetwork(have *providers.NetworkMode, want *sandboxv1.Network) error {
	mode := wire.NetworkFrom(want.GetMode())
	switch {
	case mode != providers.NetworkUnset:
	case len(want.GetAllow()) > 0:
		mode = providers.NetworkProxy
	default:
		mode = *have
	}
	if !t.allowsNetwork(mode) {
		return t.forbids("spec.network.mode", "%s is not allowed", mode)
	}
	*have = mode
	return nil
}

func (t *Template) options(req *sandboxv1.CreateSandboxRequest) (json.RawMessage, error) {
	fields := req.GetProviderOptions().GetFields()
	if len(fields) == 0 {
		return nil, nil
	}
	allowed := make(map[string]bool, len(t.AllowOptions))
	for _, key := range t.AllowOptions {
		allowed[key] = true
	}
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		if !allowed[key] {
			return nil, t.forbids("provider_options."+fault.Bounded(key), "a request must not set it; the template's allow_options has no %q", fault.Bounded(key))
		}
	}
	raw, err := req.GetProviderOptions().MarshalJSON()
	if err != nil {
		var v Violations
		v.Add("provider_options", "cannot be written as JSON")
		return nil, v.Err()
	}
	return raw, nil
}
