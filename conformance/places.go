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

// fileCases are about files, and about a disk or memory that is full.
var fileCases = []Case{
	{Name: "C05_out_of_memory", run: outOfMemory, needs: []string{"memory"}},
	{Name: "C16_cancelled_upload_keeps_the_old", run: cancelledUpload},
	{Name: "C18_paths_that_cannot_be", run: badPaths},
	{Name: "C24_full_disk", run: fullDisk, needs: []string{"disk"}},
}

// outOfMemory ends the command that asked for too much, and no other, unless it
// must end the sandbox.
func outOfMemory(ctx context.Context, t T, s *Suite) {
	box := s.sandbox(ctx, t, &sandboxv1.Resources{MemoryBytes: 192 << 20})
	other := start(ctx, t, box, sandgate.ExecuteRequest{Shell: "read x; exit 7", StdinOpen: true, Timeout: 2 * time.Minute})
	hogs, fatal := 2, whole(box.Created())
	if fatal {
		hogs = 1
	}
	for range hogs {
		r, err := box.Execute(ctx, sandgate.ExecuteRequest{Argv: []string{"tail", "/dev/zero"}, Timeout: time.Minute})
		if err != nil || r.Exit.GetReason() != sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY || r.Exit.ExitCode != nil {
			t.Errorf("it ended %v, %v", r, err)
		}
	}
	if fatal {
		exit, err := other.Wait()
		if err != nil || exit.GetReason() != sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY {
			t.Errorf("the other command ended %v, %v", exit, err)
		}
		info, err := box.Info(ctx)
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
	box := s.sandbox(ctx, t, nil)
	path := s.place(ctx, t, box) + "/cancelled/file"
	if _, err := box.Write(ctx, path, []byte("old"), sandgate.WriteRequest{}); err != nil {
		t.Fatalf("write: %v", err)
	}
	gone, leave := context.WithCancelCause(ctx)
	stream, err := s.stub.Upload(gone)
	if err != nil {
		t.Fatalf("upload: %v", err)
	}
	messages := []*sandboxv1.UploadRequest{{Payload: &sandboxv1.UploadRequest_Header{Header: &sandboxv1.UploadHeader{SandboxId: box.ID(), Path: path}}}}
	for range 8 {
		messages = append(messages, &sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Chunk{Chunk: noise(256 << 10)}})
	}
	for _, m := range messages {
		if err := stream.Send(m); err != nil {
			t.Errorf("upload: %v", err)
		}
	}
	leave(errGone)
	look := s.box(ctx, t, nil)
	eventually(ctx, t, 10*time.Second, "a part of a cancelled upload", func() bool {
		return look.sh(ctx, t, "ls -A cancelled").stdout == "file\n"
	})
	if r := look.sh(ctx, t, "cat "+path+"; rm -r cancelled"); r.stdout != "old" {
		t.Errorf("it holds %v", r)
	}
}

func badPaths(ctx context.Context, t T, s *Suite) {
	box := s.sandbox(ctx, t, nil)
	for _, path := range []string{"", "relative", "./x", "../x", "/a\x00b"} {
		_, stat := box.Stat(ctx, path)
		_, read := box.Read(ctx, path, sandgate.ReadRequest{})
		_, write := box.Write(ctx, path, nil, sandgate.WriteRequest{})
		_, edit := box.Edit(ctx, path, "a", "b", false)
		_, makeDirectory := box.MakeDirectory(ctx, path)
		_, glob := box.Glob(ctx, path, "*", sandgate.GlobRequest{})
		_, search := box.Search(ctx, path, "x", sandgate.SearchRequest{})
		_, upload := box.UploadFile(ctx, sandgate.File{Path: path, Content: bytes.NewReader(nil)})
		_, download := box.DownloadFile(ctx, path, &bytes.Buffer{}, nil)
		for call, err := range map[string]error{
			"stat": stat, "read": read, "write": write, "edit": edit, "make directory": makeDirectory, "glob": glob, "search": search,
			"upload": upload, "download": download, "remove": box.Remove(ctx, path, false),
			"move from": box.Move(ctx, path, "/tmp/x", false), "move to": box.Move(ctx, "/tmp/x", path, false),
		} {
			wantReason(t, fmt.Sprintf("%s of %q", call, path), err, "PATH_INVALID")
		}
	}
}

// fullDisk: everybody is told, nothing that was there is lost, and all works
// again once there is room.
func fullDisk(ctx context.Context, t T, s *Suite) {
	box := s.sandbox(ctx, t, &sandboxv1.Resources{DiskBytes: 64 << 20})
	kept := s.place(ctx, t, box) + "/kept"
	look := Sandbox{Client: s.stub, ID: box.ID()}
	if _, err := box.Write(ctx, kept, []byte("old"), sandgate.WriteRequest{}); err != nil {
		t.Fatalf("write: %v", err)
	}
	if r := look.sh(ctx, t, "cat /dev/zero >big"); r.code() <= 0 || r.stderr == "" {
		t.Errorf("a command that fills the disk: %v", r)
	}
	_, write := box.Write(ctx, kept, noise(1<<20), sandgate.WriteRequest{})
	_, upload := box.UploadFile(ctx, sandgate.File{Path: kept, Content: bytes.NewReader(noise(4 << 20))})
	_, edit := box.Edit(ctx, kept, "old", string(bytes.Repeat([]byte("new"), 300_000)), false)
	for call, err := range map[string]error{"write": write, "upload": upload, "edit": edit} {
		wantReason(t, call, err, "DISK_FULL")
	}
	if r := look.sh(ctx, t, "cat "+kept+"; rm big"); r.stdout != "old" {
		t.Errorf("the old file holds %v", r)
	}
	data := noise(4 << 20)
	if _, err := box.UploadFile(ctx, sandgate.File{Path: kept, Content: bytes.NewReader(data)}); err != nil {
		t.Errorf("upload when there is room again: %v", err)
	}
	var got bytes.Buffer
	if _, err := box.DownloadFile(ctx, kept, &got, nil); err != nil {
		t.Errorf("download: %v", err)
	}
	same(t, "download", got.Bytes(), data)
}
