package process

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Only the pipe of a command with much output grows. The kernel bounds the pages of all
// pipes of a user: commands with little output must not take them from programs.
func TestPipesGrowWithOutput(t *testing.T) {
	s, client, _ := newTestService(t)
	r := shell("echo short >&2; head -c 300000 /dev/zero; echo end; read x")
	r.ExecId, r.StdinOpen = "much", true
	stream, err := client.Execute(testContext(t), r)
	if err != nil {
		t.Fatal(err)
	}
	for out := ""; !strings.Contains(out, "end") || !strings.Contains(out, "short"); {
		e, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		out += string(e.GetOutput().GetData())
	}
	c, err := s.command("much")
	if err != nil {
		t.Fatal(err)
	}
	const initial = 64 << 10 // of Linux
	for i, want := range []int{pipeSize, initial} {
		if got, err := unix.FcntlInt(uintptr(c.pump.inputs[i].fd), unix.F_GETPIPE_SZ, 0); err != nil || got != want {
			t.Errorf("pipe %d holds %d bytes, %v; want %d", i+1, got, err, want)
		}
	}
	if _, err := client.WriteStdin(testContext(t), &sandboxv1.WriteStdinRequest{ExecId: "much", Data: []byte("\n")}); err != nil {
		t.Fatal(err)
	}
	if _, exited, err := collect(stream); err != nil || exited.GetExitCode() != 0 {
		t.Fatal(exited, err)
	}
}
