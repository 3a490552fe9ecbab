package faults

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

const (
	// pace is the time between two lines of a command.
	pace = 50 * time.Millisecond
	// longest is how long anything may be away without a caller losing anything.
	longest = 30 * time.Second
	// after is how long a command writes on when the fault is over.
	after = 3 * time.Second
)

// away is how long a fault lasts: the longest with SANDGATE_KUBERNETES=full,
// else some seconds by a seed.
func away(t *testing.T, name string) time.Duration {
	t.Helper()
	if os.Getenv("SANDGATE_KUBERNETES") == "full" {
		return longest
	}
	chosen := 2*time.Second + time.Duration(seeded(t, name).Int64N(int64(5*time.Second)))
	t.Logf("away for %v", chosen)
	return chosen
}

// seeded is a source of choices for a name and the seed.
func seeded(t *testing.T, name string) *rand.Rand {
	t.Helper()
	seed := uint64(20)
	if text := os.Getenv("SANDGATE_FAULTS_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("SANDGATE_FAULTS_SEED: %v", err)
		}
	}
	for _, b := range []byte(name) {
		seed = seed*31 + uint64(b)
	}
	return rand.New(rand.NewPCG(seed, 0))
}

// running is a command that writes numbered lines, and what arrives of it.
type running struct {
	side  *side
	box   *sandgate.Sandbox
	lines int
	begun chan struct{} // closed after the first lines
	done  chan struct{}

	// Valid when done is closed.
	got  strings.Builder
	exit *sandgate.Exited
	late time.Duration // from the command's end until it was told
	err  error
}

// start runs a command of that many lines in a sandbox.
func (s *side) start(t *testing.T, box *sandgate.Sandbox, lines int) *running {
	t.Helper()
	p, err := box.Start(t.Context(), sandgate.ExecuteRequest{
		Shell: fmt.Sprintf(`i=0; while [ $i -lt %d ]; do echo "line $i of the stream"; i=$((i+1)); sleep %v; done; exit 7`, lines, pace.Seconds()),
	})
	if err != nil {
		t.Fatalf("%s: %v", s.provider, err)
	}
	r := &running{side: s, box: box, lines: lines, begun: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(r.done)
		defer p.Close()
		for event, err := range p.Events() {
			if err != nil {
				r.err = err
				break
			}
			before := r.got.Len()
			r.got.Write(event.Output.GetData())
			if before <= 500 && r.got.Len() > 500 {
				close(r.begun)
			}
		}
		r.exit = p.Exit()
		// The pod's node is this machine, and so is its clock.
		r.late = time.Since(r.exit.GetEndTime().AsTime())
	}()
	t.Cleanup(func() { <-r.done })
	return r
}

// whole checks that all has arrived, once and in order.
func (r *running) whole(t *testing.T) {
	t.Helper()
	var all strings.Builder
	for i := range r.lines {
		fmt.Fprintf(&all, "line %d of the stream\n", i)
	}
	if r.err != nil {
		t.Errorf("%s: after %d bytes: %v", r.side, r.got.Len(), r.err)
		return
	}
	if r.exit.GetReason() != sandboxv1.ExitReason_EXIT_REASON_EXITED || r.exit.GetExitCode() != 7 {
		t.Errorf("%s: it ended %v", r.side, r.exit)
	}
	if r.got.String() != all.String() {
		t.Errorf("%s: %d bytes arrived that are not the %d written", r.side, r.got.Len(), all.Len())
	}
}

// TestStreamsGoOn takes away everything between a caller and a running command,
// with both providers at once, by exec.
func TestStreamsGoOn(t *testing.T) {
	r := newHarness(t, "exec")
	boxes := map[*side]*sandgate.Sandbox{}
	for _, s := range r.sides {
		boxes[s] = s.create(t, "")
	}
	missing := func(name string) func(*testing.T, time.Duration, []*running) {
		return func(t *testing.T, d time.Duration, _ []*running) {
			r.component(t, "kill", name)
			time.Sleep(d) // the fault itself, not a wait for something
			r.component(t, "start", name)
		}
	}
	for _, tt := range []struct {
		name  string
		fault func(*testing.T, time.Duration, []*running)
	}{
		{"C7 connect in the pod, as often as it is there", killConnect},
		// The servers are outside of the cluster and reach it by the current context
		// of a kubeconfig; nothing is forwarded by hand.
		{"C7 S1-9 S2-7 the connection of the client", func(_ *testing.T, _ time.Duration, runs []*running) {
			for _, run := range runs {
				run.side.front.cut()
			}
		}},
		{"C7 the tunnel, cut", func(_ *testing.T, d time.Duration, _ []*running) {
			back := r.api.away()
			r.api.cut()
			time.Sleep(d)
			back()
		}},
		{"C7 the tunnel, a black hole", func(_ *testing.T, d time.Duration, _ []*running) {
			r.api.swallow()
			time.Sleep(d)
			r.api.pass()
		}},
		{"C7 kubelet", missing("kubelet")},
		{"C7 API server", missing("kube-apiserver")},
		{"C7 containerd", missing("containerd")},
		{"C7 C23 S1-23 the server, another takes over", func(_ *testing.T, d time.Duration, runs []*running) {
			for _, run := range runs {
				run.side.killServer()
			}
			time.Sleep(d)
			for _, run := range runs {
				run.side.takeOver()
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := away(t, tt.name)
			lines := int((d + after) / pace)
			var runs []*running
			for _, s := range r.sides {
				runs = append(runs, s.start(t, boxes[s], lines))
			}
			for _, run := range runs {
				await(t, run.begun, run.done)
			}
			began := time.Now()
			latest := time.Duration(0)
			tt.fault(t, d, runs)
			for _, run := range runs {
				select {
				case <-run.done:
				case <-time.After(d + after + 2*time.Minute):
					t.Fatalf("%s: nothing came for %v", run.side, time.Since(began))
				}
				run.whole(t)
				latest = max(latest, run.late)
			}
			t.Logf("%d lines in %v; an end was told %v late at most", lines,
				time.Since(began).Round(time.Millisecond), latest.Round(time.Millisecond))
		})
	}
	t.Run("C23 nothing is left", func(t *testing.T) {
		for s, box := range boxes {
			if err := box.Delete(t.Context()); err != nil {
				t.Errorf("%s: %v", s.provider, err)
			}
		}
		r.nothingLeft(t)
	})
}

// await waits for the first of two to be closed.
func await(t *testing.T, first, other <-chan struct{}) {
	t.Helper()
	select {
	case <-first:
	case <-other:
	case <-time.After(time.Minute):
		t.Fatal("nothing came for a minute")
	}
}

// killConnect has a command in the pod kill what carries the stream to the agent,
// for that long: both are the sandbox's user.
func killConnect(t *testing.T, d time.Duration, runs []*running) {
	for _, run := range runs {
		_, err := run.box.Execute(t.Context(), sandgate.ExecuteRequest{
			Shell: fmt.Sprintf(`end=$(($(date +%%s)+%d)); while [ $(date +%%s) -lt $end ]; do
				for d in /proc/[0-9]*; do
					if tr '\0' ' ' <$d/cmdline 2>/dev/null | grep -q 'agent[^ ]* connect '; then kill -9 ${d#/proc/}; fi
				done; sleep 0.2; done`, max(1, int(d.Seconds()))),
			Detach: true,
		})
		if err != nil {
			t.Log(err) // its own stream went through the killed one
		}
	}
}

// killServer kills the server whose turn it is.
func (s *side) killServer() {
	now := s.servers[s.turn]
	_ = now.cmd.Process.Kill()
	_ = now.cmd.Wait()
	s.front.to("")
	s.front.cut()
}

// takeOver lets the other server in, and starts one in place of the killed.
func (s *side) takeOver() {
	former := s.turn
	s.turn = 1 - former
	s.front.to(s.servers[s.turn].address)
	s.servers[former] = s.serve()
}
