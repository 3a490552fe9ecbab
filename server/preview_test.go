//go:build linux

package server_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/audit"
)

func TestCreateSandboxURL(t *testing.T) {
	h := newPreview(t, nil)
	port := func(n int32) *sandboxv1.CreateSandboxUrlRequest_Port {
		return &sandboxv1.CreateSandboxUrlRequest_Port{Port: n}
	}
	for name, c := range map[string]struct {
		req  *sandboxv1.CreateSandboxUrlRequest
		code codes.Code
	}{
		"no target":           {&sandboxv1.CreateSandboxUrlRequest{SandboxId: "a"}, codes.InvalidArgument},
		"port 0":              {&sandboxv1.CreateSandboxUrlRequest{SandboxId: "a", Target: port(0)}, codes.InvalidArgument},
		"a large port":        {&sandboxv1.CreateSandboxUrlRequest{SandboxId: "a", Target: port(1 << 16)}, codes.InvalidArgument},
		"a relative path":     {&sandboxv1.CreateSandboxUrlRequest{SandboxId: "a", Target: &sandboxv1.CreateSandboxUrlRequest_Path{Path: "x"}}, codes.InvalidArgument},
		"a method for a port": {&sandboxv1.CreateSandboxUrlRequest{SandboxId: "a", Target: port(1), Method: 2}, codes.InvalidArgument},
		"an unknown method":   {&sandboxv1.CreateSandboxUrlRequest{SandboxId: "a", Target: &sandboxv1.CreateSandboxUrlRequest_Path{Path: "/x"}, Method: 9}, codes.InvalidArgument},
		"too long":            {&sandboxv1.CreateSandboxUrlRequest{SandboxId: "a", Target: port(1), Ttl: durationpb.New(25 * time.Hour)}, codes.InvalidArgument},
		"too short":           {&sandboxv1.CreateSandboxUrlRequest{SandboxId: "a", Target: port(1), Ttl: durationpb.New(time.Millisecond)}, codes.InvalidArgument},
		"a long path":         {&sandboxv1.CreateSandboxUrlRequest{SandboxId: "a", Target: &sandboxv1.CreateSandboxUrlRequest_Path{Path: "/" + strings.Repeat("%", 4000)}}, codes.InvalidArgument},
		"a large policy": {&sandboxv1.CreateSandboxUrlRequest{SandboxId: "a", Target: &sandboxv1.CreateSandboxUrlRequest_Path{Path: "/x"},
			Access: &sandboxv1.AccessPolicy{DenyCommands: []string{strings.Repeat("x", 60_000)}}}, codes.InvalidArgument},
		"no sandbox":          {&sandboxv1.CreateSandboxUrlRequest{SandboxId: "b", Target: port(1)}, codes.NotFound},
		"another incarnation": {&sandboxv1.CreateSandboxUrlRequest{SandboxId: "a", Target: port(1), ExpectedIncarnation: "x"}, codes.FailedPrecondition},
	} {
		if _, err := h.client.CreateSandboxUrl(t.Context(), c.req); status.Code(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	u := h.port(3000)
	if left := time.Until(u.GetExpireTime().AsTime()); left < 50*time.Minute || left > time.Hour {
		t.Errorf("it expires in %s", left)
	}
	info, err := h.client.GetServerInfo(t.Context(), &sandboxv1.GetServerInfoRequest{})
	if err != nil || info.GetLimits().GetMaxUrlTtl().AsDuration() != 24*time.Hour || !strings.Contains(strings.Join(info.GetCapabilities(), " "), "url") {
		t.Errorf("%v, %v", info, err)
	}
}

// A browser's first request gets a cookie and the URL without the token. The program
// sees neither, and its own cookies and credentials pass.
func TestPreviewOfPort(t *testing.T) {
	h := newPreview(t, nil)
	var seen atomic.Pointer[http.Request]
	port := h.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen.Store(r)
		http.SetCookie(w, &http.Cookie{Name: "theirs", Value: "1"})
		w.Header().Add("Set-Cookie", "__Host-sandgate=stolen; Path=/; Secure")
		w.Header().Add("Set-Cookie", "wide=1; Path=/; Domain=localhost; Secure")
		w.Header().Set("Sandgate-Error", "INTERNAL")
		if r.URL.Path == "/away" {
			http.Redirect(w, r, "http://"+r.Host+"/there?a=b", http.StatusFound)
			return
		}
		fmt.Fprint(w, "hello")
	}))
	u := h.port(port)
	first := h.do("GET", strings.Replace(u.GetUrl(), "/?", "/x%2Fy?q=1&", 1)+"&r=%zz;2", nil, "Accept", browser)
	if first.StatusCode != http.StatusFound || first.Header.Get("Location") != u.GetBaseUrl()+"x%2Fy?q=1&r=%zz;2" || first.Header.Get("Cache-Control") != "no-store" {
		t.Fatalf("%d %v", first.StatusCode, first.Header)
	}
	cookies := first.Cookies()
	if len(cookies) != 1 || !cookies[0].HttpOnly || !cookies[0].Secure || !cookies[0].Partitioned || cookies[0].Domain != "" || cookies[0].MaxAge < 3000 {
		t.Fatalf("%v", first.Header)
	}
	if seen.Load() != nil {
		t.Fatal("the program got the request with the token")
	}
	session := "theirs=2; " + cookies[0].Name + "=" + cookies[0].Value + "; more=3"
	host := strings.TrimSuffix(strings.TrimPrefix(u.GetBaseUrl(), "http://"), "/")
	got := h.do("GET", u.GetBaseUrl()+"x%2Fy?q=1&r=%zz;2", nil, "Cookie", session, "Authorization", "Basic dTpw",
		"Origin", "http://"+host, "X-Forwarded-For", "6.6.6.6", "X-Forwarded-Host", "lie")
	if s := text(t, got); s != "200 hello" {
		t.Fatal(s)
	}
	if c := got.Header["Set-Cookie"]; len(c) != 2 || c[0] != "theirs=1" || c[1] != "wide=1; Path=/; Secure" {
		t.Errorf("cookies of the program: %q", c)
	}
	if e := got.Header.Get("Sandgate-Error"); e != "" {
		t.Errorf("the program's answer passes for an error of the server: %q", e)
	}
	r := seen.Load()
	local := fmt.Sprintf("localhost:%d", port)
	for name, pair := range map[string][2]string{
		"host": {r.Host, local}, "target": {r.RequestURI, "/x%2Fy?q=1&r=%zz;2"},
		"cookie": {r.Header.Get("Cookie"), "theirs=2; more=3"}, "authorization": {r.Header.Get("Authorization"), "Basic dTpw"},
		"origin": {r.Header.Get("Origin"), "http://" + local}, "forwarded host": {r.Header.Get("X-Forwarded-Host"), host},
		"forwarded for": {r.Header.Get("X-Forwarded-For"), "127.0.0.1"}, "forwarded proto": {r.Header.Get("X-Forwarded-Proto"), "http"},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: %q, want %q", name, pair[0], pair[1])
		}
	}
	away := h.do("GET", u.GetBaseUrl()+"away", nil, "Authorization", "Bearer "+u.GetToken())
	if l := away.Header.Get("Location"); away.StatusCode != http.StatusFound || l != u.GetBaseUrl()+"there?a=b" {
		t.Errorf("%d %q", away.StatusCode, l)
	}
	if a := seen.Load().Header.Get("Authorization"); a != "" {
		t.Errorf("the program got %q", a)
	}
	// A program needs no redirect.
	if s := text(t, h.do("GET", u.GetUrl(), nil)); s != "200 hello" || seen.Load().RequestURI != "/" {
		t.Errorf("%s, %s", s, seen.Load().RequestURI)
	}
	ended := h.audit.wait(t, func(r audit.Record) bool {
		return r.Operation == "Forward" && r.Phase == audit.Ended
	})
	if ended.Code != "OK" || ended.SandboxID != "a" || ended.Address != local || !strings.HasPrefix(ended.Peer, "127.0.0.1:") || ended.Bytes == 0 {
		t.Errorf("%+v", ended)
	}
}

// closedPort returns a port that nothing listens on, and nothing can until the test ends.
func closedPort(t *testing.T) int32 {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return int32(at.(*syscall.SockaddrInet4).Port)
}

// A browser gets a page that tries again, a program an error in JSON.
func TestPreviewOfClosedPort(t *testing.T) {
	h := newPreview(t, nil)
	u := h.port(closedPort(t))
	resp := h.do("GET", u.GetUrl(), nil)
	if s := text(t, resp); resp.StatusCode != 502 || !strings.Contains(s, `"reason":"PORT_CLOSED"`) || resp.Header.Get("Retry-After") != "2" {
		t.Errorf("%s %v", s, resp.Header)
	}
	resp = h.do("GET", u.GetBaseUrl(), nil, "Accept", browser, "Cookie", "__Host-sandgate="+u.GetToken())
	if s := text(t, resp); resp.StatusCode != 502 || !strings.Contains(s, "location.reload()") || strings.Contains(s, "ZgotmplZ") ||
		resp.Header.Get("Sandgate-Error") != "PORT_CLOSED" {
		t.Errorf("%s %v", s, resp.Header)
	}
	// A program that closes the connection, or does not speak HTTP.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for i := 0; ; i++ {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, []string{"", "SSH-2.0-x\r\n"}[i%2])
			conn.Close()
		}
	}()
	u = h.port(int32(l.Addr().(*net.TCPAddr).Port))
	for range 2 {
		if s := text(t, h.do("GET", u.GetUrl(), nil)); !strings.HasPrefix(s, "502 ") || !strings.Contains(s, "CONNECTION_RESET") {
			t.Error(s)
		}
	}
}

// A URL of a sandbox that is gone, or that has another incarnation, is gone for ever.
func TestPreviewOfFormerIncarnation(t *testing.T) {
	h := newPreview(t, nil)
	u := h.port(h.serve(http.NotFoundHandler()))
	file := h.file("/etc/hostname", 0)
	if s := text(t, h.do("GET", u.GetUrl(), nil)); !strings.HasPrefix(s, "404 ") {
		t.Fatal(s)
	}
	for _, again := range []bool{false, true} {
		if _, err := h.client.DeleteSandbox(t.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: "a", AllowMissing: true}); err != nil {
			t.Fatal(err)
		}
		if again {
			if _, err := h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "a"}); err != nil {
				t.Fatal(err)
			}
		}
		for _, one := range []string{u.GetUrl(), file.GetUrl()} {
			if s := text(t, h.do("GET", one, nil)); !strings.HasPrefix(s, "410 ") {
				t.Errorf("created again: %t: %s", again, s)
			}
		}
	}
	if again := h.port(80); again.GetBaseUrl() == u.GetBaseUrl() {
		t.Error("two incarnations have the same host")
	}
}
