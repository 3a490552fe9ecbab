package files_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/sandgate/sandgate/agent/files"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// script is an upload stream that plays messages.
type script struct {
	grpc.ServerStream
	ctx   context.Context
	msgs  []*sandboxv1.UploadRequest
	end   error
	reply *sandboxv1.UploadResponse
}

func (s *script) Context() context.Context { return s.ctx }

func (s *script) Recv() (*sandboxv1.UploadRequest, error) {
	if len(s.msgs) == 0 {
		return nil, s.end
	}
	m := s.msgs[0]
	s.msgs = s.msgs[1:]
	return m, nil
}

func (s *script) RecvMsg(m any) error {
	msg, err := s.Recv()
	if err == nil {
		proto.Merge(m.(proto.Message), msg)
	}
	return err
}

func (s *script) SendAndClose(r *sandboxv1.UploadResponse) error {
	s.reply = r
	return nil
}

var errBroken = errors.New("the connection broke")

// FuzzUploadFrames plays any order of messages and compares reply and directory
// with a model of the rules.
func FuzzUploadFrames(f *testing.F) {
	f.Add([]byte{1, 4, 4, 10, 2, 10, 1, 4, 10})
	f.Add([]byte{3, 4, 10, 1, 4, 10, 6, 4, 4, 4, 10, 1, 10})
	f.Add([]byte{7, 4, 4, 9})
	f.Add([]byte{7, 4, 4})
	f.Add([]byte{1, 4})
	f.Add([]byte{1, 5, 8})
	f.Add([]byte{4, 0})
	svc := files.New(files.Config{})
	f.Cleanup(svc.Close)
	uploads := 0
	f.Fuzz(func(t *testing.T, ops []byte) {
		if len(ops) > 40 {
			return
		}
		uploads++
		dir := t.TempDir()
		if err := os.Mkdir(dir+"/dir", 0o755); err != nil {
			t.Fatal(err)
		}
		s := &script{ctx: called(t.Context(), nil), end: io.EOF}
		m := &uploadModel{files: map[string]string{}}
		for _, op := range ops {
			s.msgs = append(s.msgs, uploadMessage(op, dir, fmt.Sprint("id-", uploads)))
			if op%11 == 9 {
				s.msgs, s.end = s.msgs[:len(s.msgs)-1], errBroken
				m.broken = true
				break
			}
			m.take(op % 11)
		}
		m.finish()
		err := svc.Upload(s)
		switch {
		case m.bad && reason(t, err) != "UPLOAD_OUT_OF_ORDER":
			t.Errorf("%v: %v, want an error of order", ops, err)
		case !m.bad && m.broken && !errors.Is(err, errBroken):
			t.Errorf("%v: %v, want a broken stream", ops, err)
		case !m.bad && !m.broken:
			if err != nil {
				t.Fatalf("%v: %v", ops, err)
			}
			if diff := cmp.Diff(m.results, outcomes(s.reply.GetResults())); diff != "" {
				t.Errorf("%v: results (-want +got):\n%s", ops, diff)
			}
		}
		got := map[string]string{}
		for _, name := range names(t, dir) {
			switch {
			case name == "dir":
			case name[0] == '.':
				t.Errorf("%v: %s is left", ops, name)
			default:
				got[name] = read(t, dir+"/"+name)
			}
		}
		if diff := cmp.Diff(m.files, got); diff != "" {
			t.Errorf("%v: files (-want +got):\n%s", ops, diff)
		}
		if got, want := len(drafts(t, dir)), m.parts(); got != want {
			t.Errorf("%v: %d drafts, want %d", ops, got, want)
		}
		if running, _ := svc.Active(); running != 0 {
			t.Error("a call still runs")
		}
	})
}

func uploadMessage(op byte, dir, id string) *sandboxv1.UploadRequest {
	h := &sandboxv1.UploadHeader{}
	switch op % 11 {
	case 1:
		h.Path = dir + "/a"
	case 2:
		h.Path = dir + "/b"
	case 3:
		h.Path = dir + "/dir"
	case 4:
		return chunk([]byte("xy"))
	case 5:
		return chunk(nil)
	case 6:
		h.Path, h.Size = dir+"/sized", ptr(int64(4))
	case 7:
		h.Path, h.UploadId = dir+"/resumed", id
	case 10:
		return trailer(nil)
	}
	if h.GetPath() == "" {
		return &sandboxv1.UploadRequest{}
	}
	return header(h)
}

// uploadModel computes the expected outcome of an upload.
type uploadModel struct {
	bad, broken bool
	kind        byte // of the open file; 0: none
	content     string
	results     []string
	files       map[string]string
}

func (m *uploadModel) take(op byte) {
	if m.bad {
		return
	}
	switch {
	case op == 0, op == 5, op == 8, (m.kind == 0) == (op == 4 || op == 10):
		m.bad = true
	case op == 4:
		m.content += "xy"
	case op == 10:
		m.complete()
	default:
		m.kind, m.content = op, ""
	}
}

func (m *uploadModel) complete() {
	name, result := "", ""
	switch m.kind {
	case 0:
		return
	case 1:
		name = "a"
	case 2:
		name = "b"
	case 3:
		result = "FILE_IS_DIRECTORY"
	case 6:
		if name = "sized"; len(m.content) != 4 {
			result = "FILE_CHECKSUM_MISMATCH"
		}
	case 7:
		name = "resumed"
	}
	if result == "" {
		m.files[name] = m.content
	}
	m.results = append(m.results, result)
	m.kind = 0
}

// finish is the end of the stream.
func (m *uploadModel) finish() {
	if m.bad || m.broken {
		return
	}
	m.bad = m.kind != 0 || len(m.results) == 0
}

// parts is how many unfinished files are kept: that of a resumable upload of
// which something has come.
func (m *uploadModel) parts() int {
	if (m.bad || m.broken) && m.kind == 7 && m.content != "" {
		return 1
	}
	return 0
}
