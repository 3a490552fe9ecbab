package spawn

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// asUser runs the calling test again, as a user without privileges, and reports
// whether this is that run. A process can have one filter of NotifyConnects only.
func asUser(t *testing.T) bool {
	t.Helper()
	const marker = "SANDGATE_TEST_AS_USER"
	if os.Getenv(marker) != "" {
		return true
	}
	self, err := os.Open("/proc/self/exe") // the user may not enter its directory
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = self.Close() }()
	c := exec.CommandContext(t.Context(), "setpriv", "--no-new-privs", "/proc/self/fd/3", "-test.run=^"+t.Name()+"$", "-test.v")
	if os.Geteuid() == 0 {
		c.Args = append([]string{"setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"}, c.Args[1:]...)
	}
	c.Env, c.ExtraFiles, c.Dir = append(os.Environ(), marker+"=1"), []*os.File{self}, "/"
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("as a user: %v\n%s", err, out)
	}
	return false
}

func TestMain(m *testing.M) {
	if address := os.Getenv("SANDGATE_TEST_SEND_TO"); address != "" {
		os.Exit(sendTo(address))
	}
	os.Exit(m.Run())
}

// sendTo is a program that sends to an address by UDP: without a connection, then
// with one.
func sendTo(address string) int {
	to, err := net.ResolveUDPAddr("udp4", address)
	if err != nil {
		return 2
	}
	free, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return 3
	}
	if _, err := free.WriteTo([]byte("sendto"), to); err != nil {
		return 4
	}
	conn, err := net.DialUDP("udp4", nil, to)
	if err != nil {
		return 5
	}
	if _, err := conn.Write([]byte("send")); err != nil {
		return 6
	}
	return 0
}

// The kernel reports what commands connect to, and nothing of the agent.
func TestNotifyConnects(t *testing.T) {
	if !asUser(t) {
		return
	}
	if os.Geteuid() == 0 {
		t.Fatal("still root")
	}
	connects, err := NotifyConnects()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NotifyConnects(); !errors.Is(err, unix.EBUSY) {
		t.Errorf("a second filter: %v", err)
	}
	l, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	// Nobody answers yet: a connect that was reported would wait.
	own, err := net.Dial("udp4", l.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = own.Close()

	seen := make(chan Connect, 16)
	go func() {
		for {
			one, err := connects.Next()
			if err != nil {
				t.Error(err)
				return
			}
			if !connects.Waits(one) {
				t.Error("the thread does not wait")
			}
			seen <- one
			if err := connects.Continue(one); err != nil {
				t.Error(err)
			}
		}
	}()
	n := null(t)
	p, err := Start(Spec{Path: "/proc/self/exe", Argv: []string{"sends"}, Env: []string{"SANDGATE_TEST_SEND_TO=" + l.LocalAddr().String()},
		Dir: "/", Files: [4]int{n, n, n, -1}, Cgroup: -1})
	if err != nil {
		t.Fatal(err)
	}
	if e := wait(t, p); e.Status.ExitStatus() != 0 {
		t.Fatalf("status %v", e.Status)
	}
	buffer := make([]byte, 16)
	for _, want := range []string{"sendto", "send"} {
		k, err := l.Read(buffer)
		if err != nil || string(buffer[:k]) != want {
			t.Errorf("got %q, %v", buffer[:k], err)
		}
	}
	if len(seen) != 2 {
		t.Fatalf("%d notifications, want one of sendto and one of connect", len(seen))
	}
	for range 2 {
		if one := <-seen; one.Thread == 0 || one.Address == 0 || one.Length < unix.SizeofSockaddrInet4 {
			t.Errorf("%+v", one)
		}
	}
}
