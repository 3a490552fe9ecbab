package kubernetes

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/test/gateway"
)

// kubectl is the cluster's own, else the one on the PATH.
func kubectl(args ...string) *exec.Cmd {
	program := "kubectl"
	if cluster := os.Getenv("SANDGATE_CLUSTER"); cluster != "" {
		program = filepath.Join(filepath.Dir(cluster), "kubectl")
	}
	return exec.Command(program, args...)
}

// forward runs kubectl port-forward from a port of this machine, or from any if it is
// 0, to the server's Service. It returns the port, and what ends it.
func (c installed) forward(t *testing.T, port int) (int, func()) {
	t.Helper()
	from := ""
	if port != 0 {
		from = fmt.Sprint(port)
	}
	cmd := kubectl("-n", c.namespace, "port-forward", "service/"+c.name, from+":7777")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	end := func() {
		if !ended {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			ended = true
		}
	}
	t.Cleanup(end)
	line, err := bufio.NewReader(out).ReadString('\n')
	found := regexp.MustCompile(`^Forwarding from 127\.0\.0\.1:(\d+) `).FindStringSubmatch(line)
	if len(found) == 0 {
		t.Fatalf("kubectl port-forward: %q, %v", line, err)
	}
	if _, err := fmt.Sscan(found[1], &port); err != nil {
		t.Fatal(err)
	}
	return port, end
}

// variable is one of the caller's environment.
func (c installed) variable(name string) string {
	for _, entry := range c.environment {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

// at is the same server at another address. The last value of a variable counts.
func (c installed) at(address, caFile string) installed {
	c.environment = append(slices.Clone(c.environment), "SANDGATE_ADDRESS="+address, "SANDGATE_CA_FILE="+caFile)
	return c
}

// throughTunnel reaches the server by kubectl port-forward alone, and breaks that
// under a command.
func (c installed) throughTunnel(t *testing.T) {
	port, end := c.forward(t, 0)
	address, ca := fmt.Sprint("127.0.0.1:", port), c.variable("SANDGATE_CA_FILE")
	if out := c.at(address, ca).run(t, binary("sandgate"), "run", "--", "sh", "-c", "echo out; id -u"); out != "out\n1000\n" {
		t.Errorf("%q", out)
	}
	client, err := sandgate.NewClient(t.Context(), sandgate.WithAddress(address), sandgate.WithCAFile(ca), sandgate.WithToken(c.variable("SANDGATE_TOKEN")))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	box, _, err := client.Create(limit(t), sandgate.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := box.Start(limit(t), sandgate.ExecuteRequest{Shell: "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.5; done; exit 7"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var out strings.Builder
	for event, err := range p.Events() {
		if err != nil {
			t.Fatalf("after %q: %v", out.String(), err)
		}
		if out.Len() == 0 && event.Output != nil {
			end()
			_, end = c.forward(t, port)
		}
		out.Write(event.Output.GetData())
	}
	if out.String() != "1\n2\n3\n4\n5\n6\n7\n8\n" || p.Exit().GetExitCode() != 7 {
		t.Errorf("%q, %v", out.String(), p.Exit())
	}
	if err := box.Delete(limit(t)); err != nil {
		t.Error(err)
	}
}

// throughGateway reaches the server through nginx, which checks its certificate.
func (c installed) throughGateway(t *testing.T) {
	g := gateway.Start(t, c.variable("SANDGATE_ADDRESS"), "grpc_pass grpc://sandgate;",
		"grpc_pass grpcs://sandgate; grpc_ssl_verify on; grpc_ssl_name sandgate; grpc_ssl_trusted_certificate "+c.variable("SANDGATE_CA_FILE")+";")
	if out := c.at(g.Address, g.CAFile).run(t, binary("sandgate"), "run", "--", "sh", "-c", "echo out; id -u"); out != "out\n1000\n" {
		t.Errorf("%q", out)
	}
}
