package conformance

import (
	"context"
	"strings"
)

func notRoot(ctx context.Context, t T, s Sandbox) {
	r := s.sh(ctx, t, "id -u; id -g; grep -E '^(Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs|Seccomp):' /proc/self/status")
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	if len(lines) < 2 || lines[0] == "0" || lines[1] == "0" {
		t.Errorf("commands run as root: %v", r)
	}
	held := map[string]bool{}
	for _, line := range lines {
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		held[key] = true
		switch {
		case strings.HasPrefix(key, "Cap") && strings.Trim(value, "0") != "":
			t.Errorf("capabilities are left: %s", line)
		case key == "NoNewPrivs" && value != "1":
			t.Errorf("new privileges can be gained: %s", line)
		case key == "Seccomp" && value != "2" && !s.NoSeccomp:
			t.Errorf("no seccomp filter: %s", line)
		}
	}
	for _, key := range []string{"CapEff", "CapBnd", "CapPrm", "NoNewPrivs"} {
		if !held[key] {
			t.Errorf("nothing is said about %s in %q", key, r.stdout)
		}
	}
}

func noNetwork(ctx context.Context, t T, s Sandbox) {
	r := s.sh(ctx, t, "tail -n +3 /proc/net/dev | cut -d: -f1")
	for _, dev := range strings.Fields(r.stdout) {
		// Tunnels' templates, which the kernel puts into every namespace, are no
		// way out.
		if dev != "lo" && !strings.HasSuffix(dev, "0") {
			t.Errorf("there is a network interface %q", dev)
		}
	}
	if r = s.sh(ctx, t, "tail -n +2 /proc/net/route; cat /proc/net/ipv6_route 2>/dev/null | grep -v ' lo$'"); r.stdout != "" {
		t.Errorf("there are routes: %q", r.stdout)
	}
	// The host's abstract sockets belong to its network namespace.
	r = s.sh(ctx, t, "grep -c @ /proc/net/unix; grep @ /proc/net/unix | grep -v sandgate")
	if lines := strings.Split(strings.TrimSpace(r.stdout), "\n"); len(lines) > 1 {
		t.Errorf("there are others' sockets: %q", r.stdout)
	}
}

// loopback asks without any network tool.
func loopback(ctx context.Context, t T, s Sandbox) {
	// Two ends meet where there is python, and a kernel that shows its addresses
	// is asked elsewhere. One that does neither shows the interface at least.
	r := s.sh(ctx, t, `if command -v python3 >/dev/null; then
	python3 -c 'import socket
l = socket.create_server(("127.0.0.1", 0))
c = socket.create_connection(l.getsockname(), 10)
c.sendall(b"127.0.0.1 is up")
c.close()
print(l.accept()[0].recv(100).decode())'
elif test -e /proc/net/fib_trie; then cat /proc/net/fib_trie
else grep -E '^ *lo:' /proc/net/dev >/dev/null && echo 127.0.0.1
fi`)
	if !strings.Contains(r.stdout, "127.0.0.1") {
		t.Errorf("127.0.0.1 is not up: %v", r)
	}
}

func noHostFiles(ctx context.Context, t T, s Sandbox) {
	// An image has a /var/lib of its own, but not with these in it.
	r := s.sh(ctx, t, `ls -A /root /etc/ssh /etc/sudoers /var/run/docker.sock /run/docker.sock /run/systemd /boot /lost+found 2>/dev/null | grep -v ':$' | grep .
		cd /var/lib 2>/dev/null && ls -d sandgate containerd docker kubelet NetworkManager systemd/random-seed 2>/dev/null`)
	if r.stdout != "" {
		t.Errorf("there are files of a host: %q", r.stdout)
	}
	if r = s.sh(ctx, t, "cat /etc/shadow /proc/kcore /proc/1/root/etc/shadow | head -c 10"); r.stdout != "" {
		t.Errorf("secrets can be read: %q", r.stdout)
	}
	// Process 1 is the agent or a program of the image, never a host's.
	if r = s.sh(ctx, t, "ls -d /proc/[0-9]* | wc -l"); len(strings.TrimSpace(r.stdout)) > 2 {
		t.Errorf("%s processes can be seen", strings.TrimSpace(r.stdout))
	}
}

// noNamespaces: with a user namespace a process would have all capabilities in
// it, and much more of the kernel to attack. Without seccomp it may make one: its kernel
// is then not the host's.
func noNamespaces(ctx context.Context, t T, s Sandbox) {
	script := "unshare -n true && echo network; unshare -m true && echo mounts; mount -t tmpfs none /tmp && echo a mount; exit 0"
	if !s.NoSeccomp {
		script = "unshare -U true && echo user; " + script
	}
	r := s.sh(ctx, t, script)
	if r.stdout != "" {
		t.Errorf("it got %q", r.stdout)
	}
}

func readOnlySystem(ctx context.Context, t T, s Sandbox) {
	for _, path := range []string{"/x", "/usr/x", "/etc/x", "/usr/bin/x", "/proc/sys/kernel/hostname", "/sys/x"} {
		if r := s.sh(ctx, t, "echo x >"+path); r.code() == 0 {
			t.Errorf("%s can be written", path)
		}
	}
}

func writablePlaces(ctx context.Context, t T, s Sandbox) {
	for _, dir := range []string{"/workspace", "/tmp", "$HOME", "/large_tool_results", "/conversation_history", "/run", "/dev/shm", "/var/tmp"} {
		if r := s.sh(ctx, t, "f="+dir+"/written; echo x >$f && cat $f && rm $f"); r.stdout != "x\n" {
			t.Errorf("%s cannot be written: %q", dir, r.stderr)
		}
	}
	if r := s.sh(ctx, t, "pwd"); r.stdout != "/workspace\n" {
		t.Errorf("commands start in %q", r.stdout)
	}
}

func python(ctx context.Context, t T, s Sandbox) {
	for _, name := range []string{"python3", "python"} {
		r := s.execute(ctx, t, argv(name, "-c", "import json, ssl, sqlite3; print(json.dumps([1]))"))
		if r.err != nil || r.stdout != "[1]\n" {
			t.Errorf("%s: %v", name, r)
		}
	}
}
