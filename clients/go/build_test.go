package sandgate

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// stub writes a program that stands for sandgate, of any version.
func stub(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sandgate")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// The arguments are those of all clients: clients/build.json.
func TestArgumentsOfABuild(t *testing.T) {
	for title, c := range buildCases(t) {
		t.Run(title, func(t *testing.T) {
			request := BuildRequest{
				Context: c.Context, Dockerfile: c.Options.Dockerfile, Target: c.Options.Target, BuildArgs: c.Options.BuildArgs,
				Platform: c.Options.Platform, Save: c.Options.Save, SaveDir: c.Options.SaveDir, Push: c.Options.Push, Tag: c.Options.Tag,
				Pull: c.Options.Pull, NoCache: c.Options.NoCache, Network: c.Options.Network,
				DockerHost: c.Options.DockerHost, BuildkitHost: c.Options.BuildkitHost,
			}
			var lines []string
			request.Program = stub(t, `printf '%s\n' "$@" >&2; echo name`)
			request.OnOutput = func(line string) { lines = append(lines, line) }
			image, err := BuildImage(within(t), request)
			if c.Arguments == nil {
				if !errors.Is(err, ErrInvalidRequest) {
					t.Errorf("%q, %v", image, err)
				}
				return
			}
			if diff := cmp.Diff(c.Arguments, lines); diff != "" || image != "name" || err != nil {
				t.Errorf("%q, %v (-want +got):\n%s", image, err, diff)
			}
		})
	}
}

func TestBuildThatFails(t *testing.T) {
	for title, c := range map[string]struct {
		program, message, code string
	}{
		"no program":     {filepath.Join(t.TempDir(), "absent"), "install", ""},
		"failure":        {stub(t, "for i in $(seq 30); do echo line $i >&2; done; exit 125"), "exit code 125: line 30", "125"},
		"older program":  {stub(t, `echo 'sandgate: unknown command "build"; see: sandgate --help' >&2; exit 125`), "unknown command", "125"},
		"signal":         {stub(t, "kill -9 $$"), "was killed", ""},
		"no name":        {stub(t, ":"), "no name", ""},
		"something else": {stub(t, "echo some; echo text"), "no name", ""},
	} {
		t.Run(title, func(t *testing.T) {
			_, err := BuildImage(within(t), BuildRequest{Program: c.program, OnOutput: func(string) {}})
			failure := (*Error)(nil)
			if !errors.Is(err, ErrBuild) || !errors.As(err, &failure) || failure.Name() != "BuildError" || !strings.Contains(failure.Message, c.message) || failure.Metadata["exit_code"] != c.code {
				t.Fatalf("%v", err)
			}
			if output := failure.Metadata["output"]; title == "failure" && (!strings.HasPrefix(output, "line 11\n") || !strings.HasSuffix(output, "\nline 30")) {
				t.Errorf("the output is %q", output)
			}
		})
	}
}

// The program has ended, by its own handler, when a cancelled build returns.
func TestCancelledBuild(t *testing.T) {
	done := filepath.Join(t.TempDir(), "done")
	program := stub(t, `trap 'echo stopped >"`+done+`"; exit 143' TERM; echo running >&2; while :; do sleep 0.01; done`)
	ctx, cancel := context.WithCancel(within(t))
	_, err := BuildImage(ctx, BuildRequest{Program: program, OnOutput: func(line string) {
		if line == "running" {
			cancel()
		}
	}})
	if !errors.Is(err, ErrCallCancelled) || !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(done); err != nil {
		t.Error(err)
	}
}

type buildCase struct {
	Context string
	Options struct {
		Dockerfile, Target, Platform, Push, Tag, Network string
		BuildArgs                                        map[string]string `json:"build_args"`
		SaveDir                                          string            `json:"save_dir"`
		DockerHost                                       string            `json:"docker_host"`
		BuildkitHost                                     string            `json:"buildkit_host"`
		Save, Pull                                       bool
		NoCache                                          bool `json:"no_cache"`
	}
	// Arguments are nil if the options contradict one another.
	Arguments []string
}

func buildCases(t *testing.T) map[string]buildCase {
	t.Helper()
	raw, err := os.ReadFile("../build.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases map[string]buildCase
	if err := json.Unmarshal(raw, &cases); err != nil {
		t.Fatal(err)
	}
	return cases
}
