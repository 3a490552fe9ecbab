package docker

import (
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
)

// fakeDaemon answers the requests of a sandbox's life on an image that is there. Its
// containers run nothing; the agent of one that runs says one byte to each exec.
type fakeDaemon struct {
	podman bool // a name that is taken is an internal error, and a runtime or GPUs are ignored
	broken bool // no container can be made
	apart  bool // it has none of this machine's files

	mu         sync.Mutex
	made       int
	containers map[string]*fakeContainer // by name
}

type fakeContainer struct {
	id      string
	running bool
	created time.Time
	config  *container.Config
}

// serveFake returns the fake's address.
func serveFake(t *testing.T, d *fakeDaemon) string {
	t.Helper()
	d.containers = make(map[string]*fakeContainer)
	return serveDaemon(t, d)
}

func fakeConfig(t *testing.T, d *fakeDaemon) Config {
	t.Helper()
	return Config{
		Host: serveFake(t, d), StateDir: t.TempDir(), Image: "base",
		Agent:  func(string) ([]byte, error) { return []byte("agent"), nil },
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
}

func serveDaemon(t *testing.T, h http.Handler) string {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.Start()
	t.Cleanup(server.Close)
	return "tcp://" + server.Listener.Addr().String()
}

func (d *fakeDaemon) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w.Header().Set("Api-Version", "1.41")
	path := r.URL.Path
	if v, rest, ok := strings.Cut(strings.TrimPrefix(path, "/v"), "/"); ok && strings.HasPrefix(v, "1.") {
		path = "/" + rest
	}
	at := strings.Split(path[1:], "/")
	switch {
	case path == "/_ping":
	case path == "/info":
		reply(w, http.StatusOK, map[string]any{"NCPU": 1, "DefaultRuntime": "oci", "MemoryLimit": true, "SwapLimit": true, "CpuCfsQuota": true, "PidsLimit": true})
	case path == "/images/json":
		reply(w, http.StatusOK, []any{})
	case at[0] == "images": // any, with its content named by its name
		reply(w, http.StatusOK, map[string]any{"Id": path, "Os": "linux", "Architecture": "amd64"})
	case at[0] == "volumes":
		w.WriteHeader(http.StatusNoContent)
	case path == "/containers/json":
		d.list(w, r)
	case path == "/containers/create":
		d.create(w, r)
	case at[0] == "exec":
		exec(w)
	default:
		d.container(w, r, at[1], slices.Concat(at[2:], []string{""})[0])
	}
}

func reply(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

func refuse(w http.ResponseWriter, code int, text string) {
	reply(w, code, map[string]string{"message": text})
}

func (d *fakeDaemon) list(w http.ResponseWriter, r *http.Request) {
	var filters struct{ Name, Label, Status map[string]bool }
	if err := json.Unmarshal([]byte(r.URL.Query().Get("filters")), &filters); err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	out := []map[string]any{}
	for name, c := range d.containers {
		all := true
		for pattern := range filters.Name {
			all = all && regexp.MustCompile(pattern).MatchString(name)
		}
		for label := range filters.Label {
			key, value, _ := strings.Cut(label, "=")
			all = all && c.config.Labels[key] == value
		}
		for state := range filters.Status {
			all = all && state == string(c.state())
		}
		if !all {
			continue
		}
		out = append(out, map[string]any{"Id": c.id, "Names": []string{"/" + name}, "State": c.state(), "Labels": c.config.Labels, "Created": c.created.Unix()})
	}
	reply(w, http.StatusOK, out)
}

func (c *fakeContainer) state() container.ContainerState {
	if c.running {
		return container.StateRunning
	}
	return container.StateExited
}

func (d *fakeDaemon) create(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("name")
	var config container.CreateRequest
	conflict := http.StatusConflict
	if d.podman {
		conflict = http.StatusInternalServerError
	}
	switch {
	case json.NewDecoder(r.Body).Decode(&config) != nil, d.broken:
		refuse(w, http.StatusInternalServerError, "it cannot be made")
	case d.apart && slices.ContainsFunc(config.HostConfig.Mounts, func(m mount.Mount) bool { return m.Type == mount.TypeBind }):
		refuse(w, http.StatusBadRequest, "bind source path does not exist")
	case d.containers[name] != nil:
		refuse(w, conflict, "the name is taken")
	default:
		d.made++
		d.containers[name] = &fakeContainer{id: "id-" + strconv.Itoa(d.made), created: time.Now(), config: config.Config}
		reply(w, http.StatusCreated, container.CreateResponse{ID: d.containers[name].id})
	}
}

// exec is a stream of an agent that says one byte.
func exec(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	_, _ = conn.Write(append([]byte("HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"), 1, 0, 0, 0, 0, 0, 0, 1, '!'))
	_ = conn.Close()
}

func (d *fakeDaemon) container(w http.ResponseWriter, r *http.Request, key, action string) {
	name := key
	for n, c := range d.containers {
		if c.id == key {
			name = n
		}
	}
	c := d.containers[name]
	switch {
	case c == nil:
		refuse(w, http.StatusNotFound, "no such container")
	case r.Method == http.MethodDelete:
		delete(d.containers, name)
		w.WriteHeader(http.StatusNoContent)
	case action == "json":
		host := map[string]any{"Runtime": "oci"}
		reply(w, http.StatusOK, map[string]any{"Id": c.id, "Config": c.config, "HostConfig": host, "State": map[string]any{"Running": c.running}})
	case action == "rename":
		to := r.URL.Query().Get("name")
		if d.containers[to] != nil {
			refuse(w, http.StatusConflict, "the name is taken")
			return
		}
		d.containers[to] = c
		delete(d.containers, name)
		w.WriteHeader(http.StatusNoContent)
	case action == "start", action == "stop":
		c.running = action == "start"
		w.WriteHeader(http.StatusNoContent)
	case action == "exec" && c.running:
		reply(w, http.StatusCreated, container.ExecCreateResponse{ID: c.id})
	case action == "logs":
	default:
		refuse(w, http.StatusConflict, r.Method+" "+r.URL.Path)
	}
}

func (d *fakeDaemon) names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.containers))
}

func (d *fakeDaemon) get(name string) *fakeContainer {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.containers[name]
}

func open(t *testing.T, config Config) *Provider {
	t.Helper()
	p, err := New(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func closeLater(t *testing.T, p *Provider) {
	t.Helper()
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

// killer passes a server's requests on to a daemon, until it kills the server: from
// then on none arrives.
type killer struct {
	daemon http.Handler

	mu   sync.Mutex
	left int    // requests that change something and still arrive
	dead func() // ends the server's calls
}

func (k *killer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !k.admit(r.Method) {
		panic(http.ErrAbortHandler)
	}
	k.daemon.ServeHTTP(w, r)
}

func (k *killer) admit(method string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dead == nil {
		return true
	}
	if method != http.MethodGet && method != http.MethodHead {
		k.left--
	}
	if k.left < 0 {
		k.dead()
	}
	return k.left >= 0
}

// arm has the server killed in place of its request after the next n that change
// something.
func (k *killer) arm(n int, dead func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.left, k.dead = n, dead
}
