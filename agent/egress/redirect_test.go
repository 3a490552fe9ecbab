package egress

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/spawn"
)

const (
	userMarker    = "SANDGATE_TEST_AS_USER"
	programMarker = "SANDGATE_TEST_PROGRAM"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(programMarker) != "":
		os.Exit(program(strings.Fields(os.Getenv(programMarker))))
	case os.Getenv(userMarker) != "":
		os.Exit(m.Run()) // a redirect never ends
	}
	goleak.VerifyTestMain(m)
}

// asUser runs the calling test again, as a user without privileges, and reports
// whether this is that run. A process can have one redirect only.
func asUser(t testing.TB) bool {
	t.Helper()
	if os.Getenv(userMarker) != "" {
		return true
	}
	self, err := os.Open("/proc/self/exe") // the user may not enter its directory
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = self.Close() }()
	c := exec.CommandContext(t.Context(), "setpriv", "--no-new-privs", "/proc/self/fd/3", "-test.run=^"+t.Name()+"$", "-test.bench=^"+t.Name()+"$", "-test.v")
	if os.Geteuid() == 0 {
		c.Args = append([]string{"setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"}, c.Args[1:]...)
	}
	c.Env, c.ExtraFiles, c.Dir = append(os.Environ(), userMarker+"=1"), []*os.File{self}, "/"
	out, err := c.CombinedOutput()
	t.Logf("as a user:\n%s", out)
	if err != nil {
		t.Error(err)
	}
	return false
}

// program is what commands of the tests run.
func program(args []string) int {
	switch args[0] {
	case "fetch": // by Go's own resolver
		r, err := http.Get(args[1])
		if err != nil {
			fmt.Println(err)
			return 1
		}
		_, _ = io.Copy(os.Stdout, r.Body)
	case "lookup": // as musl does: by a socket that is not connected
		conn, err := net.ListenUDP("udp4", nil)
		if err != nil {
			return 1
		}
		var to unix.SockaddrInet4
		to.Port, to.Addr = dnsPort, [4]byte{192, 0, 2, 53}
		question, _ := hex.DecodeString(args[1])
		raw, _ := conn.SyscallConn()
		_ = raw.Write(func(fd uintptr) bool { err = unix.Sendto(int(fd), question, 0, &to); return true })
		if err != nil {
			fmt.Println(err)
			return 1
		}
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		n, _, err := conn.ReadFrom(make([]byte, 512))
		fmt.Println(n, err)
	case "connects": // to ADDRESS, N times, by so many goroutines
		n, _ := strconv.Atoi(args[2])
		workers, _ := strconv.Atoi(args[3])
		failed := make(chan error)
		took := make([]time.Duration, n)
		for w := range workers {
			go func() {
				for i := w; i < n; i += workers {
					start := time.Now()
					conn, err := net.Dial("tcp", args[1])
					if err != nil {
						failed <- err
						return
					}
					took[i] = time.Since(start)
					_ = conn.(*net.TCPConn).SetLinger(0) // or there are no ports left
					_ = conn.Close()
				}
				failed <- nil
			}()
		}
		for range workers {
			if err := <-failed; err != nil {
				fmt.Println(err)
				return 1
			}
		}
		slices.Sort(took)
		fmt.Println(took[n/2].Nanoseconds())
	}
	return 0
}

// command runs a command as the agent does, and returns its output.
func command(t testing.TB, env []string, argv ...string) (string, int) {
	t.Helper()
	output, err := os.Create(filepath.Join(t.TempDir(), "output"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = output.Close() }()
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	out := int(output.Fd())
	p, err := spawn.Start(spawn.Spec{Path: argv[0], Argv: argv, Env: env, Dir: "/", Files: [4]int{int(null.Fd()), out, out, -1}, Cgroup: -1})
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(p.Reports), Events: unix.POLLIN}}, 60_000); err != nil && !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
		end, ok, err := p.ReadEnd()
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			text, err := os.ReadFile(output.Name())
			if err != nil {
				t.Fatal(err)
			}
			return strings.TrimSpace(string(text)), end.Status.ExitStatus()
		}
	}
}

func goProgram(t testing.TB, args ...string) (string, int) {
	t.Helper()
	return command(t, []string{programMarker + "=" + strings.Join(args, " "), "GODEBUG=netdns=go"}, "/proc/self/exe")
}

// redirected returns a service that redirects, and a server that allows the names.
func redirected(t testing.TB, resolv string, dials map[string]string) (*Service, *upstream) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(path, []byte(resolv), 0o600); err != nil {
		t.Fatal(err)
	}
	s, client := startWith(t, Config{Enabled: true, Proxy: freeAddress(t), AttachTime: time.Second, Redirect: spawn.NotifyConnects, Resolv: path})
	if !s.redirecting.Load() {
		t.Fatal("no redirect")
	}
	u := &upstream{client: client, dials: dials}
	u.attach(t)
	return s, u
}

// Programs that ignore the proxy reach an allowed name at a port that the agent may
// not listen at, although the machine's resolvers ask another name server. Other names
// do not exist, at once.
func TestRedirect(t *testing.T) {
	if !asUser(t) {
		return
	}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprint(w, "content of ", r.Host) }))
	t.Cleanup(web.Close)
	at := web.Listener.Addr().String()
	s, _ := redirected(t, "search svc.test\n", map[string]string{"ok.example:443": at, "ok.example:80": at})
	if port := s.nameServer.Port(); port == dnsPort {
		t.Fatal("this machine lets users listen on port 53")
	}
	python := func(url string) []string {
		return []string{"/usr/bin/python3", "-c", "import urllib.request as u; print(u.urlopen('" + url + "').read().decode())"}
	}
	for _, url := range []string{"http://ok.example:443/", "http://ok.example/"} {
		want := "content of " + strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/")
		for _, argv := range [][]string{{"/usr/bin/curl", "-sS", url}, python(url)} {
			if got, code := command(t, nil, argv...); got != want || code != 0 {
				t.Errorf("%s: %q, exit code %d", argv, got, code)
			}
		}
		if got, code := goProgram(t, "fetch", url); got != want || code != 0 {
			t.Errorf("Go: %q, exit code %d", got, code)
		}
	}
	// Not by a connection: as musl's resolver.
	if got, code := goProgram(t, "lookup", hex.EncodeToString(query(t, "ok.example.", dnsmessage.TypeA))); !strings.HasSuffix(got, "<nil>") || code != 0 {
		t.Errorf("lookup: %q, exit code %d", got, code)
	}
	// By an IPv6 socket, as Java does.
	const mapped = "import socket; s = socket.socket(socket.AF_INET6); s.connect(('::ffff:' + socket.gethostbyname('ok.example'), 443))"
	if got, code := command(t, nil, "/usr/bin/python3", "-c", mapped); code != 0 {
		t.Errorf("IPv6: %s", got)
	}
	start := time.Now()
	for _, argv := range [][]string{{"/usr/bin/curl", "-sS", "https://no.example/"}, python("https://no.example/")} {
		if got, code := command(t, nil, argv...); code == 0 {
			t.Errorf("%s: %q", argv, got)
		}
	}
	if got, code := goProgram(t, "fetch", "https://no.example/"); code == 0 || !strings.Contains(got, "no such host") {
		t.Errorf("Go: %q, exit code %d", got, code)
	}
	if took := time.Since(start); took > 4*time.Second {
		t.Errorf("refused names took %s", took)
	}
	// A file descriptor that is no internet socket, and memory that cannot be read.
	const others = `
import socket, ctypes
s = socket.socket(socket.AF_UNIX)
try: s.connect("/nothing")
except FileNotFoundError: pass
libc = ctypes.CDLL(None, use_errno=True)
s = socket.socket()
assert libc.connect(s.fileno(), ctypes.c_void_p(8), 16) == -1 and ctypes.get_errno() == 14
assert libc.prctl(4, 0) == 0 # PR_SET_DUMPABLE
try: s.connect(("127.0.0.1", 1))
except ConnectionRefusedError: pass
`
	if got, code := command(t, nil, "/usr/bin/python3", "-c", others); code != 0 {
		t.Errorf("others: %s", got)
	}
}

// connectsOf returns an address that redirects to a listener, and the count of its
// connections.
func connectsOf(t testing.TB, s *Service) (netip.AddrPort, *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.80.0.9:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	var count atomic.Int64
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			count.Add(1)
			_ = conn.Close()
		}
	}()
	to := netip.AddrPortFrom(doorAddr, 443)
	s.names.mu.Lock()
	s.names.others[to] = l.Addr().(*net.TCPAddr).AddrPort().Port()
	s.names.mu.Unlock()
	return to, &count
}

var doorAddr = netip.MustParseAddr("127.80.0.9")

// No connect of a program with many threads, which Go interrupts by signals, is lost
// or doubled.
func TestRedirectLosesNothing(t *testing.T) {
	if !asUser(t) {
		return
	}
	total := 4000
	if text := os.Getenv("SANDGATE_CONNECTS"); text != "" {
		total, _ = strconv.Atoi(text)
	}
	s, _ := redirected(t, "", nil)
	to, count := connectsOf(t, s)
	got, code := goProgram(t, "connects", to.String(), strconv.Itoa(total), "8")
	if code != 0 {
		t.Fatal(got)
	}
	t.Logf("half of them took %s ns at most", got)
	for deadline := time.Now().Add(10 * time.Second); count.Load() < int64(total) && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond) // the backlog
	}
	if n := count.Load(); n != int64(total) {
		t.Errorf("%d connections of %d connects", n, total)
	}
}

// BenchmarkRedirect measures connects of one thread: by a program that nobody sees, by
// one that is left alone, and by one that is redirected.
func BenchmarkRedirect(b *testing.B) {
	if !asUser(b) {
		return
	}
	s, _ := redirected(b, "", nil)
	to, _ := connectsOf(b, s)
	at := netip.AddrPortFrom(to.Addr(), s.names.otherPort(to)).String()
	for _, way := range []struct {
		name, address string
		seen          bool
	}{{"unseen", at, false}, {"left alone", at, true}, {"redirected", to.String(), true}} {
		b.Run(way.name, func(b *testing.B) {
			args := []string{"connects", way.address, strconv.Itoa(b.N), "1"}
			median, code := "", 0
			if way.seen {
				median, code = goProgram(b, args...)
			} else {
				c := exec.CommandContext(b.Context(), "/proc/self/exe")
				c.Env = []string{programMarker + "=" + strings.Join(args, " ")}
				out, err := c.Output()
				if err != nil {
					b.Fatal(err)
				}
				median = strings.TrimSpace(string(out))
			}
			ns, err := strconv.ParseFloat(median, 64)
			if err != nil || code != 0 {
				b.Fatalf("%s: exit code %d", median, code)
			}
			b.ReportMetric(ns, "median-ns")
		})
	}
}

func TestRedirectTargets(t *testing.T) {
	s, err := New(Config{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	door := netip.MustParseAddrPort("127.80.0.1:443")
	s.names.others[door] = 40443
	dns := netip.MustParseAddrPort("127.0.0.1:40053")
	for _, c := range []struct {
		to, want, wantLocal string
	}{
		{"127.80.0.1:443", "127.80.0.1:40443", "127.80.0.1:40443"},
		{"[::ffff:127.80.0.1]:443", "127.80.0.1:40443", "127.80.0.1:40443"},
		{"127.80.0.1:40443", "", ""},
		{"127.80.0.1:80", "", ""},
		{"127.80.0.2:443", "", ""},
		{"192.0.2.1:443", "", ""},
		{"192.0.2.1:53", dns.String(), dns.String()},
		{"[2001:db8::1]:53", dns.String(), dns.String()},
		{"127.0.0.1:53", "", dns.String()},
		{"127.0.0.53:53", "", dns.String()},
		{"[::1]:53", "", dns.String()},
		{"0.0.0.0:53", "", dns.String()},
		{"127.0.0.1:443", "", ""},
	} {
		for _, local := range []bool{false, true} {
			want := map[bool]string{false: c.want, true: c.wantLocal}[local]
			for _, mapped := range []bool{false, true} {
				to := netip.MustParseAddrPort(c.to)
				b := make([]byte, unix.SizeofSockaddrInet6)
				b[0] = unix.AF_INET6
				if to.Addr().Is4() && !mapped {
					b[0] = unix.AF_INET
					b = b[:unix.SizeofSockaddrInet4]
				}
				if to.Addr().Is4() {
					writeAddress(b, to)
				} else {
					addr := to.Addr().As16()
					copy(b[offsetAddr6:], addr[:])
					b[2], b[3] = byte(to.Port()>>8), byte(to.Port())
				}
				read, ok := readAddress(b)
				if !ok || read != netip.AddrPortFrom(to.Addr().Unmap(), to.Port()) {
					t.Fatalf("%s reads as %s", to, read)
				}
				r := &redirect{service: s, dns: dns, local: local}
				got := r.target(read)
				if got.IsValid() {
					writeAddress(b, got)
					if again, _ := readAddress(b); again != got {
						t.Errorf("%s is written as %s", got, again)
					}
				}
				if text := map[bool]string{true: got.String()}[got.IsValid()]; text != want {
					t.Errorf("%s, local %t: %q", to, local, text)
				}
			}
		}
	}
	for _, b := range [][]byte{{unix.AF_UNIX, 0, 'x', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, append([]byte{unix.AF_INET6}, make([]byte, 15)...)} {
		if _, ok := readAddress(b); ok {
			t.Errorf("% x is an address", b)
		}
	}
}

// A resolver that appends search domains gets the name that its program means.
func TestSearchDomains(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(path, []byte("domain other\nnameserver 192.0.2.1\nsearch ns.svc.Cluster.local. svc.cluster.local cluster.local\noptions ndots:5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, client := start(t, time.Second)
	s.searches = searchDomains(path)
	(&upstream{client: client, dials: map[string]string{
		"ok.example:1": "", "ok.example.ns.svc.cluster.local:1": "", // as "*" allows both
		"db.ns.svc.cluster.local:1": "",
	}}).attach(t)
	for name, want := range map[string]dnsmessage.RCode{
		"ok.example.ns.svc.cluster.local": dnsmessage.RCodeNameError,
		"ok.example.svc.cluster.local":    dnsmessage.RCodeNameError,
		"ok.example":                      dnsmessage.RCodeSuccess,
		"db.ns.svc.cluster.local":         dnsmessage.RCodeSuccess,
		"no.example.cluster.local":        dnsmessage.RCodeNameError,
	} {
		if code, _ := s.lookup(t.Context(), name); code != want {
			t.Errorf("%s: %v", name, code)
		}
	}
	if n := s.Refused(); n != 0 {
		t.Errorf("%d names were refused that no program asked for", n)
	}
}
