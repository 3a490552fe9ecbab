// Package serve is the command "sandgate serve": it reads the configuration, wires
// provider, authentication and listeners, and runs the server.
package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/policy"
)

// Without settings the audit log takes 1.1 GiB at most.
const (
	defaultAuditSize  = 100
	defaultAuditFiles = 10
)

// stopFlags say how connections and the server end.
type stopFlags struct{ lameDuck, drain, timeout, connectionAge time.Duration }

func (f stopFlags) check() error {
	if f.lameDuck < 0 || f.drain < 0 || f.timeout < 0 || f.connectionAge < 0 {
		return errors.New("--lame-duck, --drain, --shutdown-timeout and --max-connection-age must not be negative")
	}
	return nil
}

// serveFlags are the flags of "sandgate serve". What a flag says wins over the
// configuration file.
type serveFlags struct {
	version                            string
	listen, provider, stateDir, config string
	insecure, requireLimits            bool
	tlsCert, tlsKey, tlsClientCA       string
	tokensFile                         string
	specSecretFile                     string
	audit                              auditFlags
	admin                              adminFlags
	stop                               stopFlags
	logLevel, logFormat                string
	agent                              string
	localRuntime, localProfile         string
	localWay, localCgroup              string
	localMaxMemory, localMaxProcesses  int64
	localMinFree                       int64
	localDiskOvercommit                float64
	localUIDBase                       uint32
	kubernetes                         kubernetesFlags
	agentSandbox                       agentSandboxFlags
}

// NewCommand returns the command "serve" of a program of this version.
func NewCommand(version string) *cobra.Command {
	f := serveFlags{version: version}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the server",
		Long: `Serve runs the server until it is told to stop. Without TLS and tokens it
listens on loopback or a unix socket only.

On the first SIGTERM or SIGINT it stops taking calls, ends the streams, leaves
the sandboxes and their commands running, and exits; on the second it exits at
once. A restarted server finds its sandboxes again.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return serve(cmd.Context(), f, cmd.Flags().Changed, cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.listen, "listen", "127.0.0.1:7777", "address to serve at: HOST:PORT or unix:///path")
	flags.StringVar(&f.provider, "provider", "local", "where sandboxes live: local, kubernetes or agentsandbox")
	_ = cmd.RegisterFlagCompletionFunc("provider", cobra.FixedCompletions([]string{"local", "kubernetes", "agentsandbox"}, cobra.ShellCompDirectiveNoFileComp))
	flags.StringVar(&f.stateDir, "state-dir", defaultStateDir(), "directory for what must survive the server")
	flags.StringVar(&f.config, "config", "", "configuration file (YAML)")
	flags.BoolVar(&f.insecure, "insecure", false, "allow listening beyond this machine without TLS and authentication")
	flags.BoolVar(&f.requireLimits, "require-limits", false, "refuse to serve where memory, CPU, processes, disk or network are not enforced (default true for the local provider beyond loopback)")
	flags.StringVar(&f.tlsCert, "tls-cert", "", "PEM file of the server's certificate; read again when it changes")
	flags.StringVar(&f.tlsKey, "tls-key", "", "PEM file of the certificate's key")
	flags.StringVar(&f.tlsClientCA, "tls-client-ca", "", "PEM file of the authorities for client certificates, which then authenticate")
	flags.StringVar(&f.tokensFile, "tokens-file", "", "file of hashed tokens, made by \"sandgate token new\"; read again when it changes")
	flags.StringVar(&f.audit.file, "audit-file", "", "file for audit records, reopened on SIGHUP; \"-\" for standard error (default STATE-DIR/audit.log)")
	flags.IntVar(&f.audit.maxSize, "audit-max-size", defaultAuditSize, "MiB after which the audit file is renamed and another begun")
	flags.IntVar(&f.audit.maxFiles, "audit-max-files", defaultAuditFiles, "renamed audit files to keep; 0: all")
	flags.BoolVar(&f.audit.required, "audit-required", false, "refuse calls while the audit log cannot be written")
	flags.BoolVar(&f.audit.commandText, "audit-command-text", false, "keep the text of commands in the audit log, not only a hash")
	flags.StringVar(&f.specSecretFile, "spec-secret-file", "", "secret that salts stored hashes of environment values, the same for all replicas (default with the local provider: STATE-DIR/spec-secret, made when missing)")
	flags.StringVar(&f.admin.listen, "admin-listen", "", "address for /metrics, /healthz and /readyz: HOST:PORT, :PORT on loopback, or unix:///path (default none)")
	flags.BoolVar(&f.admin.profiles, "pprof", false, "serve /debug/pprof at --admin-listen")
	flags.DurationVar(&f.stop.lameDuck, "lame-duck", 0, "how long to go on serving after SIGTERM, not ready, so that load balancers notice")
	flags.DurationVar(&f.stop.drain, "drain", time.Second, "how long running calls may go on after that")
	flags.DurationVar(&f.stop.timeout, "shutdown-timeout", 15*time.Second, "when a shutdown that hangs is cut off, after --lame-duck")
	flags.DurationVar(&f.stop.connectionAge, "max-connection-age", 0, "age at which clients are asked to connect anew, to another replica perhaps; running calls go on; 0: none")
	flags.StringVar(&f.logLevel, "log-level", "warn", "debug, info, warn or error")
	flags.StringVar(&f.logFormat, "log-format", "text", "text or json")
	flags.StringVar(&f.agent, "agent", "", "executable of the agent, instead of the embedded one")
	flags.StringVar(&f.localRuntime, "local-runtime", "runc", "OCI runtime of the local provider: runc, crun or runsc")
	flags.StringVar(&f.localProfile, "local-profile", "default", "profile of the local provider: default or restricted")
	flags.StringVar(&f.localWay, "local-way", "", "way of the local provider to the agent: socket or exec (default socket, with runsc exec)")
	flags.Uint32Var(&f.localUIDBase, "local-uid-base", 0, "first of the 65536 user ids of the local provider's sandboxes, one for each (default 2031616)")
	flags.StringVar(&f.localCgroup, "local-cgroup", "/sandgate", "cgroup of the local provider, below which sandboxes get theirs")
	flags.Int64Var(&f.localMaxMemory, "local-max-memory", 0, "memory of all sandboxes of the local provider together, in bytes (default nine tenths of the machine's; negative: no limit)")
	flags.Int64Var(&f.localMaxProcesses, "local-max-processes", 0, "processes of all sandboxes of the local provider together (default half of what the kernel allows; negative: no limit)")
	flags.Int64Var(&f.localMinFree, "local-min-free", 0, "free bytes of the state directory's file system below which the local provider creates no sandbox (default a twentieth of it, at most 2 GiB; negative: none)")
	flags.Float64Var(&f.localDiskOvercommit, "local-disk-overcommit", 0, "how many times the disks of all sandboxes of the local provider may exceed the space for them (default 10, beyond loopback 1, which guarantees each its space; negative: no limit)")
	f.kubernetes.add(flags)
	f.agentSandbox.add(flags)
	return cmd
}

func defaultStateDir() string {
	if os.Geteuid() == 0 {
		return "/var/lib/sandgate"
	}
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "sandgate")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".local", "state", "sandgate")
}

// serve runs the server until ctx ends.
func serve(ctx context.Context, f serveFlags, changed func(flag string) bool, stderr io.Writer) (err error) {
	defer func() { err = f.report(stderr, err) }()
	file, err := readConfig(f.config)
	if err != nil {
		return err
	}
	file.overrule(&f, changed)
	if file.RequireLimits == nil && !changed("require-limits") {
		f.requireLimits = f.provider == "local" && beyondLoopback(f.listen)
	}
	if f.localDiskOvercommit == 0 && beyondLoopback(f.listen) {
		f.localDiskOvercommit = 1
	}
	logger, err := newLogger(f.logLevel, f.logFormat, stderr)
	if err != nil {
		return err
	}
	stateDir, err := filepath.Abs(f.stateDir)
	if err != nil {
		return err
	}
	if err := f.stop.check(); err != nil {
		return err
	}
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return fmt.Errorf("state directory: %w; give another with --state-dir", err)
	}
	f.stateDir = stateDir

	cfg, err := file.server()
	if err != nil {
		return err
	}
	cfg.Version, cfg.Logger, cfg.Insecure, cfg.RequireLimits = f.version, logger, f.insecure, f.requireLimits
	if cfg.TLS, err = f.tls(logger); err != nil {
		return err
	}
	if cfg.Authenticator, err = f.authenticator(logger); err != nil {
		return err
	}
	if len(cfg.Templates) == 0 {
		cfg.Templates = []policy.Template{builtinTemplate(cfg.Authenticator == nil && strings.HasPrefix(f.listen, "unix:"))}
	}
	if f.provider == "local" && (cfg.Authenticator != nil || f.insecure) {
		requireImageLists(cfg.Templates)
	}
	cfg.Timing.LameDuck, cfg.Timing.Drain, cfg.Timing.ConnectionAge = f.stop.lameDuck, max(f.stop.drain, 1), f.stop.connectionAge
	if cfg.SpecSecret, err = f.specSecret(); err != nil {
		return err
	}
	audit, err := f.audit.open(stateDir, stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, audit.close()) }()
	defer audit.reopenOnHangup(ctx, logger)()
	cfg.Audit, cfg.AuditRequired, cfg.AuditCommandText = audit, f.audit.required, f.audit.commandText

	provider, err := newProvider(ctx, f, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, provider.Close()) }()
	cfg.Provider = provider

	adminListener, err := f.admin.open(ctx, f.insecure)
	if err != nil {
		return err
	}
	var admin *admin
	cfg.Announce = func(at net.Addr) { f.announce(stderr, cfg, at, admin.at) }
	srv, err := server.New(cfg)
	if err != nil {
		if adminListener != nil {
			err = errors.Join(err, adminListener.Close())
		}
		return err
	}
	admin = serveAdmin(adminListener, srv.AdminHandler(f.admin.profiles))
	stop := func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.stop.lameDuck+f.stop.timeout)
		defer cancel()
		return errors.Join(srv.Shutdown(ctx), admin.close(ctx))
	}
	l, err := server.Listen(ctx, f.listen)
	if err != nil {
		return errors.Join(err, stop())
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	select {
	case err := <-served:
		return errors.Join(err, l.Close(), stop())
	case <-ctx.Done():
		return errors.Join(stop(), <-served)
	}
}

func (f serveFlags) authenticator(logger *slog.Logger) (authn.Authenticator, error) {
	var any authn.Any
	if f.tokensFile != "" {
		tokens, err := authn.OpenTokens(f.tokensFile, logger)
		if err != nil {
			return nil, err
		}
		any = append(any, tokens)
	}
	if f.tlsClientCA != "" {
		any = append(any, authn.Certificates{})
	}
	if len(any) == 0 {
		return nil, nil
	}
	return any, nil
}
