package sandgate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/sandgate/sandgate/clients/go/fake"
)

// content makes bytes that are the same in each run.
func content(n int) []byte {
	b := make([]byte, n)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(b)
	return b
}

func TestUploadSeveral(t *testing.T) {
	server := &fake.Server{}
	sandbox := create(t, connect(t, server), "a")
	results, err := sandbox.Upload(within(t),
		File{Path: "/one", Content: strings.NewReader("1")},
		File{Path: "/directory/", Content: strings.NewReader("2")},
		File{Path: "/empty", Content: strings.NewReader("")},
	)
	if err != nil {
		t.Fatal(err)
	}
	if results[0].Err != nil || !errors.Is(results[1].Err, ErrFileIsDirectory) || !errors.Is(results[1].Err, ErrFile) || results[2].Err != nil {
		t.Errorf("got %+v", results)
	}
	for path, want := range map[string]string{"/one": "1", "/empty": ""} {
		if got, ok := server.File("a", path); !ok || got != want {
			t.Errorf("%s: %q, %t", path, got, ok)
		}
	}
}

func TestUploadFileResumes(t *testing.T) {
	server := &fake.Server{}
	sandbox := create(t, connect(t, server), "a")
	want := content(5 << 20)
	cuts := 0
	result, err := sandbox.UploadFile(within(t), File{
		Path: "/big", Content: bytes.NewReader(want),
		Progress: func(done int64) {
			if done > int64(cuts+1)<<20 && cuts < 3 {
				cuts++
				server.Cut()
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := server.File("a", "/big"); got != string(want) || result.Size != int64(len(want)) {
		t.Errorf("got %d bytes, want %d", len(got), len(want))
	}
	if cuts != 3 || server.Calls("Upload") < 2 {
		t.Errorf("%d cuts, %d uploads", cuts, server.Calls("Upload"))
	}
}

// After a cut the server may still be busy with the broken stream, or have taken more
// from it than it reported: the upload waits and retries.
func TestUploadFileOutlivesItsOldStream(t *testing.T) {
	var cut atomic.Bool
	var queries, sent atomic.Int32
	server := &fake.Server{Fail: func(method string) error {
		switch {
		case !cut.Load():
		case strings.HasSuffix(method, "/GetUpload") && queries.Add(1) <= 2:
			return fake.Error(codes.Aborted, "UPLOAD_BUSY", "a stream writes to this upload")
		case strings.HasSuffix(method, "/Upload") && sent.Add(1) == 1:
			return fake.Error(codes.Aborted, "UPLOAD_BUSY", "another stream writes to this upload")
		case strings.HasSuffix(method, "/Upload") && sent.Load() == 2:
			return fake.Error(codes.OutOfRange, "UPLOAD_OFFSET_MISMATCH", "the upload goes on elsewhere")
		}
		return nil
	}}
	sandbox := create(t, connect(t, server), "a")
	want := content(3 << 20)
	_, err := sandbox.UploadFile(within(t), File{
		Path: "/big", Content: bytes.NewReader(want),
		Progress: func(done int64) {
			if done > 1<<20 && !cut.Swap(true) {
				server.Cut()
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := server.File("a", "/big"); got != string(want) {
		t.Errorf("got %d bytes, want %d", len(got), len(want))
	}
	if queries.Load() < 3 || sent.Load() < 3 {
		t.Errorf("%d queries, sent %d times", queries.Load(), sent.Load())
	}
}

// Content that cannot be read twice is sent once, and its failure is returned.
func TestUploadFileFromPipe(t *testing.T) {
	server := &fake.Server{}
	sandbox := create(t, connect(t, server), "a")
	if _, err := sandbox.UploadFile(within(t), File{Path: "/p", Content: io.MultiReader(strings.NewReader("piped"))}); err != nil {
		t.Fatal(err)
	}
	if got, _ := server.File("a", "/p"); got != "piped" {
		t.Errorf("got %q", got)
	}
	broken := errors.New("the disk is on fire")
	_, err := sandbox.UploadFile(within(t), File{Path: "/q", Content: io.MultiReader(strings.NewReader("x"), reader{broken})})
	if !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	if _, ok := server.File("a", "/q"); ok {
		t.Error("a file that could not be read was written")
	}
}

// brokenSeeker is an [io.ReadSeeker] whose reading fails before its end.
type brokenSeeker struct {
	io.Reader
	io.Seeker
}

// Only a bare io.EOF is the end of a source. A source that broke off replaces
// nothing.
func TestUploadOfSourceThatBreaksOff(t *testing.T) {
	server := &fake.Server{}
	sandbox := create(t, connect(t, server), "a")
	for _, broken := range []error{
		io.ErrUnexpectedEOF,
		fmt.Errorf("the archive broke off: %w", io.ErrUnexpectedEOF),
		fmt.Errorf("the archive broke off: %w", io.EOF),
	} {
		source := func() io.Reader { return io.MultiReader(strings.NewReader("half"), reader{broken}) }
		for name, upload := range map[string]func() error{
			"Upload": func() error {
				_, err := sandbox.Upload(within(t), File{Path: "/p", Content: source()})
				return err
			},
			"UploadFile": func() error {
				_, err := sandbox.UploadFile(within(t), File{Path: "/p", Content: source()})
				return err
			},
			"UploadFile of a seeker": func() error {
				content := brokenSeeker{source(), strings.NewReader("half and half")}
				_, err := sandbox.UploadFile(within(t), File{Path: "/p", Content: content})
				return err
			},
		} {
			server.SetFile("a", "/p", "old")
			if err := upload(); !errors.Is(err, broken) {
				t.Errorf("%s, %v: error %v", name, broken, err)
			}
			if got, _ := server.File("a", "/p"); got != "old" {
				t.Errorf("%s, %v: wrote %q", name, broken, got)
			}
		}
	}
}

type reader struct{ err error }

func (r reader) Read([]byte) (int, error) { return 0, r.err }

func TestUploadToUnknownSandbox(t *testing.T) {
	client := connect(t, &fake.Server{})
	_, err := client.Sandbox("x").UploadFile(within(t), File{Path: "/p", Content: bytes.NewReader(content(4 << 20))})
	if !errors.Is(err, ErrSandboxNotFound) {
		t.Errorf("error %v", err)
	}
}

func TestDownloadSeveral(t *testing.T) {
	server := &fake.Server{}
	sandbox := create(t, connect(t, server), "a")
	server.SetFile("a", "/one", "1")
	server.SetFile("a", "/two", string(content(5000)))
	results, err := sandbox.Download(within(t), "/one", "/none", "/two")
	if err != nil {
		t.Fatal(err)
	}
	if string(results[0].Content) != "1" || !errors.Is(results[1].Err, ErrFileNotFound) || !bytes.Equal(results[2].Content, content(5000)) {
		t.Errorf("got %q, %v, %d bytes", results[0].Content, results[1].Err, len(results[2].Content))
	}
	if n := server.Calls("Download"); n != 1 {
		t.Errorf("%d calls for three files", n)
	}
}

func TestDownloadFileResumes(t *testing.T) {
	server := &fake.Server{}
	sandbox := create(t, connect(t, server), "a")
	want := content(3 << 20)
	server.SetFile("a", "/big", string(want))
	var got bytes.Buffer
	cuts := 0
	info, err := sandbox.DownloadFile(within(t), "/big", &got, func(done, size int64) {
		if size != int64(len(want)) {
			t.Errorf("size %d", size)
		}
		if done > int64(cuts+1)<<19 && cuts < 4 {
			cuts++
			server.Cut()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) || info.GetMode() != 0o640 || cuts != 4 {
		t.Errorf("got %d bytes of %d, mode %o, %d cuts", got.Len(), len(want), info.GetMode(), cuts)
	}
}

func TestDownloadOfChangedFile(t *testing.T) {
	server := &fake.Server{}
	sandbox := create(t, connect(t, server), "a")
	server.SetFile("a", "/big", string(content(3<<20)))
	changed := false
	_, err := sandbox.DownloadFile(within(t), "/big", io.Discard, func(int64, int64) {
		if !changed {
			changed = true
			server.SetFile("a", "/big", string(content(2<<20)))
			server.Cut()
		}
	})
	if !errors.Is(err, ErrFile) {
		t.Errorf("error %v", err)
	}
}

func TestDownloadErrors(t *testing.T) {
	server := &fake.Server{}
	client := connect(t, server)
	sandbox := create(t, client, "a")
	if _, err := sandbox.DownloadFile(within(t), "/none", io.Discard, nil); !errors.Is(err, ErrFileNotFound) {
		t.Errorf("error %v", err)
	}
	if _, err := client.Sandbox("x").Download(within(t), "/none"); !errors.Is(err, ErrSandboxNotFound) {
		t.Errorf("error %v", err)
	}
	server.SetFile("a", "/one", "1")
	full := errors.New("no space")
	if _, err := sandbox.DownloadFile(within(t), "/one", writer{full}, nil); !errors.Is(err, full) {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithCancel(within(t))
	cancel()
	if _, err := sandbox.Download(ctx, "/one"); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

type writer struct{ err error }

func (w writer) Write([]byte) (int, error) { return 0, w.err }

func TestListDirectory(t *testing.T) {
	server := &fake.Server{}
	sandbox := create(t, connect(t, server), "a")
	for _, name := range []string{"/d/b", "/d/a", "/d/sub/c", "/e"} {
		server.SetFile("a", name, "x")
	}
	var names []string
	for entry, err := range sandbox.List(within(t), "/d") {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, entry.GetPath())
	}
	if diff := cmp.Diff([]string{"/d/a", "/d/b", "/d/sub"}, names); diff != "" {
		t.Error(diff)
	}
}

// A server that does not know resumable uploads still takes a large file.
func TestUploadWithoutResume(t *testing.T) {
	server := &fake.Server{}
	var refused bool
	server.Fail = func(method string) error {
		if strings.HasSuffix(method, "/Upload") && !refused {
			refused = true
			return fake.Error(codes.Unimplemented, "FEATURE_UNSUPPORTED", "no resumable uploads")
		}
		return nil
	}
	sandbox := create(t, connect(t, server), "a")
	if _, err := sandbox.UploadFile(within(t), File{Path: "/big", Content: bytes.NewReader(content(2 << 20))}); err != nil {
		t.Fatal(err)
	}
	if got, _ := server.File("a", "/big"); got != string(content(2<<20)) || !refused {
		t.Errorf("got %d bytes", len(got))
	}
}
