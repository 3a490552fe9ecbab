//go:build linux

package server_test

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/audit"
)

func TestPreviewOfFile(t *testing.T) {
	h := newPreview(t, nil)
	path := filepath.Join(t.TempDir(), "dir", "däta 1.html")
	content := bytes.Repeat([]byte("0123456789"), 300_000)
	put := h.file(path, sandboxv1.FileUrlMethod_FILE_URL_METHOD_PUT)
	if resp := h.do("PUT", put.GetUrl(), bytes.NewReader(content)); resp.StatusCode != http.StatusNoContent {
		t.Fatal(text(t, resp))
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, content) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	get := h.file(path, 0)
	resp := h.do("GET", get.GetUrl(), nil)
	etag := resp.Header.Get("ETag")
	if s := text(t, resp); s != "200 "+string(content) || resp.ContentLength != int64(len(content)) || etag == "" ||
		!strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") || !strings.HasPrefix(resp.Header.Get("Content-Security-Policy"), "sandbox") {
		t.Errorf("%d bytes, %v", len(s), resp.Header)
	}
	whole := h.audit.wait(t, func(r audit.Record) bool { return r.Operation == "Download" && r.Phase == audit.Ended })
	if whole.Code != "OK" || whole.Path != path || whole.Bytes != int64(len(content)) {
		t.Errorf("%+v", whole)
	}
	for ranges, want := range map[string]string{
		"bytes=0-3":       "206 0123",
		"bytes=2999998-":  "206 89",
		"bytes=-3":        "206 789",
		"bytes=1500-1504": "206 01234",
		"bytes=3000000-":  "416 ",
		"bytes=9999999-":  "416 ",
	} {
		resp := h.do("GET", get.GetBaseUrl(), nil, "Authorization", "Bearer "+get.GetToken(), "Range", ranges)
		if got := text(t, resp); !strings.HasPrefix(got, want) || (resp.StatusCode == 206 && got != want) {
			t.Errorf("%s: %.40s", ranges, got)
		}
	}
	if resp := h.do("GET", get.GetUrl(), nil, "Range", "bytes=0-1,1000000-1000003"); resp.StatusCode != 206 || !strings.Contains(text(t, resp), "\r\n0123\r\n") {
		t.Errorf("two ranges: %d", resp.StatusCode)
	}
	// So many would be so many calls.
	if resp := h.do("GET", get.GetUrl(), nil, "Range", "bytes=0-0"+strings.Repeat(",5-5", 100)); resp.StatusCode != 200 || resp.ContentLength != int64(len(content)) {
		t.Errorf("many ranges: %d, %d bytes", resp.StatusCode, resp.ContentLength)
	}
	if resp := h.do("GET", get.GetUrl(), nil, "If-None-Match", etag); resp.StatusCode != http.StatusNotModified {
		t.Errorf("%d", resp.StatusCode)
	}
	if resp := h.do("HEAD", get.GetUrl(), nil); resp.StatusCode != 200 || resp.ContentLength != int64(len(content)) {
		t.Errorf("%d, %d bytes", resp.StatusCode, resp.ContentLength)
	}
	for name, c := range map[string]struct {
		method, url, want string
	}{
		"PUT to a URL for GET":   {"PUT", get.GetUrl(), "405 "},
		"DELETE":                 {"DELETE", get.GetUrl(), "405 "},
		"GET from a URL for PUT": {"GET", put.GetUrl(), "405 "},
		"no such file":           {"GET", h.file(path+"x", 0).GetUrl(), "404 "},
		"a directory":            {"GET", h.file(filepath.Dir(path), 0).GetUrl(), "409 "},
		"the root":               {"GET", h.file("/", 0).GetUrl(), "409 "},
		"PUT to a directory":     {"PUT", h.file(filepath.Dir(path), sandboxv1.FileUrlMethod_FILE_URL_METHOD_PUT).GetUrl(), "409 "},
		"PUT below a file":       {"PUT", h.file(path+"/x", sandboxv1.FileUrlMethod_FILE_URL_METHOD_PUT).GetUrl(), "400 "},
		"a device":               {"GET", h.file("/dev/null", 0).GetUrl(), "409 "},
	} {
		if got := text(t, h.do(c.method, c.url, strings.NewReader("x"))); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %s", name, got)
		}
	}
	if resp := h.do("PUT", put.GetUrl(), strings.NewReader("x"), "Content-Range", "bytes 0-0/9"); resp.StatusCode != 400 {
		t.Errorf("part of a file: %d", resp.StatusCode)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, content) {
		t.Errorf("the file changed: %d bytes, %v", len(got), err)
	}
}

// A body without its end leaves the file as it was, however it ends.
func TestPreviewPutIsNeverPartial(t *testing.T) {
	h := newPreview(t, nil)
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	u := h.file(path, sandboxv1.FileUrlMethod_FILE_URL_METHOD_PUT)
	target, err := url.Parse(u.GetUrl())
	if err != nil {
		t.Fatal(err)
	}
	head := "PUT " + target.RequestURI() + " HTTP/1.1\r\nHost: " + target.Host + "\r\nConnection: close\r\n"
	for name, request := range map[string]string{
		"a length":              head + "Content-Length: 1000\r\n\r\nnew",
		"a chunk":               head + "Transfer-Encoding: chunked\r\n\r\n3\r\nnew\r\n",
		"a chunk cut short":     head + "Transfer-Encoding: chunked\r\n\r\n30\r\nnew",
		"a malformed chunk":     head + "Transfer-Encoding: chunked\r\n\r\n3\r\nnew\r\nzz\r\n",
		"a large chunk and cut": head + "Transfer-Encoding: chunked\r\n\r\n100000\r\n" + strings.Repeat("n", 700_000),
	} {
		conn, err := h.dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, request); err != nil {
			t.Fatal(err)
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(conn)
		conn.Close()
		if err == nil && len(got) > 0 && !strings.HasPrefix(string(got), "HTTP/1.1 4") {
			t.Errorf("%s: %s", name, got)
		}
	}
	h.audit.waitFor(t, 5, func(r audit.Record) bool { return r.Operation == "Upload" && r.Phase == audit.Ended && r.Object == 0 })
	if got, err := os.ReadFile(path); err != nil || string(got) != "old" {
		t.Errorf("%q, %v", got, err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
	if resp := h.do("PUT", u.GetUrl(), io.MultiReader(strings.NewReader("n"), strings.NewReader("ew"))); resp.StatusCode != 204 {
		t.Error(text(t, resp))
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "new" {
		t.Errorf("%q, %v", got, err)
	}
}
