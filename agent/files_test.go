package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// benchOrRapid is what a benchmark and a property test have in common.
type benchOrRapid interface {
	rapid.TB
	Context() context.Context
}

// put uploads content in pieces.
func (h *harness) put(t benchOrRapid, path string, pieces ...[]byte) []byte {
	t.Helper()
	up, err := h.Upload(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send := func(m *sandboxv1.UploadRequest) {
		if err := up.Send(m); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
	send(&sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Header{Header: &sandboxv1.UploadHeader{Path: path}}})
	for _, p := range pieces {
		send(&sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Chunk{Chunk: p}})
	}
	send(&sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Trailer{Trailer: &sandboxv1.UploadTrailer{}}})
	reply, err := up.CloseAndRecv()
	if err != nil {
		t.Fatal(err)
	}
	if e := reply.GetResults()[0].GetError(); e != nil {
		t.Fatal(e)
	}
	return reply.GetResults()[0].GetSha256()
}

// get downloads a file and hands its chunks to each.
func (h *harness) get(t benchOrRapid, path string, each func([]byte)) []byte {
	t.Helper()
	down, err := h.Download(t.Context(), &sandboxv1.DownloadRequest{
		Items: []*sandboxv1.DownloadItem{{Path: path}}})
	if err != nil {
		t.Fatal(err)
	}
	var sum []byte
	for {
		m, err := down.Recv()
		if errors.Is(err, io.EOF) {
			return sum
		}
		if err != nil {
			t.Fatal(err)
		}
		if trailer := m.GetTrailer(); trailer != nil {
			sum = trailer.GetSha256()
		}
		each(m.GetChunk())
	}
}

// Chunks of every size pass the agent's own codec unchanged.
func TestChunksOfEverySizePassTheCodecUnchanged(t *testing.T) {
	h := start(t, setup{})
	path := filepath.Join(t.TempDir(), "f")
	rapid.Check(t, func(t *rapid.T) {
		source := rand.NewChaCha8([32]byte{byte(rapid.IntRange(0, 255).Draw(t, "seed"))})
		var pieces [][]byte
		for _, n := range rapid.SliceOfN(rapid.OneOf(rapid.IntRange(1, 300), rapid.IntRange(16_000, 33_000), rapid.IntRange(1, 1<<20)), 1, 8).Draw(t, "sizes") {
			p := make([]byte, n)
			_, _ = source.Read(p)
			pieces = append(pieces, p)
		}
		want := bytes.Join(pieces, nil)
		hash := sha256.Sum256(want)
		if got := h.put(t, path, pieces...); !bytes.Equal(got, hash[:]) {
			t.Fatalf("%d bytes came with the hash %x", len(want), got)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes are there of %d, %v", len(got), len(want), err)
		}
		var back []byte
		sum := h.get(t, path, func(b []byte) { back = append(back, b...) })
		if !bytes.Equal(back, want) || !bytes.Equal(sum, hash[:]) {
			t.Fatalf("%d of %d bytes came back", len(back), len(want))
		}
	})
}

// cpu is the processor time that the agent took so far, in ticks of 10 ms.
func (h *harness) cpu(b *testing.B) int {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(h.pid) + "/stat")
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return user + system
}

// BenchmarkFiles reports the agent's own processor time: unlike the speed it
// does not depend on what else the machine does.
func BenchmarkFiles(b *testing.B) {
	const size, piece = 1 << 30, 256 << 10
	h := start(b, setup{})
	path := filepath.Join(b.TempDir(), "f")
	pieces := make([][]byte, size/piece)
	for i := range pieces {
		pieces[i] = make([]byte, piece)
	}
	for name, job := range map[string]func(){
		"upload":   func() { h.put(b, path, pieces...) },
		"download": func() { h.get(b, path, func([]byte) {}) },
	} {
		b.Run(name, func(b *testing.B) {
			h.put(b, path, pieces...)
			b.SetBytes(size)
			before := h.cpu(b)
			for b.Loop() {
				job()
			}
			b.ReportMetric(float64(h.cpu(b)-before)*10/float64(b.N), "agent-ms/op")
		})
	}
}
