//go:build linux

package server_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/audit"
)

// A request without a valid token gets the same answer, whatever exists, and its body
// is not read.
func TestPreviewRefuses(t *testing.T) {
	h := newPreview(t, nil)
	var reached atomic.Int32
	port := h.serve(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	u, other := h.port(port), h.port(port+1)
	short := h.url(&sandboxv1.CreateSandboxUrlRequest{Target: &sandboxv1.CreateSandboxUrlRequest_Port{Port: port}, Ttl: durationpb.New(time.Second)})
	file := h.file("/etc/hostname", sandboxv1.FileUrlMethod_FILE_URL_METHOD_GET)
	for late := time.Now().Add(time.Minute); time.Now().Before(short.GetExpireTime().AsTime()); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("the URL does not expire")
		}
	}
	domain := h.addr[strings.LastIndex(h.addr, ":"):]
	want := text(t, h.do("GET", u.GetBaseUrl(), nil))
	if !strings.HasPrefix(want, "401 ") {
		t.Fatal(want)
	}
	for name, c := range map[string][]string{
		"another host":        {"http://nothing.localhost" + domain, ""},
		"the bare domain":     {"http://localhost" + domain, u.GetToken()},
		"the token of a port": {other.GetBaseUrl(), u.GetToken()},
		"that of a file":      {u.GetBaseUrl(), file.GetToken()},
		"a file's other name": {strings.Replace(file.GetBaseUrl(), "hostname", "passwd", 1), file.GetToken()},
		"expired":             {short.GetBaseUrl(), short.GetToken()},
		"cut short":           {u.GetBaseUrl(), u.GetToken()[:len(u.GetToken())-2]},
		"longer":              {u.GetBaseUrl(), u.GetToken() + "AA"},
		"empty":               {u.GetBaseUrl(), ""},
		"an address":          {"http://" + h.addr, u.GetToken()},
	} {
		t.Run(name, func(t *testing.T) {
			resp := h.do("POST", c[0], strings.NewReader("body"), "Authorization", "Bearer "+c[1], "Cookie", "__Host-sandgate="+c[1])
			if got := text(t, resp); got != want || resp.Header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s", got)
			}
			if got := text(t, h.do("GET", c[0]+"?sandgate_token="+c[1], nil)); got != want {
				t.Errorf("%s", got)
			}
		})
	}
	if reached.Load() != 0 {
		t.Error("the program was reached")
	}
	refused := h.audit.wait(t, func(r audit.Record) bool { return r.Phase == audit.Refused })
	if refused.Operation != "Preview" || refused.Code != "Unauthenticated" || refused.Peer == "" {
		t.Errorf("%+v", refused)
	}
	// The next request on the connection is not taken from a body that nobody read.
	raw := h.raw("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if n := strings.Count(raw, "HTTP/1.1 "); n != 1 || !strings.HasPrefix(raw, "HTTP/1.1 401") {
		t.Errorf("%d answers: %s", n, raw)
	}
}

// What servers and proxies could read in two ways reaches no program.
func TestPreviewSmuggling(t *testing.T) {
	h := newPreview(t, nil)
	var reached atomic.Int32
	port := h.serve(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	u := h.port(port)
	host := strings.TrimSuffix(strings.TrimPrefix(u.GetBaseUrl(), "http://"), "/")
	auth := "Authorization: Bearer " + u.GetToken() + "\r\nConnection: close\r\n"
	for name, request := range map[string]string{
		"CONNECT":              "CONNECT " + host + " HTTP/1.1\r\nHost: " + host + "\r\n" + auth + "\r\n",
		"an absolute target":   "GET http://" + host + "/ HTTP/1.1\r\nHost: " + host + "\r\n" + auth + "\r\n",
		"another host in it":   "GET http://169.254.169.254/ HTTP/1.1\r\nHost: " + host + "\r\n" + auth + "\r\n",
		"OPTIONS *":            "OPTIONS * HTTP/1.1\r\nHost: " + host + "\r\n" + auth + "\r\n",
		"two hosts":            "GET / HTTP/1.1\r\nHost: " + host + "\r\nHost: " + host + "\r\n" + auth + "\r\n",
		"no host":              "GET / HTTP/1.1\r\n" + auth + "\r\n",
		"a space before colon": "GET / HTTP/1.1\r\nHost : " + host + "\r\n" + auth + "\r\n",
		"two lengths":          "POST / HTTP/1.1\r\nHost: " + host + "\r\n" + auth + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
		"an unknown coding":    "POST / HTTP/1.1\r\nHost: " + host + "\r\n" + auth + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		"a coding twice":       "POST / HTTP/1.1\r\nHost: " + host + "\r\n" + auth + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"HTTP/0.9":             "GET /\r\n\r\n",
		"endless headers":      "GET / HTTP/1.1\r\nHost: " + host + "\r\n" + auth + strings.Repeat("A: "+strings.Repeat("x", 1000)+"\r\n", 60) + "\r\n",
	} {
		if got := h.raw(request); !strings.HasPrefix(got, "HTTP/1.1 4") && !strings.HasPrefix(got, "HTTP/1.1 5") {
			t.Errorf("%s: %s", name, got)
		}
	}
	if reached.Load() != 0 {
		t.Error("the program was reached")
	}
	// A length beside a coding is ignored and not passed on.
	got := h.raw("POST / HTTP/1.1\r\nHost: " + host + "\r\n" + auth + "Content-Length: 40\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
	if n := strings.Count(got, "HTTP/1.1 "); n != 1 || reached.Load() > 1 {
		t.Errorf("%d answers, %d requests: %s", n, reached.Load(), got)
	}
}
