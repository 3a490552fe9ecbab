package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// modules has Vite, which the setup installs for the TypeScript client's tests.
const modules = "../../clients/ts/node_modules"

// app is a page whose module reports what it shows, and accepts its own replacement
// without a reload. Its server, Vite, refuses hosts that it does not know.
var app = map[string]string{
	"index.html": `<!doctype html><h1></h1><script type="module" src="/main.js"></script>`,
	"text.js":    `export const text = "first";`,
	"main.js": `import { text } from "./text.js";
const loaded = performance.timeOrigin;
const show = (text) => {
  document.querySelector("h1").textContent = text;
  fetch("/report", { method: "POST", body: JSON.stringify({ text, loaded, cookie: document.cookie, address: location.href }) });
};
show(text);
import.meta.hot.accept("./text.js", (m) => show(m.text));`,
	"vite.config.js": `import { appendFileSync } from "node:fs";
const report = (request, response, next) => {
  if (request.url !== "/report") return next();
  let body = "";
  request.on("data", (chunk) => (body += chunk));
  request.on("end", () => {
    const { host, origin, authorization, cookie } = request.headers;
    appendFileSync("reports", JSON.stringify({ ...JSON.parse(body), host, origin, authorization, sent: cookie }) + "\n");
    response.end();
  });
};
export default {
  server: { port: 5173, strictPort: true },
  plugins: [{ name: "report", configureServer: (server) => { server.middlewares.use(report); } }],
};`,
}

// report is what the page and its server saw.
type report struct {
	Text, Cookie, Address             string
	Loaded                            float64
	Host, Origin, Authorization, Sent string
}

// servePreviews serves with URLs of ports and files until the test ends.
func servePreviews(t *testing.T) *server {
	t.Helper()
	dir, err := os.MkdirTemp("", "sandgate-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	s, err := serve(dir, "--preview-listen", ":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// A browser opens the URL of a Vite server in a sandbox before the server runs, and
// follows edits over its WebSocket.
func TestPreviewInChromium(t *testing.T) {
	need(t)
	chromium, err := exec.LookPath("chromium-headless-shell")
	if err != nil {
		t.Skip("needs chromium-headless-shell")
	}
	s := servePreviews(t)
	id := s.create(t)
	target := s.must(t, "url", id, "5173")
	browse(t, chromium, target)

	archive := filepath.Join(t.TempDir(), "app.tar")
	pack(t, archive)
	s.must(t, "cp", archive, id+":/workspace/app.tar")
	s.must(t, "exec", id, "--", "tar", "xf", "app.tar")
	s.must(t, "exec", "--detach", id, "--", "node", "node_modules/vite/bin/vite.js", "--host", "127.0.0.1")
	first := s.report(t, id, "first")
	host := strings.TrimSuffix(strings.TrimPrefix(target, "http://"), target[strings.Index(target, "/?"):])
	if first.Host != "localhost:5173" || first.Origin != "http://localhost:5173" || first.Address != "http://"+host+"/" {
		t.Errorf("%+v of %s", first, target)
	}
	if first.Cookie != "" || first.Sent != "" || first.Authorization != "" {
		t.Errorf("the page or its server has the token: %+v", first)
	}
	for _, text := range []string{"second", "third"} {
		s.must(t, "exec", id, "-c", fmt.Sprintf(`echo 'export const text = "%s";' > text.js`, text))
		if got := s.report(t, id, text); got.Loaded != first.Loaded {
			t.Errorf("%s: the page was loaded again", text)
		}
	}
}

// report waits for the report of a text.
func (s *server) report(t *testing.T, id, text string) report {
	t.Helper()
	for late := time.Now().Add(3 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		reports := s.run("", "exec", id, "--", "cat", "reports").stdout
		for line := range strings.Lines(reports) {
			var r report
			if err := json.Unmarshal([]byte(line), &r); err == nil && r.Text == text {
				return r
			}
		}
		if time.Now().After(late) {
			t.Fatalf("no report of %q: %s\n%s", text, reports, s.run("", "ps", "--all", id).stdout)
		}
	}
}

// browse opens a page in a headless browser until the test ends.
func browse(t *testing.T, chromium, target string) {
	t.Helper()
	profile, err := os.MkdirTemp("", "sandgate-chromium-")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var log bytes.Buffer
	browser := exec.CommandContext(ctx, chromium, "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server",
		"--remote-debugging-port=0", "--user-data-dir="+profile, "--enable-logging=stderr", target)
	browser.Stderr = &log
	// The program is a script that starts the browser, which starts more.
	browser.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	browser.Cancel = func() error { return syscall.Kill(-browser.Process.Pid, syscall.SIGKILL) }
	browser.WaitDelay = 10 * time.Second
	if err := browser.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = browser.Wait()
		if t.Failed() {
			t.Logf("the browser: %s", log.String())
		}
		if err := os.RemoveAll(profile); err != nil {
			t.Error(err)
		}
	})
}

// pack writes the app and Vite, with everything that it needs, into a tar archive.
func pack(t *testing.T, archive string) {
	t.Helper()
	file, err := os.Create(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w := tar.NewWriter(file)
	for name, content := range app {
		if err := errors.Join(w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}), second(io.WriteString(w, content))); err != nil {
			t.Fatal(err)
		}
	}
	packed := map[string]bool{}
	for wanted := []string{"vite"}; len(wanted) > 0; {
		name := wanted[0]
		if wanted = wanted[1:]; packed[name] {
			continue
		}
		packed[name] = true
		var manifest struct {
			Dependencies, OptionalDependencies map[string]string
		}
		raw, err := os.ReadFile(filepath.Join(modules, name, "package.json"))
		if errors.Is(err, fs.ErrNotExist) && name != "vite" {
			continue // it is optional, or for another platform
		}
		if err := errors.Join(err, json.Unmarshal(raw, &manifest)); err != nil {
			t.Fatal(err)
		}
		for _, more := range []map[string]string{manifest.Dependencies, manifest.OptionalDependencies} {
			for name := range more {
				wanted = append(wanted, name)
			}
		}
		if err := addTree(w, name); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func second(_ int, err error) error { return err }

// addTree adds a package of modules.
func addTree(w *tar.Writer, name string) error {
	root := filepath.Join(modules, name)
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(modules, path)
		if err != nil {
			return err
		}
		header := &tar.Header{Name: filepath.Join("node_modules", inside), Mode: int64(info.Mode().Perm()), Size: int64(len(content))}
		return errors.Join(w.WriteHeader(header), second(w.Write(content)))
	})
}

// Files move by URL with curl alone.
func TestFileURLs(t *testing.T) {
	need(t)
	s := servePreviews(t)
	if !regexp.MustCompile(`URLs at http://\*\.localhost:\d+`).MatchString(s.log.String()) {
		t.Fatal(s.log.String())
	}
	id := s.create(t)
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	source := filepath.Join(t.TempDir(), "source")
	if err := os.WriteFile(source, content, 0o600); err != nil {
		t.Fatal(err)
	}
	curl := func(args ...string) []byte {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "curl", append([]string{"-sS", "--fail-with-body", "--noproxy", "*"}, args...)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %s%s", err, out, stderr.String())
		}
		return out
	}
	curl("-T", source, s.must(t, "url", "--put", id, "/workspace/data"))
	get := s.must(t, "url", id, "/workspace/data")
	if got := curl(get); !bytes.Equal(got, content) {
		t.Errorf("%d bytes", len(got))
	}
	if got := curl("-r", "16-20", get); string(got) != "01234" {
		t.Errorf("%q", got)
	}
	var u sandgate.URL
	if err := json.Unmarshal([]byte(s.must(t, "url", id, "/etc/shadow", "--output", "json")), &u); err != nil {
		t.Fatal(err)
	}
	out, _ := exec.CommandContext(t.Context(), "curl", "-sS", "--noproxy", "*", "-o", "/dev/null", "-w", "%{http_code}", u.GetUrl()).Output()
	if code := string(out); code != fmt.Sprint(http.StatusForbidden) && code != fmt.Sprint(http.StatusNotFound) {
		t.Errorf("a file that the sandbox's user cannot read: %s", code)
	}
}
