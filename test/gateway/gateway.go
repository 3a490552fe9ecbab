// Package gateway runs nginx in front of a server, with the configuration of
// deploy/gateway/nginx.conf, for tests.
package gateway

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Gateway is nginx, with a certificate of its own.
type Gateway struct {
	// Address is where it listens.
	Address string
	// CAFile is a PEM file of its certificate's authority.
	CAFile string

	dir string
	cmd *exec.Cmd
}

// Start writes the configuration for a server's address, with other changes as pairs
// of texts, and runs nginx with it until the test ends.
func Start(t *testing.T, server string, changes ...string) *Gateway {
	t.Helper()
	dir := t.TempDir()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &Gateway{dir: dir, Address: listener.Addr().String(), CAFile: filepath.Join(dir, "server.crt")}
	_ = listener.Close()
	selfSigned(t, g.CAFile, filepath.Join(dir, "server.key"))
	// Tests run in their package's directory, beside this one.
	example, err := os.ReadFile("../../deploy/gateway/nginx.conf")
	if err != nil {
		t.Fatal(err)
	}
	text := string(example)
	changes = append(changes, "127.0.0.1:7777", server, "listen 443", "listen "+g.Address,
		"/etc/nginx/tls/server.crt", g.CAFile, "/etc/nginx/tls/server.key", filepath.Join(dir, "server.key"))
	for i := 0; i < len(changes); i += 2 {
		if !strings.Contains(text, changes[i]) {
			t.Fatalf("the example has no %q", changes[i])
		}
		text = strings.ReplaceAll(text, changes[i], changes[i+1])
	}
	whole := fmt.Sprintf("daemon off; user root; pid %[1]s/pid; error_log stderr warn; events {}\n"+
		"http { access_log off; client_body_temp_path %[1]s/body;\n%[2]s\n}\n", dir, text)
	if err := os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(whole), 0o600); err != nil {
		t.Fatal(err)
	}
	g.Run(t)
	t.Cleanup(g.Kill)
	return g
}

// Run runs nginx, again after Kill, and returns when it listens.
func (g *Gateway) Run(t *testing.T) {
	t.Helper()
	g.cmd = exec.Command("nginx", "-p", g.dir, "-c", filepath.Join(g.dir, "nginx.conf"))
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // workers go with it
	g.cmd.Stderr = t.Output()
	if err := g.cmd.Start(); err != nil {
		t.Fatal(err, "; make setup installs nginx")
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("tcp", g.Address)
		if err == nil {
			_ = conn.Close()
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the gateway does not listen: ", err)
		}
	}
}

// Reload has nginx read its configuration again: new workers take new connections.
func (g *Gateway) Reload() error { return g.cmd.Process.Signal(syscall.SIGHUP) }

// Kill kills nginx with its workers.
func (g *Gateway) Kill() {
	_ = syscall.Kill(-g.cmd.Process.Pid, syscall.SIGKILL)
	_ = g.cmd.Wait()
}

// selfSigned writes a certificate for 127.0.0.1 and its key.
func selfSigned(t *testing.T, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: certificate}, keyFile: {Type: "PRIVATE KEY", Bytes: secret},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
