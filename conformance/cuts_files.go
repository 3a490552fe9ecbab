package conformance

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// cutFileCases break the connection during calls about files.
func cutFileCases() []Case {
	return slices.Concat(
		both("C16_cut_at_upload_header", func(ctx context.Context, t T, h *hop) {
			t.Helper()
			cutUpload(ctx, t, h, span{up: true, bytes: 150, delay: 2 * time.Millisecond, times: 2})
		}),
		both("C16_cut_in_upload_chunk", func(ctx context.Context, t T, h *hop) {
			t.Helper()
			cutUpload(ctx, t, h, span{up: true, bytes: 1 << 20, delay: 15 * time.Millisecond, times: 3})
		}),
		both("C16_cut_between_files", cutBetweenFiles),
		both("C16_cut_during_download", cutDuringDownload),
		both("C17_cut_during_search", cutDuringSearch),
		both("C19_cut_during_unary_calls", cutDuringUnaryCalls),
	)
}

func cutUpload(ctx context.Context, t T, h *hop, at span) {
	t.Helper()
	sandbox, data := h.sandbox(ctx, t), noise(5<<20)
	sum := sha256.Sum256(data)
	path := h.suite.workdir(ctx, t, sandbox) + "/cut-upload-" + h.name
	for _, mode := range h.modes {
		h.rounds(t, mode, 2, func(int) int {
			cuts := h.during(ctx, t, mode, at, func() {
				r, err := sandbox.UploadFile(ctx, sandgate.File{Path: path, Content: bytes.NewReader(data)})
				if err != nil {
					t.Fatalf("%s: %v", mode, err)
				}
				if r.Size != int64(len(data)) || !bytes.Equal(r.SHA256, sum[:]) {
					t.Errorf("%s: the server says %d bytes, sha256 %x", mode, r.Size, r.SHA256)
				}
			})
			seen := h.suite.target(ctx, t, nil).sh(ctx, t, "sha256sum <"+path+"; rm "+path+"; ls -A . | grep -c cut-upload")
			if want := fmt.Sprintf("%x  -\n0\n", sum); seen.stdout != want {
				t.Errorf("%s: the sandbox holds %v", mode, seen)
			}
			return cuts
		})
	}
}

// cutBetweenFiles breaks a call of many files, which cannot be resumed: it fails
// as a whole, and each file is as it was or as it should be.
func cutBetweenFiles(ctx context.Context, t T, h *hop) {
	const files = 40
	sandbox := h.sandbox(ctx, t)
	dir := h.suite.workdir(ctx, t, sandbox) + "/cut-files-" + h.name
	previous, next := bytes.Repeat([]byte("old"), 20_000), bytes.Repeat([]byte("new!"), 20_000)
	path := func(i int) string { return fmt.Sprintf("%s/%d", dir, i) }
	put := func(sandbox *sandgate.Sandbox, content []byte) error {
		var batch []sandgate.File
		for i := range files {
			batch = append(batch, sandgate.File{Path: path(i), Content: bytes.NewReader(content)})
		}
		results, err := sandbox.Upload(ctx, batch...)
		for _, r := range results {
			if r.Err != nil {
				t.Errorf("the broken connection is said to be a file's fault: %v", r.Err)
			}
		}
		return err
	}
	for _, mode := range h.modes {
		if err := put(h.suite.shared, previous); err != nil {
			t.Fatalf("upload: %v", err)
		}
		total := int64(files * len(next))
		var err error
		cuts := h.during(ctx, t, mode, span{up: true, bytes: total * 3 / 4, delay: 4 * time.Millisecond, times: 1}, func() { err = put(sandbox, next) })
		if own := (*sandgate.Error)(nil); err != nil && (!errors.As(err, &own) || !errors.Is(err, sandgate.ErrUnavailable)) {
			t.Errorf("%s: the call failed with %v", mode, err)
		}
		if cuts > 0 && err == nil && h.proxy != nil {
			t.Errorf("%s: the call went well although it was cut", mode)
		}
		paths := make([]string, files)
		for i := range paths {
			paths[i] = path(i)
		}
		got, failed := h.suite.shared.Download(ctx, paths...)
		if failed != nil {
			t.Fatalf("download: %v", failed)
		}
		for _, f := range got {
			if f.Err != nil || !bytes.Equal(f.Content, previous) && !bytes.Equal(f.Content, next) {
				t.Errorf("%s: %s is neither as it was nor as it should be: %d bytes, %v", mode, f.Path, len(f.Content), f.Err)
			}
		}
	}
	if err := h.suite.shared.Remove(ctx, dir, true); err != nil {
		t.Errorf("%v", err)
	}
}

func cutDuringDownload(ctx context.Context, t T, h *hop) {
	sandbox, data := h.sandbox(ctx, t), noise(5<<20)
	path := h.suite.workdir(ctx, t, sandbox) + "/cut-download-" + h.name
	if _, err := h.suite.shared.UploadFile(ctx, sandgate.File{Path: path, Content: bytes.NewReader(data)}); err != nil {
		t.Fatalf("upload: %v", err)
	}
	for _, mode := range h.modes {
		h.rounds(t, mode, 2, func(int) int {
			return h.during(ctx, t, mode, span{bytes: 2 << 20, delay: 10 * time.Millisecond, times: 2}, func() {
				var got bytes.Buffer
				if _, err := sandbox.DownloadFile(ctx, path, &got, nil); err != nil {
					t.Fatalf("%s: %v", mode, err)
				}
				same(t, mode, got.Bytes(), data)
			})
		})
	}
	if err := h.suite.shared.Remove(ctx, path, false); err != nil {
		t.Errorf("%v", err)
	}
}

func cutDuringSearch(ctx context.Context, t T, h *hop) {
	const lines = 3000
	sandbox := h.sandbox(ctx, t)
	dir := h.suite.workdir(ctx, t, sandbox) + "/cut-search-" + h.name
	h.suite.target(ctx, t, nil).sh(ctx, t, fmt.Sprintf("mkdir %s && cd %s; seq -f 'needle %%.0f' 1 %d >a; seq 1 200000 >b", dir, dir, lines))
	for _, mode := range h.modes {
		h.rounds(t, mode, 4, func(i int) int {
			at := span{up: i%2 == 0, bytes: 50, delay: 4 * time.Millisecond, times: 1}
			return h.during(ctx, t, mode, at, func() {
				found, err := sandbox.Search(ctx, dir, "needle", sandgate.SearchRequest{})
				if err != nil {
					t.Fatalf("%s: %v", mode, err)
				}
				if len(found.GetMatches()) != lines || found.GetTruncated() {
					t.Errorf("%s: %d of %d lines were found, truncated: %v", mode, len(found.GetMatches()), lines, found.GetTruncated())
				}
			})
		})
	}
	if err := h.suite.shared.Remove(ctx, dir, true); err != nil {
		t.Errorf("%v", err)
	}
}

// cutDuringUnaryCalls: an answer is right or an error is about the connection. A
// file that is there is never reported as missing.
func cutDuringUnaryCalls(ctx context.Context, t T, h *hop) {
	sandbox := h.sandbox(ctx, t)
	path := h.suite.workdir(ctx, t, sandbox) + "/cut-unary-" + h.name
	h.suite.target(ctx, t, nil).sh(ctx, t, "echo text >"+path)
	for _, mode := range h.modes {
		h.rounds(t, mode, 6, func(i int) int {
			at := span{up: i%2 == 0, bytes: 50, delay: time.Millisecond, times: 1}
			return h.during(ctx, t, mode, at, func() {
				info, err := sandbox.Stat(ctx, path)
				if err != nil || info.GetSize() != 5 {
					t.Errorf("%s: stat: %v, %v", mode, info, err)
				}
				lines, err := sandbox.Read(ctx, path, sandgate.ReadRequest{})
				if err != nil || string(lines.GetContent()) != "text" {
					t.Errorf("%s: read: %v, %v", mode, lines, err)
				}
				if _, err := sandbox.Stat(ctx, path+"-missing"); !errors.Is(err, sandgate.ErrFileNotFound) {
					t.Errorf("%s: stat of a missing file: %v", mode, err)
				}
				if _, err := sandbox.Processes(ctx, false); err != nil {
					t.Errorf("%s: list processes: %v", mode, err)
				}
				if _, err := sandbox.Info(ctx); err != nil {
					t.Errorf("%s: get the sandbox: %v", mode, err)
				}
			})
		})
	}
	if err := h.suite.shared.Remove(ctx, path, false); err != nil {
		t.Errorf("%v", err)
	}
}
