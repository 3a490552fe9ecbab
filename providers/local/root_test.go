//go:build linux

package local_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local"
	"github.com/sandgate/sandgate/providers/providertest"
	"github.com/sandgate/sandgate/test/debian"
)

// installed prints what a package left: owners, modes, and the output of its program.
const installed = `hello; stat -c '%U:%G %a' /usr/bin/hello /var/lib/hello /etc/hello.conf /var/spool/hello`

const wantInstalled = "hello\nroot:root 4755\nwww-data:www-data 755\nhello:hello 600\nroot:staff 2775\n"

// TestRootInstallsPackages: with the option root, apt-get and dpkg work in an image of
// Debian, whether the agent is reached by its socket or by the runtime. On the host,
// everything has ids of the sandbox's own range. It survives the server, and the range is
// free again afterwards.
func TestRootInstallsPackages(t *testing.T) {
	archive := debian.Archive(t)
	for _, transport := range []local.Transport{local.TransportSocket, local.TransportExec} {
		t.Run(string(transport), func(t *testing.T) {
			config := testConfig(t)
			config.Transport = transport
			p := open(t, config)
			spec := imageSpec(t, "docker-archive:"+archive, `"root": true`)
			info, err := providertest.Create(t.Context(), p, "one", spec)
			if err != nil {
				t.Fatal(err)
			}
			if info.Unprivileged || info.ReadOnlySystem || len(info.NotEnforced) == 0 || !strings.HasPrefix(info.NotEnforced[0], "unprivileged: root of a user namespace") {
				t.Errorf("it describes itself as %+v", info)
			}
			// No program of the image is needed for limits.
			if got := providertest.Shell(t, p, "one", "id -u; id -un; echo $HOME ~root; ulimit -n -H; ulimit -c -H; grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status"); got !=
				"0\nroot\n/home/sandbox /home/sandbox\n"+hardLimit()+"\n0\nCapEff:\t00000000000000fb\nCapBnd:\t00000000000000fb\nNoNewPrivs:\t1\nSeccomp:\t2\n" {
				t.Errorf("root is %q", got)
			}
			const install = "apt-get update && apt-get install -y hello"
			providertest.Shell(t, p, "one", install+" >/tmp/log 2>&1 || cat /tmp/log")
			first := assertRange(t, p, "one")
			if _, err := providertest.Create(t.Context(), p, "two", spec); err != nil {
				t.Fatal(err)
			}
			providertest.Shell(t, p, "two", "cp "+debian.Repository+"/hello_1_all.deb /tmp && dpkg -i /tmp/hello_1_all.deb >/tmp/log 2>&1 || cat /tmp/log")
			if second := assertRange(t, p, "two"); second == first {
				t.Errorf("both have the ids from %d on", first)
			}
			closeProvider(t, p)
			p = open(t, config)
			if again := assertRange(t, p, "one"); again != first {
				t.Errorf("the ids from %d on became those from %d on", first, again)
			}
			for _, name := range []string{"one", "two"} {
				deleteSandbox(t, p, name)
			}
			links, err := os.ReadDir("/run/sandgate/uids")
			if err != nil {
				t.Fatal(err)
			}
			for _, link := range links {
				if owner, err := os.Readlink("/run/sandgate/uids/" + link.Name()); err == nil && filepath.Dir(owner) == config.StateDir {
					t.Errorf("id %s is still taken by %s", link.Name(), owner)
				}
			}
			closeProvider(t, p)
		})
	}
}

// hardLimit is what remains of the server's own limit of open files.
func hardLimit() string {
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil {
		return err.Error()
	}
	return fmt.Sprint(min(own.Max, 65536))
}

// assertRange checks what a package left in a sandbox, inside and by its owners on the
// host, and returns the first id of the sandbox's range.
func assertRange(t *testing.T, p *local.Provider, name string) uint32 {
	t.Helper()
	if got := providertest.Shell(t, p, name, installed); got != wantInstalled {
		t.Errorf("%s: %q", name, got)
	}
	pid := local.FirstProcess(t, p, name)
	owner := func(path string) (uid, gid uint32) {
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		st := info.Sys().(*syscall.Stat_t)
		return st.Uid, st.Gid
	}
	root := fmt.Sprintf("/proc/%d/root", pid)
	first, _ := owner(root + "/usr/bin/hello")
	if first < 0x70000000 || first%65536 != 0 {
		t.Errorf("%s: root's files have the owner %d on the host", name, first)
	}
	for path, want := range map[string][2]uint32{
		"/usr/bin/hello": {0, 0}, "/var/lib/hello": {33, 33}, "/etc/hello.conf": {900, 900}, "/var/spool/hello": {0, 50},
		"/usr/bin/dpkg": {0, 0}, "/etc/passwd": {0, 0}, "/workspace": {0, 0}, "/tmp": {0, 0},
	} {
		if uid, gid := owner(root + path); uid != first+want[0] || gid != first+want[1] {
			t.Errorf("%s: %s belongs to %d:%d, and not to %v of the range from %d on", name, path, uid, gid, want, first)
		}
	}
	// The agent's directories, and what they are in, belong to nobody inside.
	for _, path := range []string{"/", "/.sandgate", "/.sandgate/agent"} {
		if uid, gid := owner(root + path); uid != 0 || gid != 0 {
			t.Errorf("%s: %s belongs to %d:%d", name, path, uid, gid)
		}
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if want := fmt.Sprintf("\nUid:\t%d\t%[1]d\t%[1]d\t%[1]d\nGid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d\n", first); err != nil || !strings.Contains(string(status), want) {
		t.Errorf("%s: its first process is\n%s, %v", name, status, err)
	}
	if link, err := os.Readlink(fmt.Sprintf("/run/sandgate/uids/%d", first)); err != nil || link == "" {
		t.Errorf("%s: %q, %v", name, link, err)
	}
	return first
}

// TestRootIsRefused: where a sandbox cannot have root, the error gives the reason.
func TestRootIsRefused(t *testing.T) {
	p := opened(t, testConfig(t))
	spec := providers.Spec{Hash: "h", Network: providers.NetworkNone, Resources: local.DefaultResources(), TemplateOptions: json.RawMessage(`{"root": true}`)}
	if _, err := providertest.Create(t.Context(), p, "plain", spec); !errors.Is(err, providers.ErrInvalid) || !strings.Contains(err.Error(), "without an image") {
		t.Errorf("without an image: %v", err)
	}
	if _, err := p.Get(t.Context(), "plain"); !errors.Is(err, providers.ErrNotFound) {
		t.Errorf("it left %v", err)
	}
}

// TestRootIsRefusedByGVisor: gVisor does not get a user namespace of the provider's.
func TestRootIsRefusedByGVisor(t *testing.T) {
	p := opened(t, testConfigOf(t, "runsc"))
	spec := imageSpec(t, "oci:"+writeLayout(t, busyboxImage(t)), `"root": true`)
	if _, err := providertest.Create(t.Context(), p, "root", spec); !errors.Is(err, providers.ErrUnsupported) {
		t.Errorf("got %v", err)
	}
}

// TestRequestAsksForRoot: a request may ask for root, and for the opposite of its
// template.
func TestRequestAsksForRoot(t *testing.T) {
	p := opened(t, testConfig(t))
	ref := "oci:" + writeLayout(t, busyboxImage(t))
	for _, c := range []struct{ template, request, want string }{
		{"", `{"root": true}`, "0\n"}, {`"root": true`, `{"root": false}`, "unprivileged\n"}, {"", "", "unprivileged\n"},
	} {
		spec := imageSpec(t, ref, c.template)
		spec.Options = json.RawMessage(c.request)
		if _, err := providertest.Create(t.Context(), p, "root", spec); err != nil {
			t.Fatal(err)
		}
		if got := providertest.Shell(t, p, "root", "[ $(id -u) = 0 ] && id -u || echo unprivileged"); got != c.want {
			t.Errorf("template %s, request %s: %q", c.template, c.request, got)
		}
		deleteSandbox(t, p, "root")
	}
}

// TestRootHasKernelLimitsOfItsOwn: root of a sandbox that uses up the kernel's limits per
// user leaves those of other sandboxes with root alone, and those of the host's root.
func TestRootHasKernelLimitsOfItsOwn(t *testing.T) {
	p := opened(t, testConfig(t))
	spec := imageSpec(t, "docker-archive:"+debian.Archive(t), `"root": true`)
	for _, name := range []string{"greedy", "modest"} {
		if _, err := providertest.Create(t.Context(), p, name, spec); err != nil {
			t.Fatal(err)
		}
		defer deleteSandbox(t, p, name)
	}
	take := fmt.Sprintf(`$n++ while $n < 100000 && syscall(%d, 0) >= 0; print $n > 0 && $n < 100000 ? "some" : "none or all";`, unix.SYS_INOTIFY_INIT1)
	greedy := make(chan string)
	go func() {
		greedy <- providertest.Shell(t, p, "greedy", "perl -e '"+take+` open F, ">/workspace/taken"; select undef, undef, undef, 0.01 until -e "/workspace/release"'`)
	}()
	providertest.Shell(t, p, "greedy", "until test -e /workspace/taken; do sleep 0.01; done")
	if got := providertest.Shell(t, p, "modest", "perl -e '"+take+"'"); got != "some" {
		t.Errorf("file watches of another sandbox: %q", got)
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		t.Errorf("file watches of the host's root: %v", err)
	} else {
		_ = unix.Close(fd)
	}
	providertest.Shell(t, p, "greedy", "touch /workspace/release")
	if got := <-greedy; got != "some" {
		t.Errorf("its own: %q", got)
	}
}

// TestRootOnTheHostsNetwork: a sandbox with root starts on the host's network, too, where
// it cannot change it.
func TestRootOnTheHostsNetwork(t *testing.T) {
	p := opened(t, testConfig(t))
	spec := imageSpec(t, "oci:"+writeLayout(t, busyboxImage(t)), `"root": true, "host_network": true`)
	spec.Network = providers.NetworkFull
	if _, err := providertest.Create(t.Context(), p, "full", spec); err != nil {
		t.Fatal(err)
	}
	defer deleteSandbox(t, p, "full")
	if got := providertest.Shell(t, p, "full", "id -u; for f in /sys/class/net/lo/mtu /proc/sys/net/ipv4/ip_forward /sys/kernel/uevent_seqnum /sys/fs/cgroup/*/cgroup.procs; do (echo 1 >$f) 2>/dev/null && echo wrote $f; done; ifconfig lo down 2>/dev/null && echo down; ls -A /sys/fs/ext4/* /sys/block/* 2>/dev/null; grep -c ' / /sys ' /proc/self/mountinfo"); got != "0\n1\n" {
		t.Errorf("got %q", got)
	}
}
