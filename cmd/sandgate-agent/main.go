// Command sandgate-agent runs inside a sandbox. It runs commands and file operations for
// the server, which the provider connects to its socket.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
)

// version is set by the build.
var version = "dev"

const usage = `usage:
  sandgate-agent serve [--listen unix:///path|unix:@name]... [--listen-fd N]
                       [--listen-tcp HOST:PORT, with a secret in SANDGATE_AGENT_SECRET]
                       [--incarnation ID] [--workdir DIR] [--cgroup DIR] [--state-dir DIR]
                       [-- COMMAND ARG...]
  sandgate-agent connect [--to unix:///path|unix:@name] [--wait DURATION]
  sandgate-agent start --dir DIR --incarnation ID [--generation N] [--workdir DIR] [--sha256 HEX]
                       [--listen-tcp HOST:PORT, with the secret on standard input]
  sandgate-agent stop --dir DIR
  sandgate-agent install DIR
  sandgate-agent route [CIDR]...
  sandgate-agent reach --listen HOST:PORT | --until open|closed [--within DURATION] HOST:PORT
  sandgate-agent version
`

// errUsage is returned for an invalid command line.
var errUsage = errors.New("invalid usage")

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

func run(args []string, stdin, stdout, stderr *os.File) int {
	command := ""
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	var err error
	switch command {
	case "serve":
		err = serve(args, stderr)
	case "connect":
		// connect only copies bytes, but may have inherited a secret.
		conceal()
		debug.SetGCPercent(25)
		debug.FreeOSMemory()
		err = connect(args, stdin, stdout)
	case "install":
		err = install(args)
	case "reach":
		err = reach(args)
	case "start":
		err = start(args, stdin, stdout)
	case "route":
		err = route(args)
	case "stop":
		err = stop(args)
	case "version":
		_, err = fmt.Fprintln(stdout, version)
	default:
		err = errUsage
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errUsage):
		_, _ = io.WriteString(stderr, usage)
		return 2
	case errors.Is(err, errNotReached):
		fmt.Fprintln(stderr, "sandgate-agent:", err)
		return notReachedCode
	default:
		fmt.Fprintln(stderr, "sandgate-agent:", err)
		return 1
	}
}
