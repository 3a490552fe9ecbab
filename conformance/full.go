package conformance

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// fileCases are about files, and about a disk or a memory that is full.
var fileCases = []Case{
	{Name: "C05_out_of_memory", run: outOfMemory, needs: []string{"memory"}},
	{Name: "C16_cancelled_upload_keeps_the_old", run: cancelledUpload},
	{Name: "C18_paths_that_cannot_be", run: badPaths},
	{Name: "C24_full_disk", run: fullDisk, needs: []string{"disk"}},
}

// outOfMemory checks that only the command that uses too much memory is killed, unless
// the substrate kills the whole sandbox.
func outOfMemory(ctx context.Context, t T, s *Suite) {
	sandbox := s.sandbox(ctx, t, &sandboxv1.Resources{MemoryBytes: 192 << 20})
	other := start(ctx, t, sandbox, sandgate.ExecuteRequest{Shell: "read x; exit 7", StdinOpen: true, Timeout: 2 * time.Minute})
	hogs, fatal := 2, whole(sandbox.Created())
	if fatal {
		hogs = 1
	}
	for range hogs {
		r, err := sandbox.Execute(ctx, sandgate.ExecuteRequest{Argv: []string{"tail", "/dev/zero"}, Timeout: time.Minute})
		if err != nil || r.Exit.GetReason() != sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY || r.Exit.ExitCode != nil {
			t.Errorf("it ended %v, %v", r, err)
		}
	}
	if fatal {
		exit, err := other.Wait()
		if err != nil || exit.GetReason() != sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY {
			t.Errorf("the other command ended %v, %v", exit, err)
		}
		info, err := sandbox.Info(ctx)
		if err != nil || info.GetState() != sandboxv1.SandboxState_SANDBOX_STATE_FAILED || !strings.Contains(info.GetStateMessage(), "memory") {
			t.Errorf("the sandbox is %v, %v", info, err)
		}
		return
	}
	release(ctx, t, other)
	exit, err := other.Wait()
	if err != nil {
		t.Errorf("%v", err)
	}
	exits(t, "the other command", exit, 7)
}

func cancelledUpload(ctx context.Context, t T, s *Suite) {
	sandbox := s.sandbox(ctx, t, nil)
	path := s.workdir(ctx, t, sandbox) + "/cancelled/file"
	if _, err := sandbox.Write(ctx, path, []byte("old"), sandgate.WriteRequest{}); err != nil {
		t.Fatalf("write: %v", err)
	}
	gone, leave := context.WithCancelCause(ctx)
	stream, err := s.stub.Upload(gone)
	if err != nil {
		t.Fatalf("upload: %v", err)
	}
	messages := []*sandboxv1.UploadRequest{{Payload: &sandboxv1.UploadRequest_Header{Header: &sandboxv1.UploadHeader{SandboxId: sandbox.ID(), Path: path}}}}
	for range 8 {
		messages = append(messages, &sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Chunk{Chunk: noise(256 << 10)}})
	}
	for _, m := range messages {
		if err := stream.Send(m); err != nil {
			t.Errorf("upload: %v", err)
		}
	}
	leave(errGone)
	look := s.target(ctx, t, nil)
	eventually(ctx, t, 10*time.Second, "a part of a cancelled upload", func() bool {
		return look.sh(ctx, t, "ls -A cancelled").stdout == "file\n"
	})
	if r := look.sh(ctx, t, "cat "+path+"; rm -r cancelled"); r.stdout != "old" {
		t.Errorf("it holds %v", r)
	}
}

func badPaths(ctx context.Context, t T, s *Suite) {
	sandbox := s.sandbox(ctx, t, nil)
	for _, path := range []string{"", "relative", "./x", "../x", "/a\x00b"} {
		_, stat := sandbox.Stat(ctx, path)
		_, read := sandbox.Read(ctx, path, sandgate.ReadRequest{})
		_, write := sandbox.Write(ctx, path, nil, sandgate.WriteRequest{})
		_, edit := sandbox.Edit(ctx, path, "a", "b", false)
		_, makeDirectory := sandbox.MakeDirectory(ctx, path)
		_, glob := sandbox.Glob(ctx, path, "*", sandgate.GlobRequest{})
		_, search := sandbox.Search(ctx, path, "x", sandgate.SearchRequest{})
		_, upload := sandbox.UploadFile(ctx, sandgate.File{Path: path, Content: bytes.NewReader(nil)})
		_, download := sandbox.DownloadFile(ctx, path, &bytes.Buffer{}, nil)
		for call, err := range map[string]error{
			"stat": stat, "read": read, "write": write, "edit": edit, "make directory": makeDirectory, "glob": glob, "search": search,
			"upload": upload, "download": download, "remove": sandbox.Remove(ctx, path, false),
			"move from": sandbox.Move(ctx, path, "/tmp/x", false), "move to": sandbox.Move(ctx, "/tmp/x", path, false),
		} {
			wantReason(t, fmt.Sprintf("%s of %q", call, path), err, "PATH_INVALID")
		}
	}
}

// fullDisk: every write fails with a reason, no file is lost, and writes work again
// once there is space.
func fullDisk(ctx context.Context, t T, s *Suite) {
	sandbox := s.sandbox(ctx, t, &sandboxv1.Resources{DiskBytes: 64 << 20})
	kept := s.workdir(ctx, t, sandbox) + "/kept"
	look := Sandbox{Client: s.stub, ID: sandbox.ID()}
	if _, err := sandbox.Write(ctx, kept, []byte("old"), sandgate.WriteRequest{}); err != nil {
		t.Fatalf("write: %v", err)
	}
	if r := look.sh(ctx, t, "cat /dev/zero >big"); r.code() <= 0 || r.stderr == "" {
		t.Errorf("a command that fills the disk: %v", r)
	}
	_, write := sandbox.Write(ctx, kept, noise(1<<20), sandgate.WriteRequest{})
	_, upload := sandbox.UploadFile(ctx, sandgate.File{Path: kept, Content: bytes.NewReader(noise(4 << 20))})
	_, edit := sandbox.Edit(ctx, kept, "old", string(bytes.Repeat([]byte("new"), 300_000)), false)
	for call, err := range map[string]error{"write": write, "upload": upload, "edit": edit} {
		wantReason(t, call, err, "DISK_FULL")
	}
	if r := look.sh(ctx, t, "cat "+kept+"; rm big"); r.stdout != "old" {
		t.Errorf("the old file holds %v", r)
	}
	data := noise(4 << 20)
	if _, err := sandbox.UploadFile(ctx, sandgate.File{Path: kept, Content: bytes.NewReader(data)}); err != nil {
		t.Errorf("upload when there is room again: %v", err)
	}
	var got bytes.Buffer
	if _, err := sandbox.DownloadFile(ctx, kept, &got, nil); err != nil {
		t.Errorf("download: %v", err)
	}
	same(t, "download", got.Bytes(), data)
}
