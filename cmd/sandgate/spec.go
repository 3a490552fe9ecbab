package main

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// specFlags are the flags that describe a sandbox to create.
type specFlags struct {
	id, template, image, dir string
	memory, disk, network    string
	cpus                     float64
	processes                int32
	env, labels, allow       []string
	secrets                  []string
	options                  []string
	ttl, idle                time.Duration
}

// add adds the flags; prefix distinguishes them from those of a command.
func (f *specFlags) add(c *cli, cmd *cobra.Command, prefix string) {
	flags := cmd.Flags()
	flags.StringVar(&f.id, "id", "", "id of the sandbox (default: a new one)")
	flags.StringVar(&f.template, "template", "", `template to create it from (default SANDGATE_TEMPLATE, else "default")`)
	flags.StringVar(&f.image, "image", "", "OCI image (default: the template's)")
	flags.StringVar(&f.memory, "memory", "", "limit of memory, such as 512MiB")
	flags.Float64Var(&f.cpus, "cpus", 0, "limit of CPU time, in cores, such as 0.5")
	flags.Int32Var(&f.processes, "processes", 0, "limit of processes and threads")
	flags.StringVar(&f.disk, "disk", "", "limit of writable disk, such as 2GiB")
	flags.StringVar(&f.network, "network", "", "network access: none, proxy or full (default: the template's)")
	flags.StringArrayVar(&f.allow, "allow", nil, allowHelp)
	flags.StringArrayVar(&f.secrets, "secret", nil, secretHelp)
	flags.StringArrayVarP(&f.labels, "label", "l", nil, "label KEY=VALUE to find it by (repeatable)")
	flags.StringArrayVar(&f.options, "option", nil, "option KEY=VALUE of the provider; lists and objects as JSON (repeatable)")
	flags.DurationVar(&f.ttl, "ttl", 0, "lifetime from creation, such as 8h; -1s: none (default: the server's)")
	flags.DurationVar(&f.idle, "idle-ttl", 0, "lifetime from the last activity; -1s: none (default: the server's)")
	flags.StringArrayVar(&f.env, prefix+"env", nil, "environment KEY=VALUE of every command (repeatable)")
	flags.StringVar(&f.dir, prefix+"cwd", "", `directory in which commands start (default "/workspace")`)
	_ = cmd.RegisterFlagCompletionFunc("template", c.completeTemplate)
	_ = cmd.RegisterFlagCompletionFunc("network", cobra.FixedCompletions([]string{"none", "proxy", "full"}, cobra.ShellCompDirectiveNoFileComp))
}

// request returns the request that the flags describe.
func (f *specFlags) request(cmd *cobra.Command) (sandgate.CreateRequest, error) {
	r := sandgate.CreateRequest{ID: f.id, Template: f.template, TTL: f.ttl, IdleTTL: f.idle}
	env, err := assignments(cmd, "env", f.env)
	if err != nil {
		return r, err
	}
	if r.Labels, err = assignments(cmd, "label", f.labels); err != nil {
		return r, err
	}
	memory, err := parseSize(cmd, "memory", f.memory)
	if err != nil {
		return r, err
	}
	disk, err := parseSize(cmd, "disk", f.disk)
	if err != nil {
		return r, err
	}
	spec := &sandgate.Spec{Image: f.image, Env: env, WorkingDirectory: f.dir}
	if memory != 0 || disk != 0 || f.cpus != 0 || f.processes != 0 {
		spec.Resources = &sandgate.Resources{
			MemoryBytes: memory, DiskBytes: disk, CpuMillis: int32(math.Round(f.cpus * 1000)), MaxProcesses: f.processes,
		}
	}
	if spec.Network, err = f.access(cmd); err != nil {
		return r, err
	}
	if !proto.Equal(spec, &sandgate.Spec{}) {
		r.Spec = spec
	}
	if len(f.options) > 0 {
		r.ProviderOptions, err = options(cmd, f.options)
	}
	return r, err
}

// access returns the network part of the request.
func (f *specFlags) access(cmd *cobra.Command) (*sandgate.Network, error) {
	modes := map[string]sandboxv1.NetworkMode{
		"":      sandboxv1.NetworkMode_NETWORK_MODE_UNSPECIFIED,
		"none":  sandboxv1.NetworkMode_NETWORK_MODE_NONE,
		"proxy": sandboxv1.NetworkMode_NETWORK_MODE_PROXY,
		"full":  sandboxv1.NetworkMode_NETWORK_MODE_FULL,
	}
	mode, ok := modes[f.network]
	if !ok {
		return nil, usage(cmd, "--network is none, proxy or full, not %q", f.network)
	}
	if f.network == "" && len(f.allow)+len(f.secrets) == 0 {
		return nil, nil
	}
	rules, err := egressRules(cmd, f.allow, f.secrets)
	if err != nil {
		return nil, err
	}
	return &sandgate.Network{Mode: mode, Allow: rules}, nil
}

// assignments splits KEY=VALUE.
func assignments(cmd *cobra.Command, flag string, values []string) (map[string]string, error) {
	if len(values) == 0 {
		return nil, nil
	}
	m := make(map[string]string, len(values))
	for _, value := range values {
		key, text, found := strings.Cut(value, "=")
		if !found || key == "" {
			return nil, usage(cmd, "--%s is KEY=VALUE, not %q", flag, value)
		}
		m[key] = text
	}
	return m, nil
}

// options returns a provider's options from KEY=VALUE. Values that are JSON
// numbers, booleans, lists or objects are parsed, all others are strings.
func options(cmd *cobra.Command, values []string) (*structpb.Struct, error) {
	texts, err := assignments(cmd, "option", values)
	if err != nil {
		return nil, err
	}
	m := make(map[string]any, len(texts))
	for key, text := range texts {
		m[key] = text
		if number, err := strconv.ParseFloat(text, 64); err == nil {
			m[key] = number
		} else if text == "true" || text == "false" {
			m[key] = text == "true"
		} else if strings.HasPrefix(text, "[") || strings.HasPrefix(text, "{") {
			var value any
			if err := json.Unmarshal([]byte(text), &value); err != nil {
				return nil, usage(cmd, "--option %s is not JSON: %v", key, err)
			}
			m[key] = value
		}
	}
	return structpb.NewStruct(m)
}

// parseSize reads a number of bytes with a unit: "512MiB", "512M" and "512Mi"
// are the same, powers of 1024.
func parseSize(cmd *cobra.Command, flag, text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	number := strings.TrimRight(text, "BbIiKkMmGgTt ")
	unit := strings.ToUpper(strings.TrimSpace(text[len(number):]))
	unit = strings.TrimSuffix(strings.TrimSuffix(unit, "B"), "I")
	power := strings.Index("KMGT", unit) + 1
	if unit == "" {
		power = 0
	}
	value, err := strconv.ParseFloat(number, 64)
	bytes := value * math.Pow(1024, float64(power))
	fits := bytes >= 1 && bytes <= math.MaxInt64/2 // Neither does a NaN.
	if err != nil || len(unit) > 1 || unit != "" && power == 0 || !fits {
		return 0, usage(cmd, "--%s is a size such as 512MiB, not %q", flag, text)
	}
	return int64(bytes), nil
}
