package sshserver

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	sandgate "github.com/sandgate/sandgate/clients/go"
	clientfake "github.com/sandgate/sandgate/clients/go/fake"
)

// FuzzSFTP sends a client's bytes to the handlers, with a gateway in memory. Whatever they
// are, the session ends, with all files closed.
func FuzzSFTP(f *testing.F) {
	packet := func(kind byte, fields ...any) []byte {
		body := []byte{kind}
		for _, field := range fields {
			switch v := field.(type) {
			case uint32:
				body = binary.BigEndian.AppendUint32(body, v)
			case uint64:
				body = binary.BigEndian.AppendUint64(body, v)
			case string:
				body = append(binary.BigEndian.AppendUint32(body, uint32(len(v))), v...)
			}
		}
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
	}
	init := packet(1, uint32(3))
	seeds := [][]byte{
		packet(3, uint32(1), "/file", uint32(1), uint32(0)),                 // open for reading
		packet(5, uint32(2), "1", uint64(1), uint32(100)),                   // read
		packet(5, uint32(2), "1", uint64(1<<63), uint32(1<<31)),             // read far away
		packet(3, uint32(3), "new", uint32(0x1a), uint32(4), uint32(0o600)), // open for writing
		packet(6, uint32(4), "1", uint64(0), "content"),                     // write
		packet(6, uint32(4), "1", uint64(1<<62), "content"),                 // write far away
		packet(10, uint32(5), "1", uint32(0x8d), uint64(7), uint32(1)),      // fsetstat
		packet(4, uint32(6), "1"),                                           // close
		packet(11, uint32(7), "/"), packet(12, uint32(8), "1"),              // opendir, readdir
		packet(17, uint32(9), "/file"), packet(7, uint32(10), "../../file"), // stat, lstat
		packet(18, uint32(11), "/a", "/b"), packet(200, uint32(12), "posix-rename@openssh.com", "/a", "/b"),
		packet(20, uint32(13), "x", "y"), packet(19, uint32(14), "x"), packet(16, uint32(15), "."),
	}
	f.Add(bytes.Join(append([][]byte{init}, seeds...), nil))
	for _, seed := range seeds {
		f.Add(append(append([]byte(nil), init...), seed...))
	}
	if err := sftp.SetSFTPExtensions("posix-rename@openssh.com", "hardlink@openssh.com"); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		gateway := clientfake.Start(t, &clientfake.Server{})
		client, err := sandgate.NewClient(t.Context(), sandgate.WithAddress("127.0.0.1:1"), sandgate.WithDialOptions(gateway.DialOptions()...))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		box, _, err := client.Create(t.Context(), sandgate.CreateRequest{ID: "box"})
		if err != nil {
			t.Fatal(err)
		}
		gateway.SetFile("box", "/file", "some content")
		c := &conn{sandbox: box, home: "/", files: make(chan struct{}, maxFiles), ctx: t.Context()}
		h := &files{sandbox: box, ctx: t.Context(), reads: t.Context(), slots: c.files, explain: func(string) {}, writers: map[string]*writer{}}
		served := make(chan struct{})
		go func() {
			defer close(served)
			pipe := &channel{Reader: bytes.NewReader(input)}
			_ = sftp.NewRequestServer(newPackets(pipe, func(error) {}), sftp.Handlers{FileGet: h, FilePut: h, FileCmd: h, FileList: h}).Serve()
		}()
		select {
		case <-served:
		case <-time.After(patience):
			t.Fatal("the session does not end")
		}
		if len(c.files) != 0 || len(h.writers) != 0 {
			t.Errorf("%d files are left open, %d for writing", len(c.files), len(h.writers))
		}
		if content, ok := gateway.File("box", "/file"); !ok || content != "some content" && !bytes.Contains(input, []byte("file")) {
			t.Errorf("a file changed that was not named: %q", content)
		}
	})
}

// channel is the channel of a client that has sent all its packets.
type channel struct {
	ssh.Channel
	io.Reader
}

func (c *channel) Read(p []byte) (int, error)  { return c.Reader.Read(p) }
func (c *channel) Write(p []byte) (int, error) { return len(p), nil }
func (c *channel) Close() error                { return nil }
