package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/cmd/sandgate/internal/terminal"
)

func (c *cli) infoCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "info [ID]",
		Short: "Describe the server, or one sandbox",
		Long: `Describe the server: its version, your identity, its capabilities, and the
protections that it enforces. With an id, describe that sandbox.`,
		Example: `  sandgate info
  sandgate info build-42
  sandgate info --output json | jq .enforcement`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: c.completeSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.with(cmd, func(ctx context.Context, client *sandgate.Client) error {
				if len(args) == 0 {
					info, err := client.ServerInfo(ctx)
					if err != nil {
						return err
					}
					if err := c.server(info); err != nil || c.json() {
						return err
					}
					return c.pools(ctx, client, info)
				}
				info, err := client.Sandbox(args[0]).Info(ctx)
				if err != nil {
					return err
				}
				return c.sandbox(info)
			})
		},
	}
}

// completeTemplate completes the names of the server's templates.
func (c *cli) completeTemplate(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	var names []string
	_ = c.with(cmd, func(ctx context.Context, client *sandgate.Client) error {
		info, err := client.ServerInfo(ctx)
		names = info.GetTemplates()
		return err
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}

// server prints a description of the server.
func (c *cli) server(info *sandgate.ServerInfo) error {
	if c.json() {
		return c.message(info)
	}
	principal, limits := info.GetPrincipal(), info.GetLimits()
	name := principal.GetName()
	if name == "" {
		name = "anonymous (no authentication)"
	}
	err := facts(c.stdout,
		"Version", info.GetVersion(),
		"Provider", info.GetProvider(),
		"You", fmt.Sprintf("%s, tenant %s", name, principal.GetTenant()),
		"Templates", strings.Join(info.GetTemplates(), ", "),
		"Capabilities", strings.Join(info.GetCapabilities(), ", "),
		"Timeout", lasting(limits.GetDefaultTimeout(), "none")+" by default, largest: "+lasting(limits.GetMaxTimeout(), "any"),
		"Lifetime", lasting(limits.GetDefaultTtl(), "none")+" by default",
		"Idle lifetime", lasting(limits.GetDefaultIdleTtl(), "none")+" by default",
		"Retained output", size(limits.GetOutputLogBytes()),
		"Largest message", size(limits.GetMaxMessageBytes()),
	)
	if err != nil || len(info.GetEnforcement()) == 0 {
		return err
	}
	var rows [][]string
	for _, e := range info.GetEnforcement() {
		enforced := "no"
		if e.GetEnforced() {
			enforced = "yes"
		}
		rows = append(rows, []string{e.GetName(), enforced, e.GetDetail()})
	}
	if _, err := fmt.Fprintln(c.stdout); err != nil {
		return err
	}
	return table(c.stdout, []string{"PROTECTION", "ENFORCED", "HOW"}, rows)
}

// pools prints the pools of the server's templates.
func (c *cli) pools(ctx context.Context, client *sandgate.Client, info *sandgate.ServerInfo) error {
	if !slices.Contains(info.GetCapabilities(), "pool") {
		return nil
	}
	var rows [][]string
	for _, template := range info.GetTemplates() {
		s, err := client.PoolStatus(ctx, template)
		if errors.Is(err, sandgate.ErrTemplateNotFound) {
			continue // it has no pool
		}
		if err != nil {
			return err
		}
		number := func(n int32) string { return strconv.Itoa(int(n)) }
		rows = append(rows, []string{template, number(s.GetAvailable()), number(s.GetTarget()), number(s.GetActive()), number(s.GetTotal())})
	}
	if len(rows) == 0 {
		return nil
	}
	if _, err := fmt.Fprintln(c.stdout); err != nil {
		return err
	}
	return table(c.stdout, []string{"POOL", "AVAILABLE", "TARGET", "CLAIMED", "TOTAL"}, rows)
}

// sandbox prints a description of a sandbox.
func (c *cli) sandbox(info *sandgate.Info) error {
	if c.json() {
		return c.message(info)
	}
	spec, isolation := info.GetSpec(), info.GetIsolation()
	state := word(info.GetState(), statePrefix)
	if info.GetStateMessage() != "" {
		state += ": " + terminal.Clean(info.GetStateMessage())
	}
	origin := "created for this request"
	if info.GetFromPool() {
		origin = "claimed from the pool"
	}
	cpus, processes := "", ""
	if n := spec.GetResources().GetCpuMillis(); n > 0 {
		cpus = strconv.FormatFloat(float64(n)/1000, 'f', -1, 64) + " cores"
	}
	if n := spec.GetResources().GetMaxProcesses(); n > 0 {
		processes = strconv.Itoa(int(n))
	}
	return facts(c.stdout,
		"Id", info.GetSandboxId(),
		"State", state,
		"Incarnation", info.GetIncarnation(),
		"Created", stamp(info.GetCreateTime()),
		"Last activity", stamp(info.GetLastActivityTime()),
		"Expires", until(info.GetExpireTime()),
		"Labels", terminal.Clean(pairs(info.GetLabels())),
		"Template", info.GetTemplate(),
		"Origin", origin,
		"Image", spec.GetImage(),
		"Image digest", info.GetImageDigest(),
		"Directory", spec.GetWorkingDirectory(),
		"Memory", size(spec.GetResources().GetMemoryBytes()),
		"CPU", cpus,
		"Processes", processes,
		"Disk", size(spec.GetResources().GetDiskBytes()),
		"Runtime", isolation.GetRuntime(),
		"Network", word(isolation.GetNetwork(), "NETWORK_MODE_"),
		"Unprivileged", strconv.FormatBool(isolation.GetUnprivileged()),
		"System", map[bool]string{true: "read-only", false: "writable"}[isolation.GetReadOnlySystem()],
		"Not enforced", strings.Join(isolation.GetNotEnforced(), "; "),
		"On substrate", info.GetSubstrateName(),
		"Transport", info.GetTransport(),
	)
}
