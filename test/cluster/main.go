// Command cluster runs a Kubernetes on this machine, for tests: one node, without
// Docker, without a registry, all of it on the loopback address and in one
// directory. It is also the API server, the controller manager, the scheduler and
// the kubelet, and kubectl, when it is called by their names.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/grpclog"
	"k8s.io/component-base/cli"
)

func main() {
	if part := kubes[filepath.Base(os.Args[0])]; part != nil {
		os.Exit(cli.Run(part()))
	}
	// Kubernetes has put flags of its own there.
	pflag.CommandLine = pflag.NewFlagSet(os.Args[0], pflag.ExitOnError)
	// What cannot be reached yet is no news while a cluster starts.
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Minute)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use: "cluster", Short: "Run a Kubernetes on this machine, for tests",
		SilenceUsage: true, SilenceErrors: true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	dir := root.PersistentFlags().String("dir", directory(), "the cluster's directory")
	// in runs a command on the cluster, for as long as no other command does.
	in := func(do func(*cobra.Command, *cluster, []string) error) func(*cobra.Command, []string) error {
		return func(cmd *cobra.Command, args []string) error {
			c, err := open(*dir)
			if err != nil {
				return err
			}
			defer c.close()
			return do(cmd, c, args)
		}
	}
	// up is the same for commands that make no sense without a cluster.
	up := func(do func(*cobra.Command, *cluster, []string) error) func(*cobra.Command, []string) error {
		return in(func(cmd *cobra.Command, c *cluster, args []string) error {
			if !c.exists() {
				_ = os.Remove(c.dir) // if opening it has made it
				return fmt.Errorf("no cluster in %s: start one with: make cluster-up", c.dir)
			}
			return do(cmd, c, args)
		})
	}
	killing := &cobra.Command{
		Use: "kill COMPONENT", Short: "End one component, by SIGKILL unless told otherwise",
		Args: cobra.ExactArgs(1),
	}
	signal := killing.Flags().String("signal", "KILL", "KILL or TERM")
	killing.RunE = up(func(_ *cobra.Command, c *cluster, args []string) error {
		one, err := c.component(args[0])
		if err != nil {
			return err
		}
		number, ok := map[string]syscall.Signal{"KILL": syscall.SIGKILL, "TERM": syscall.SIGTERM}[*signal]
		if !ok {
			return fmt.Errorf("--signal=%s: KILL or TERM", *signal)
		}
		return c.kill(one.name, number)
	})
	images := &cobra.Command{
		Use: "images", Short: "Make docker.io/sandgate/agent:test, which holds the agent at /sandgate-agent",
		Args: cobra.NoArgs,
	}
	agent := images.Flags().String("agent", "", "the agent's binary, for this machine (required)")
	images.RunE = up(func(cmd *cobra.Command, c *cluster, _ []string) error {
		if *agent == "" {
			return errors.New("--agent is required")
		}
		built, err := withAgent(*agent)
		if err != nil {
			return err
		}
		if err := write(c.path("agent.tar"), agentImage, built); err != nil {
			return err
		}
		return c.importArchive(cmd.Context(), c.path("agent.tar"), agentImage)
	})
	root.AddCommand(&cobra.Command{
		Use: "up", Short: "Start what does not run, and return when pods can run",
		Args: cobra.NoArgs,
		RunE: in(func(cmd *cobra.Command, c *cluster, _ []string) error {
			return c.up(cmd.Context(), cmd.OutOrStdout())
		}),
	}, &cobra.Command{
		Use: "down", Short: "Stop the cluster and remove all that is left of it",
		Args: cobra.NoArgs,
		RunE: in(func(cmd *cobra.Command, c *cluster, _ []string) error {
			if c.exists() {
				if err := c.clear(cmd.Context()); err != nil {
					return err
				}
			}
			return os.Remove(c.dir)
		}),
	}, &cobra.Command{
		Use: "status", Short: "Show each component; fails unless pods can run",
		Args: cobra.NoArgs,
		RunE: up(func(cmd *cobra.Command, c *cluster, _ []string) error {
			return c.status(cmd.Context(), cmd.OutOrStdout())
		}),
	}, &cobra.Command{
		Use: "kubeconfig", Short: "Print the path of the administrator's kubeconfig",
		Args: cobra.NoArgs,
		RunE: up(func(cmd *cobra.Command, c *cluster, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), c.path("kubeconfig"))
			return err
		}),
	}, killing, &cobra.Command{
		Use: "start COMPONENT", Short: "Start one component, and those that ended by themselves",
		Args: cobra.ExactArgs(1),
		RunE: up(func(cmd *cobra.Command, c *cluster, args []string) error {
			one, err := c.component(args[0])
			if err != nil {
				return err
			}
			if err := c.start(cmd.Context(), one); err != nil {
				return err
			}
			return c.restartEnded(cmd.Context())
		}),
	}, images, &cobra.Command{
		Use: "load [NAME=]PATH...", Short: "Bring in images: docker-archives, OCI archives or OCI layouts",
		Args: cobra.MinimumNArgs(1),
		RunE: up(func(cmd *cobra.Command, c *cluster, args []string) error {
			for _, arg := range args {
				image, path := split(arg)
				if err := c.load(cmd.Context(), image, path); err != nil {
					return err
				}
			}
			return nil
		}),
	})
	return root
}

// directory is where the cluster lies unless --dir says otherwise: the value of
// SANDGATE_CLUSTER_DIR, else .cluster in the folder that holds .tools/cluster,
// where this binary is built to.
func directory() string {
	if dir := os.Getenv("SANDGATE_CLUSTER_DIR"); dir != "" {
		return dir
	}
	exe, err := os.Executable()
	if err != nil {
		return ".cluster"
	}
	if root, ok := strings.CutSuffix(filepath.Dir(exe), filepath.Join("/.tools", "cluster")); ok {
		return filepath.Join(root, ".cluster")
	}
	return ".cluster"
}
