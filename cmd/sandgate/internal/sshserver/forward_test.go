package sshserver

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

// serveTCP serves connections on loopback by f.
func serveTCP(t *testing.T, f func(*net.TCPConn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.SetDeadline(time.Now().Add(patience))
			f(conn.(*net.TCPConn))
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String()
}

func TestForward(t *testing.T) {
	b := open(t, nil, nil)
	client := b.login()
	// It answers after the end of its input: that takes half-close.
	address := serveTCP(t, func(conn *net.TCPConn) {
		raw, err := io.ReadAll(conn)
		if err == nil {
			_, _ = conn.Write(bytes.ToUpper(raw))
		}
	})
	content := bytes.Repeat([]byte("sandgate"), 50_000)
	conn, err := client.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _ = conn.Write(content)
		_ = conn.(interface{ CloseWrite() error }).CloseWrite()
	}()
	if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, bytes.ToUpper(content)) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	_ = conn.Close()

	for address, want := range map[string]string{
		closedPort(t):    "PORT_CLOSED",
		"192.0.2.1:80":   "loopback",
		"example.com:80": "loopback",
		"127.0.0.1:0":    "malformed",
	} {
		var refused *ssh.OpenChannelError
		if _, err := client.Dial("tcp", address); !errors.As(err, &refused) || !strings.Contains(refused.Message, want) {
			t.Errorf("%s: %v", address, err)
		}
	}
	if _, _, err := client.OpenChannel("direct-tcpip", []byte{1}); err == nil || !strings.Contains(err.Error(), "malformed") {
		t.Errorf("malformed: %v", err)
	}
}

func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	return l.Addr().String()
}

// A connection that breaks is a reset for the program, never the end of its input.
func TestForwardReset(t *testing.T) {
	b := open(t, nil, nil)
	ends := make(chan error, 1)
	address := serveTCP(t, func(conn *net.TCPConn) {
		_, _ = conn.Write([]byte("x"))
		_, err := io.ReadAll(conn)
		ends <- err
	})
	for name, hangUp := range map[string]func(*ssh.Client, net.Conn){
		"channel":    func(_ *ssh.Client, conn net.Conn) { _ = conn.Close() },
		"connection": func(client *ssh.Client, _ net.Conn) { _ = client.Close() },
		"server":     func(*ssh.Client, net.Conn) { b.end(); b.serve(nil) },
	} {
		client := b.login()
		conn, err := client.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte("part")); err != nil {
			t.Fatal(err)
		}
		hangUp(client, conn)
		select {
		case err := <-ends:
			if !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%s: the program read %v", name, err)
			}
		case <-time.After(patience):
			t.Fatalf("%s: the program waits", name)
		}
	}
}
