package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	proxy = "127.0.0.1:3128"
	// attemptTime bounds one attempt. A refusal comes at once.
	attemptTime = 15 * time.Second
)

// attempts makes the connections that its arguments name, all at once, and prints
// one line for each: the argument, a tab, and "open" or why there is no connection.
// An argument is KIND=REST.
func attempts(list []string) {
	results := make([]string, len(list))
	var all sync.WaitGroup
	for i, arg := range list {
		all.Go(func() { results[i] = attempt(arg) })
	}
	all.Wait()
	for i, arg := range list {
		_, _ = fmt.Fprintf(os.Stdout, "%s\t%s\n", arg, results[i])
	}
}

func attempt(arg string) string {
	kind, rest, _ := strings.Cut(arg, "=")
	try, ok := map[string]func(string) (string, error){
		"tcp": direct, "udp": datagram, "unix": unixSocket, "raw": raw, "lookup": lookup, "query": query,
		"connect": connect, "absolute": absolute, "socks": socks, "associate": associate, "tls": hello, "http": host, "get": get,
		"request": request, "bypass": bypass, "follow": follow, "find": find,
		"dns": queryType, "pipeline": pipeline, "lie": lie,
	}[kind]
	if !ok {
		return "no such attempt"
	}
	result, err := try(rest)
	if err != nil {
		result = err.Error()
	}
	return strings.NewReplacer("\n", " ", "\r", "", "\t", " ").Replace(result)
}

func dial(network, address string) (net.Conn, error) {
	conn, err := net.DialTimeout(network, address, attemptTime)
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(attemptTime))
}

// direct connects by TCP, without a proxy.
func direct(address string) (string, error) {
	conn, err := dial("tcp", address)
	if err != nil {
		return "", err
	}
	return "open", conn.Close()
}

// datagram sends a datagram and waits a moment for an answer.
func datagram(address string) (string, error) {
	conn, err := dial("udp", address)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte("hello")); err != nil {
		return "", err
	}
	_ = conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if _, err := conn.Read(make([]byte, 512)); err != nil {
		return "", err
	}
	return "open", nil
}

func unixSocket(name string) (string, error) {
	conn, err := dial("unix", name)
	if err != nil {
		return "", err
	}
	return "open", conn.Close()
}

// raw opens a raw socket, or a packet socket.
func raw(family string) (string, error) {
	domain, protocol := syscall.AF_INET, syscall.IPPROTO_ICMP
	switch family {
	case "packet":
		domain, protocol = syscall.AF_PACKET, 0x0300
	case "ipv6":
		domain, protocol = syscall.AF_INET6, syscall.IPPROTO_ICMPV6
	}
	fd, err := syscall.Socket(domain, syscall.SOCK_RAW, protocol)
	if err != nil {
		return "", err
	}
	return "open", syscall.Close(fd)
}

func lookup(name string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), attemptTime)
	defer cancel()
	addrs, err := (&net.Resolver{PreferGo: true}).LookupHost(ctx, name)
	return strings.Join(addrs, " "), err
}

// query asks the name server of the sandbox for a TXT record.
func query(name string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), attemptTime)
	defer cancel()
	texts, err := (&net.Resolver{PreferGo: true}).LookupTXT(ctx, name)
	return strings.Join(texts, " "), err
}

// tunnel asks the proxy for a connection.
func tunnel(target string) (net.Conn, string, error) {
	conn, err := dial("tcp", proxy)
	if err != nil {
		return nil, "", err
	}
	if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target); err != nil {
		return conn, "", err
	}
	// Byte by byte, since what follows the headers belongs to the connection.
	var head strings.Builder
	one := make([]byte, 1)
	for !strings.HasSuffix(head.String(), "\r\n\r\n") {
		if _, err := io.ReadFull(conn, one); err != nil {
			return conn, "", err
		}
		head.Write(one)
	}
	status, _, _ := strings.Cut(head.String(), "\r\n")
	return conn, status, nil
}

func connect(target string) (string, error) {
	conn, status, err := tunnel(target)
	if conn != nil {
		_ = conn.Close()
	}
	return status, err
}

// absolute sends a request for a URL to the proxy.
func absolute(url string) (string, error) {
	conn, err := dial("tcp", proxy)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: lie.example\r\nConnection: close\r\n\r\n", url); err != nil {
		return "", err
	}
	return receive(conn)
}

// receive reads a response.
func receive(conn net.Conn) (string, error) {
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return "", err
	}
	return statusAndBody(resp)
}

func statusAndBody(resp *http.Response) (string, error) {
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	return resp.Status + " " + string(body), err
}

// socksCall sends a request to the proxy and returns its reply.
func socksCall(command byte, target string) (string, error) {
	name, port, err := net.SplitHostPort(target)
	if err != nil {
		return "", err
	}
	number, err := net.LookupPort("tcp", port)
	if err != nil {
		return "", err
	}
	conn, err := dial("tcp", proxy)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	request := append([]byte{5, 1, 0, 5, command, 0, 3, byte(len(name))}, name...)
	if _, err := conn.Write(binary.BigEndian.AppendUint16(request, uint16(number))); err != nil {
		return "", err
	}
	reply := make([]byte, 4)
	if _, err := io.ReadFull(conn, reply); err != nil {
		return "", err
	}
	return fmt.Sprintf("reply %d", reply[3]), nil
}

func socks(target string) (string, error)     { return socksCall(1, target) }
func associate(target string) (string, error) { return socksCall(3, target) }

// hello opens a tunnel and begins TLS for another name: TARGET,NAME.
func hello(rest string) (string, error) {
	target, name, _ := strings.Cut(rest, ",")
	conn, status, err := tunnel(target)
	if conn != nil {
		defer func() { _ = conn.Close() }()
	}
	if err != nil || !strings.Contains(status, " 200 ") {
		return status, err
	}
	//nolint:gosec // Whose certificate it is does not matter, only that there is none.
	secure := tls.Client(conn, &tls.Config{ServerName: name, InsecureSkipVerify: true})
	if err := secure.Handshake(); err != nil {
		return "", err
	}
	return "open", nil
}

// host opens a tunnel and sends an HTTP request for another host: TARGET,HOST.
func host(rest string) (string, error) {
	target, name, _ := strings.Cut(rest, ",")
	conn, status, err := tunnel(target)
	if conn != nil {
		defer func() { _ = conn.Close() }()
	}
	if err != nil || !strings.Contains(status, " 200 ") {
		return status, err
	}
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", name); err != nil {
		return "", err
	}
	return receive(conn)
}

// get sends a request without a proxy, as a program does that has a dialer of its
// own.
func get(target string) (string, error) {
	conn, err := dial("tcp", target)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", target); err != nil {
		return "", err
	}
	text, err := receive(conn)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return "", errors.New("the connection ended before a response")
	}
	return text, err
}
