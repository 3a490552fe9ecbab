package e2e

import (
	"maps"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/test/debian"
	"github.com/sandgate/sandgate/test/escape"
)

// TestRoot: on a server of one's own a request asks for root, "sandgate info" shows it,
// and what it installed is there after the server was killed.
func TestRoot(t *testing.T) {
	need(t)
	s := newServer(t.TempDir())
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	id := s.create(t, "--image", "docker-archive:"+debian.Archive(t), "--option", "root=true", "--network", "proxy")
	if got := s.must(t, "exec", id, "-c", "id -u && apt-get update && apt-get install -y hello && hello"); !strings.HasPrefix(got, "0\n") || !strings.HasSuffix(got, "\nhello") {
		t.Errorf("got %q", got)
	}
	if got := s.must(t, "info", id); !strings.Contains(got, "unprivileged: root of a user namespace, with the ids") || !strings.Contains(got, "writable") {
		t.Errorf("info: %s", got)
	}
	s.Kill()
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	if got := s.must(t, "exec", id, "-c", "hello; apt-get remove -y hello >/dev/null && ls /usr/bin/hello 2>/dev/null || echo removed"); got != "hello\nremoved" {
		t.Errorf("after a restart: %q", got)
	}
	// A program that took another user ends with its command.
	got := s.run("", "exec", "--timeout", "1s", id, "--", "/usr/bin/perl", "-e", `$) = "33 33"; $( = 33; $> = $< = 33; sleep 300`)
	if got.code != 124 {
		t.Errorf("a command of another user: %+v", got)
	}
	if got := s.must(t, "ps", id); strings.Contains(got, "perl") {
		t.Errorf("processes: %s", got)
	}
	if r := s.run("", "create", "--option", "root=true"); r.code != 125 || !strings.Contains(r.stderr, "without an image") {
		t.Errorf("without an image: %+v", r)
	}
}

// Reasons why an attempt that the kernel allows root of a user namespace does no harm.
const (
	ownIDs    = "all ids inside are those of the sandbox's own range"
	ownSystem = "its own layer over the image, as root expects"
	ownProc   = "the file of a process of its own sandbox; what would show or change the agent's memory the kernel refuses when it is read or written"
)

// harmlessToRoot returns the attempts that the kernel allows root of a user namespace.
func harmlessToRoot(v variant) map[string]string {
	out := maps.Clone(ownAgent)
	for reason, attempts := range map[string][]string{
		ownIDs: {
			"identity: setuid 0", "identity: setgid 0", "identity: setresuid 0", "identity: setresgid 0", "identity: setreuid 0",
			"identity: setregid 0", "identity: setuid of another sandbox", "identity: setgroups", "identity: give a file to root",
			"identity: raise capability 0", "identity: raise capability 1", "identity: raise capability 3", "identity: raise capability 4",
			"identity: raise capability 5", "identity: raise capability 6", "identity: raise capability 7",
		},
		ownSystem: {
			"files: write /usr/x", "files: write /usr/bin/sh", "files: write /bin/x", "files: write /sbin/x", "files: write /lib/x",
			"files: write /etc/passwd", "files: write /etc/shadow", "files: write /etc/x", "files: write /root/x", "files: write /boot/x",
			"files: write /var/x", "files: write /usr/lib/x", "files: write /dev/x", "files: read /etc/shadow",
		},
	} {
		for _, a := range attempts {
			out[a] = reason
		}
	}
	if v.name != "socket" {
		return out
	}
	// The agent is readable there, so its files in /proc belong to the sandbox's root.
	for _, file := range []string{
		"read /proc/1/stack", "read /proc/1/syscall", "read /proc/1/personality", "read /proc/1/io", "write /proc/1/oom_score_adj",
		"write /proc/1/clear_refs", "write /proc/1/uid_map", "write /proc/1/gid_map", "write /proc/1/coredump_filter",
		"write /proc/1/autogroup", "write /proc/1/comm", "write /proc/1/loginuid",
	} {
		out["processes: "+file] = ownProc
	}
	return out
}

// TestEscapeOfRoot tries to break out of a sandbox with root.
func TestEscapeOfRoot(t *testing.T) {
	need(t)
	program := escape.Build(t)
	image := "docker-archive:" + debian.Archive(t)
	for _, v := range variants {
		if v.tool != "" {
			continue // gVisor gives no root
		}
		t.Run(v.name, func(t *testing.T) {
			s := newServer(t.TempDir(), v.flags...)
			if err := s.start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := s.stop(); err != nil {
					t.Error(err)
				}
			})
			client, err := sandgate.NewClient(t.Context(), sandgate.WithAddress(s.address))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = client.Close() })
			box, _, err := client.Create(t.Context(), sandgate.CreateRequest{
				Spec:            &sandgate.Spec{Image: image},
				ProviderOptions: &structpb.Struct{Fields: map[string]*structpb.Value{"root": structpb.NewBoolValue(true)}},
			})
			if err != nil {
				t.Fatal(err)
			}
			escape.Run(t, box, program, harmlessToRoot(v))
		})
	}
}
