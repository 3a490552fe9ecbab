package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
)

// queryType asks the sandbox's name server: udp|tcp,NAME,TYPE,CLASS, both as numbers. It
// returns the response code and the number of answers.
func queryType(rest string) (string, error) {
	fields := strings.Split(rest, ",")
	if len(fields) != 4 {
		return "", errors.New("usage: dns=NETWORK,NAME,TYPE,CLASS")
	}
	message := []byte{0x5a, 0x5a, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0} // one question, recursion desired
	for _, label := range strings.Split(strings.TrimSuffix(fields[1], "."), ".") {
		message = append(append(message, byte(len(label))), label...)
	}
	message = append(message, 0)
	for _, field := range fields[2:] {
		n, err := strconv.ParseUint(field, 10, 16)
		if err != nil {
			return "", err
		}
		message = binary.BigEndian.AppendUint16(message, uint16(n))
	}
	server, err := nameServer()
	if err != nil {
		return "", err
	}
	conn, err := dial(fields[0], net.JoinHostPort(server, "53"))
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if fields[0] == "tcp" {
		message = append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...)
	}
	if _, err := conn.Write(message); err != nil {
		return "", err
	}
	reply := make([]byte, 64<<10)
	if fields[0] == "tcp" {
		if _, err := io.ReadFull(conn, reply[:2]); err != nil {
			return "", err
		}
	}
	n, err := io.ReadAtLeast(conn, reply, 12)
	if err != nil {
		return "", err
	}
	reply = reply[:n]
	return fmt.Sprintf("code %d, %d answers", reply[3]&0xf, binary.BigEndian.Uint16(reply[6:])), nil
}

// nameServer returns the first name server of /etc/resolv.conf.
func nameServer() (string, error) {
	text, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "nameserver" {
			return fields[1], nil
		}
	}
	return "", errors.New("/etc/resolv.conf has no name server")
}

// pipeline opens a tunnel, sends bytes that are written as in a string of Go, ends its
// direction, and returns the status lines of the responses: TARGET,TEXT.
func pipeline(rest string) (string, error) {
	target, text, _ := strings.Cut(rest, ",")
	text, err := strconv.Unquote(`"` + text + `"`)
	if err != nil {
		return "", err
	}
	conn, status, err := tunnel(target)
	if conn != nil {
		defer func() { _ = conn.Close() }()
	}
	if err != nil || !strings.Contains(status, " 200 ") {
		return status, err
	}
	if _, err := io.WriteString(conn, text); err != nil {
		return "", err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return "", err
	}
	all, err := io.ReadAll(io.LimitReader(conn, 1<<20))
	var lines []string
	for line := range strings.Lines(string(all)) {
		if strings.HasPrefix(line, "HTTP/") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	if len(lines) > 0 {
		err = nil // a reset after the last response
	}
	return strings.Join(lines, ", "), err
}

// lie sends a request through the proxy, for another host than that of its URL: HOST URL.
// It returns the protocol and the status.
func lie(rest string) (string, error) {
	name, target, _ := strings.Cut(rest, " ")
	ctx, cancel := context.WithTimeout(context.Background(), attemptTime)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return "", err
	}
	r.Host = name
	transport := &http.Transport{Proxy: toProxy, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(r)
	if err != nil {
		return "", err
	}
	return response.Proto + " " + response.Status, response.Body.Close()
}

// listen prints a port, and the addresses of the sandbox beyond loopback, and accepts
// connections at all of them until it is killed.
func listen() error {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		return err
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	words := []any{l.Addr().(*net.TCPAddr).Port}
	for _, one := range all {
		if n, ok := one.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			words = append(words, n.IP)
		}
	}
	report(words...)
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		_ = conn.Close()
	}
}
