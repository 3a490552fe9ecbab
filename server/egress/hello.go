package egress

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"time"
)

// maxHello bounds the bytes of a ClientHello with its record headers. crypto/tls
// bounds the message itself by 64 KiB.
const maxHello = 128 << 10

var (
	errHelloRead  = errors.New("ClientHello read")
	errHelloLarge = errors.New("the ClientHello is larger than 128 KiB")
)

// readHello reads a ClientHello, in as many records and segments as it comes.
// It returns the name that the client asks for, empty if there is none or if it
// is encrypted, and the bytes that were read, which may be more than the
// ClientHello.
func readHello(r io.Reader) (serverName string, read []byte, err error) {
	conn := &helloConn{from: r}
	err = tls.Server(conn, &tls.Config{
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			serverName = hello.ServerName
			return nil, errHelloRead
		},
	}).Handshake()
	if errors.Is(err, errHelloRead) {
		err = nil
	}
	return serverName, conn.read, err
}

// helloConn lets crypto/tls read a ClientHello and answer nothing.
type helloConn struct {
	from io.Reader
	read []byte
}

func (c *helloConn) Read(p []byte) (int, error) {
	room := maxHello - len(c.read)
	if room == 0 {
		return 0, errHelloLarge
	}
	n, err := c.from.Read(p[:min(len(p), room)])
	c.read = append(c.read, p[:n]...)
	return n, err
}

func (c *helloConn) Write(p []byte) (int, error)      { return len(p), nil }
func (c *helloConn) Close() error                     { return nil }
func (c *helloConn) LocalAddr() net.Addr              { return pipeAddr{} }
func (c *helloConn) RemoteAddr() net.Addr             { return pipeAddr{} }
func (c *helloConn) SetDeadline(time.Time) error      { return nil }
func (c *helloConn) SetReadDeadline(time.Time) error  { return nil }
func (c *helloConn) SetWriteDeadline(time.Time) error { return nil }

// pipeAddr is the address of a program in a sandbox, which has none here.
type pipeAddr struct{}

func (pipeAddr) Network() string { return "sandbox" }
func (pipeAddr) String() string  { return "sandbox" }
