package agent

import (
	"errors"
	"io"
	"os/exec"
	"testing"
)

// BenchmarkTrue runs the shortest command, and the same by os/exec.
func BenchmarkTrue(b *testing.B) {
	b.Run("os/exec", func(b *testing.B) {
		for b.Loop() {
			if err := exec.Command("/bin/true").Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, s := range setups() {
		b.Run(s.name, func(b *testing.B) {
			h := start(b, s)
			env := argv("/bin/true")
			ctx := b.Context()
			for b.Loop() {
				stream, err := h.Execute(ctx, env)
				if err != nil {
					b.Fatal(err)
				}
				for err == nil {
					_, err = stream.Recv()
				}
				if !errors.Is(err, io.EOF) {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkStdout takes a gigabyte at a time from one command.
func BenchmarkStdout(b *testing.B) {
	const size = 1 << 30
	for _, s := range setups()[:1] {
		b.Run(s.name, func(b *testing.B) {
			h := start(b, s)
			b.SetBytes(size)
			for b.Loop() {
				stream, err := h.Execute(b.Context(), shell("head -c 1073741824 /dev/zero"))
				if err != nil {
					b.Fatal(err)
				}
				n := 0
				for {
					e, err := stream.Recv()
					if err != nil {
						break
					}
					n += len(e.GetOutput().GetData())
				}
				if n != size {
					b.Fatal(n)
				}
			}
		})
	}
}
