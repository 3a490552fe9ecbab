package server

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"google.golang.org/grpc/status"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// One upload has a bounded number of files; the error beyond it states the
// bound.
func TestUploadHasABoundedNumberOfFiles(t *testing.T) {
	const maxUploadFiles = 10_000
	for _, files := range []int{maxUploadFiles, maxUploadFiles + 1} {
		t.Run(fmt.Sprint(files), func(t *testing.T) {
			h := newHarness(t, nil)
			h.create("a")
			stream, err := h.client.Upload(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for i := range files {
				h := &sandboxv1.UploadHeader{Path: "/x"}
				if i == 0 {
					h.SandboxId = "a"
				}
				err := stream.Send(&sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Header{Header: h}})
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			resp, err := stream.CloseAndRecv()
			if files <= maxUploadFiles {
				if err != nil || len(resp.GetResults()) != files {
					t.Fatalf("%d results, %v", len(resp.GetResults()), err)
				}
				return
			}
			wantReason(t, err, "REQUEST_INVALID")
			t.Log(status.Convert(err).Message())
		})
	}
}
