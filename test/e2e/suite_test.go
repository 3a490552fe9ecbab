package e2e

import (
	"context"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/conformance"
	"github.com/sandgate/sandgate/conformance/goprogram/build"
	"github.com/sandgate/sandgate/test/daemon"
)

// variant is one configuration of a server. A new runtime is one more line here.
type variant struct {
	name  string
	flags []string
	// tool is what the server needs on this machine beside what all variants need.
	tool string
	// whole: every run holds it to all cases that are not long. Of the others each
	// run takes a part.
	whole bool
}

var variants = []variant{
	{name: "socket", flags: []string{"--local-transport", "socket"}, whole: true},
	{name: "exec", flags: []string{"--local-transport", "exec"}},
	{name: "exec restricted", flags: []string{"--local-transport", "exec", "--local-profile", "restricted"}},
	{name: "runsc", flags: []string{"--local-runtime", "runsc"}, tool: "runsc"},
}

// cutInner cuts every connection between a server that listens on TCP and its agents.
func (s *server) cutInner(context.Context) (int, error) {
	return daemon.ShutAgentConnections(s.Process.Pid, math.MaxInt, unix.SHUT_RDWR, rand.Shuffle)
}

// The part that a variant runs: its share of the cases, the seed of the choice, and
// the size of the large ones, as in docs/conformance.md.
const (
	partFraction = 0.25
	partScale    = 0.1
	suiteSeed    = 20
)

// TestSuite runs the conformance suite against a server: with SANDGATE_CONFORMANCE=full
// all of it, at full size, for every variant. SANDGATE_CONFORMANCE_SEED chooses another
// seed.
func TestSuite(t *testing.T) {
	need(t)
	seed := uint64(suiteSeed)
	if text := os.Getenv("SANDGATE_CONFORMANCE_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("SANDGATE_CONFORMANCE_SEED: %v", err)
		}
	}
	full := os.Getenv("SANDGATE_CONFORMANCE") == "full"
	for i, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			if v.tool != "" {
				if _, err := exec.LookPath(v.tool); err != nil {
					t.Skipf("needs %s: %v", v.tool, err)
				}
			}
			// Each variant gets another part.
			filter, scale := conformance.Filter{Seed: seed + uint64(i), Long: full}, 1.0
			if !v.whole && !full {
				filter.Fraction, scale = partFraction, partScale
			}
			cases, err := filter.Choose(conformance.Cases())
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d of %d cases, seed %d, scale %v", len(cases), len(conformance.Cases()), filter.Seed, scale)
			s := suiteServer(t, v.flags)
			suite, err := conformance.Open(t.Context(), conformance.Options{
				Address: s.address, Seed: filter.Seed, Scale: scale, CutInner: s.cutInner, GoProgram: build.GoProgram(t),
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				if err := suite.Close(ctx); err != nil {
					t.Errorf("after the suite: %v", err)
				}
			})
			for _, c := range cases {
				if c.Group == "network" {
					continue // test/network runs these with rules and an upstream
				}
				t.Run(c.Name, func(t *testing.T) {
					if c.Group == "programs" {
						t.Cleanup(func() { assertRan(t, c) })
					}
					suite.Run(t.Context(), t, c)
				})
			}
		})
	}
}

// assertRan fails a case that was skipped although the machine, whose userland a
// sandbox shares, has all programs that it needs.
func assertRan(t *testing.T, c conformance.Case) {
	t.Helper()
	if !t.Skipped() {
		return
	}
	for _, need := range c.Programs {
		if exec.Command("/bin/sh", "-c", need).Run() != nil {
			return
		}
	}
	t.Error("this machine has the programs that the case needs")
}

// suiteServer starts a server that listens on TCP: then all its unix sockets are
// those to agents, and a connection to it can be reset.
func suiteServer(t *testing.T, flags []string) *server {
	t.Helper()
	dir, err := os.MkdirTemp("", "sandgate-suite-")
	if err != nil {
		t.Fatal(err)
	}
	// One case needs more than a template allows that does not say so.
	config := filepath.Join(dir, "config.yaml")
	text := "templates: [{name: default, max_resources: {max_processes: 4096, memory_bytes: 4294967296}}]\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newServer(dir, append([]string{"--config", config}, flags...)...)
	s.address = "127.0.0.1:0"
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}
