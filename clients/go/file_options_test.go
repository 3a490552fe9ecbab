package sandgate

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sandgate/sandgate/clients/go/fake"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Each option reaches the server, and what is left out is as it was.
func TestFileOptions(t *testing.T) {
	var sent any
	catch := grpc.WithChainUnaryInterceptor(func(_ context.Context, _ string, req, _ any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, _ ...grpc.CallOption) error {
		sent = req
		return nil
	})
	s, ctx := connect(t, &fake.Server{}, WithDialOptions(catch)).Sandbox("a"), within(t)
	edit := func(opts ...EditOption) error {
		_, err := s.Edit(ctx, "/f", "", "new", false, opts...)
		return err
	}
	makeDirectory := func(opts ...DirectoryOption) error {
		_, err := s.MakeDirectory(ctx, "/d", opts...)
		return err
	}
	getURL := func(r URLRequest) error {
		_, err := s.GetURL(ctx, r)
		return err
	}
	if err := getURL(URLRequest{Path: "/f", Method: "POST"}); !errors.Is(err, ErrInvalidRequest) {
		t.Errorf("an unknown method: %v", err)
	}
	for _, c := range []struct {
		name string
		err  func() error
		want proto.Message
	}{
		{"edit", func() error { return edit() }, &sandboxv1.EditFileRequest{SandboxId: "a", Path: "/f", NewText: []byte("new")}},
		{"edit an empty file", func() error { return edit(AllowEmptyOld()) },
			&sandboxv1.EditFileRequest{SandboxId: "a", Path: "/f", NewText: []byte("new"), AllowEmptyOld: true}},
		{"make", func() error { return makeDirectory() }, &sandboxv1.MakeDirectoryRequest{SandboxId: "a", Path: "/d", Parents: true}},
		{"make alone with a mode", func() error { return makeDirectory(DirectoryMode(0o700), WithoutParents()) },
			&sandboxv1.MakeDirectoryRequest{SandboxId: "a", Path: "/d", Mode: proto.Uint32(0o700)}},
		{"url of a port", func() error { return getURL(URLRequest{Port: 3000}) },
			&sandboxv1.CreateSandboxUrlRequest{SandboxId: "a", Target: &sandboxv1.CreateSandboxUrlRequest_Port{Port: 3000}}},
		{"url of a large port", func() error { return getURL(URLRequest{Port: 1 << 40}) },
			&sandboxv1.CreateSandboxUrlRequest{SandboxId: "a", Target: &sandboxv1.CreateSandboxUrlRequest_Port{Port: 1 << 16}}},
		{"url of a file", func() error { return getURL(URLRequest{Path: "/f", Method: "PUT", TTL: time.Minute}) },
			&sandboxv1.CreateSandboxUrlRequest{SandboxId: "a", Target: &sandboxv1.CreateSandboxUrlRequest_Path{Path: "/f"},
				Method: sandboxv1.FileUrlMethod_FILE_URL_METHOD_PUT, Ttl: durationpb.New(time.Minute)}},
		{"remove", func() error { return s.Remove(ctx, "/f", true) }, &sandboxv1.RemoveFileRequest{SandboxId: "a", Path: "/f", Recursive: true}},
		{"remove what may be gone", func() error { return s.Remove(ctx, "/f", false, AllowMissing()) },
			&sandboxv1.RemoveFileRequest{SandboxId: "a", Path: "/f", AllowMissing: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.err(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, sent, protocmp.Transform(), protocmp.IgnoreEmptyMessages()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A list can be taken up again where another one stopped, and ranged over twice.
func TestListPages(t *testing.T) {
	client, ctx := connect(t, &fake.Server{}), within(t)
	for _, id := range []string{"a", "b", "c"} {
		create(t, client, id)
	}
	r, pages := ListRequest{}, [][]string{}
	for {
		page, err := client.ListPage(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, ids(page.Sandboxes))
		if r.PageToken = page.NextPageToken; len(pages) == 2 {
			break
		}
	}
	if diff := cmp.Diff([][]string{nil, {"a"}}, pages); diff != "" {
		t.Error(diff)
	}
	rest := client.List(ctx, r)
	for range 2 {
		var found []*Info
		for info, err := range rest {
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, info)
		}
		if diff := cmp.Diff([]string{"b", "c"}, ids(found)); diff != "" {
			t.Error(diff)
		}
	}
}

func ids(list []*Info) []string {
	var out []string
	for _, info := range list {
		out = append(out, info.GetSandboxId())
	}
	return out
}

// A part of a file, also when the connection breaks in the middle of it.
func TestDownloadOfAPart(t *testing.T) {
	server := &fake.Server{}
	box := create(t, connect(t, server), "box")
	text := strings.Repeat("0123456789", 1000)
	server.SetFile("box", "/file", text)
	size := int64(len(text))
	for _, part := range [][2]int64{{0, 0}, {0, 1}, {5, 4000}, {5, size}, {size, 1}, {size + 5, 1}, {size - 1, -1}, {7, -1}} {
		offset, limit := part[0], part[1]
		opts := []DownloadOption{DownloadOffset(offset)}
		want := text[min(offset, size):]
		if limit >= 0 {
			opts = append(opts, DownloadLimit(limit))
			want = want[:min(limit, int64(len(want)))]
		}
		var got strings.Builder
		last := offset
		info, err := box.DownloadFile(t.Context(), "/file", &got, func(done, _ int64) {
			if last = done; done-offset == 2000 {
				server.Cut()
			}
		}, opts...)
		if err != nil || got.String() != want || info.GetSize() != size || want != "" && last != offset+int64(len(want)) {
			t.Errorf("%v: %d bytes, %v, %v, done %d", part, got.Len(), info, err, last)
		}
	}
}
