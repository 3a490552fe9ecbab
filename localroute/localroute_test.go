//go:build linux

package localroute

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// namespace starts a process in a network namespace whose loopback interface is up,
// and returns the namespace's file.
func namespace(t testing.TB) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--net", "sh", "-c", "ip link set lo up && echo && exec sleep inf")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid)
}

func set(t testing.TB, namespace string, prefixes ...string) {
	t.Helper()
	file, err := os.Open(namespace)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	var all []netip.Prefix
	for _, p := range prefixes {
		all = append(all, netip.MustParsePrefix(p))
	}
	if err := Set(file, all); err != nil {
		t.Fatal(err)
	}
}

// dialer connects to port 7 of each address, where a wildcard listener is, and prints
// the two ends that the listener sees, or the error.
const dialer = `
import socket, sys
for host in sys.argv[1:]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    l = socket.socket(family); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    l.bind(("", 7)); l.listen()
    c = socket.socket(family); c.settimeout(5)
    try:
        c.connect((host, 7)); s, peer = l.accept(); print(s.getsockname()[0], peer[0])
    except OSError as e:
        print(e.strerror)
    l.close()
`

func connect(t *testing.T, namespace string, hosts ...string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "nsenter", append([]string{"--net=" + namespace, "python3", "-c", dialer}, hosts...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// TestSet: exactly the prefixes of the last call lead to the namespace's own listeners,
// which see the address that was asked for.
func TestSet(t *testing.T) {
	ns := namespace(t)
	hosts := []string{"198.18.0.1", "192.0.2.7", "192.0.3.7", "10.1.2.3", "2001:db8::7", "2001:db9::7", "127.0.0.1", "::1"}
	const none = "Network is unreachable"
	for _, c := range []struct {
		prefixes []string
		want     [8]string
	}{
		{nil, [8]string{none, none, none, none, none, none, "127.0.0.1 127.0.0.1", "::1 ::1"}},
		{
			[]string{"198.18.0.0/15", "192.0.2.0/24", "2001:db8::/32"},
			[8]string{"198.18.0.1 127.0.0.1", "192.0.2.7 127.0.0.1", none, none, "2001:db8::7 ::1", none, "127.0.0.1 127.0.0.1", "::1 ::1"},
		},
		{
			[]string{"198.18.0.0/15", "10.1.2.3/32", "2001:db9::7/128"},
			[8]string{"198.18.0.1 127.0.0.1", none, none, "10.1.2.3 127.0.0.1", none, "2001:db9::7 ::1", "127.0.0.1 127.0.0.1", "::1 ::1"},
		},
		{
			[]string{"0.0.0.0/0", "::/0"},
			[8]string{
				"198.18.0.1 127.0.0.1", "192.0.2.7 127.0.0.1", "192.0.3.7 127.0.0.1", "10.1.2.3 127.0.0.1",
				"2001:db8::7 ::1", "2001:db9::7 ::1", "127.0.0.1 127.0.0.1", "::1 ::1",
			},
		},
		{nil, [8]string{none, none, none, none, none, none, "127.0.0.1 127.0.0.1", "::1 ::1"}},
	} {
		set(t, ns, c.prefixes...)
		set(t, ns, c.prefixes...) // again: no change
		for i, got := range connect(t, ns, hosts...) {
			if got != c.want[i] {
				t.Errorf("%v: %s: %s, want %s", c.prefixes, hosts[i], got, c.want[i])
			}
		}
	}
}

// TestSetWithoutIPv6 leaves out the prefixes of IPv6.
func TestSetWithoutIPv6(t *testing.T) {
	ns := namespace(t)
	out, err := exec.CommandContext(t.Context(), "nsenter", "--net="+ns, "sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	set(t, ns, "2001:db8::/32", "192.0.2.0/24")
	if got := connect(t, ns, "192.0.2.7"); got[0] != "192.0.2.7 127.0.0.1" {
		t.Error(got)
	}
}

func BenchmarkSet(b *testing.B) {
	ns := namespace(b)
	for b.Loop() {
		set(b, ns, "198.18.0.0/15")
	}
}

func BenchmarkSetNew(b *testing.B) {
	ns := namespace(b)
	for i := 0; b.Loop(); i++ {
		set(b, ns, fmt.Sprintf("198.%d.0.0/15", i%64*2))
	}
}
