package agent

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/sandgate/sandgate/agent/protocol"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// The idle time begins with the end of the last command, and there is none while
// a command runs.
func TestIdleTimeBeginsWhenTheLastCommandEnds(t *testing.T) {
	h := start(t, setup{})
	activity := func() (running int32, idle time.Duration) {
		t.Helper()
		reply, err := h.GetActivity(testContext(t), &agentv1.GetActivityRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return reply.GetRunningCommands(), reply.GetIdleTime().AsDuration()
	}
	eventually(t, "the agent is idle for 50 ms", func() bool { _, idle := activity(); return idle >= 50*time.Millisecond })
	g := newGate(t)
	ended := make(chan result, 1)
	go func() { ended <- h.run(t, shell("cat "+string(g))) }()
	eventually(t, "a command runs", func() bool { n, _ := activity(); return n == 1 })
	if n, idle := activity(); n != 1 || idle != 0 {
		t.Errorf("%d commands run, idle for %v", n, idle)
	}
	begun := time.Now()
	g.open(t)
	<-ended
	eventually(t, "no command runs", func() bool { n, _ := activity(); return n == 0 })
	if _, idle := activity(); idle > time.Since(begun) {
		t.Errorf("idle for %v, %v after the command's end", idle, time.Since(begun))
	}
}

// Calls that inspect leave the agent as idle as it was.
func TestInspectionsAreNoActivity(t *testing.T) {
	h := start(t, setup{})
	r := argv("true")
	r.ExecId = "ended"
	h.run(t, r)
	inspect := func(ctx context.Context) {
		t.Helper()
		_, stat := h.StatFile(ctx, &sandboxv1.StatFileRequest{Path: "/"})
		_, list := h.ListProcesses(ctx, &sandboxv1.ListProcessesRequest{})
		_, search := h.SearchFiles(ctx, &sandboxv1.SearchFilesRequest{Path: "/etc/passwd", Pattern: "x"})
		download, err := h.Download(ctx, &sandboxv1.DownloadRequest{Items: []*sandboxv1.DownloadItem{{Path: "/etc/passwd"}}})
		for err == nil {
			_, err = download.Recv()
		}
		attach, lost := h.Attach(ctx, &sandboxv1.AttachRequest{ExecId: "ended"})
		for lost == nil {
			_, lost = attach.Recv()
		}
		if stat != nil || list != nil || search != nil || !errors.Is(err, io.EOF) || !errors.Is(lost, io.EOF) {
			t.Fatal(stat, list, search, err, lost)
		}
	}
	idle := func() time.Duration {
		t.Helper()
		reply, err := h.GetActivity(testContext(t), &agentv1.GetActivityRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return reply.GetIdleTime().AsDuration()
	}
	eventually(t, "the agent is idle", func() bool { return idle() > 0 })
	before, begun := idle(), time.Now()
	inspect(metadata.AppendToOutgoingContext(called(t, &agentv1.CallContext{}), protocol.InspectionKey, "1"))
	atLeast := before + time.Since(begun)
	if now := idle(); now < atLeast {
		t.Errorf("idle for %v, want at least %v", now, atLeast)
	}
	begun = time.Now()
	inspect(called(t, &agentv1.CallContext{}))
	if now := idle(); now > time.Since(begun) {
		t.Errorf("idle for %v, %v after the calls", now, time.Since(begun))
	}
}
