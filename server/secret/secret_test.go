package secret

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sandgate/sandgate/server/egress"
)

const (
	hidden      = "hunter2-hunter2-hunter2"
	placeholder = "sandgate-secret-git-0001"
)

func store(t testing.TB) *Store {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{"token": hidden + "\n", "everyone": "everyone", "lines": "a\r\nEvil: b", "large": strings.Repeat("x", maxValue+1)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("SECRET_TEST_VALUE", hidden)
	all := []string{"*"}
	s, err := New([]Entry{
		{Name: "git", Tenants: all, Hosts: all, File: filepath.Join(dir, "everyone")},
		{Name: "git", Tenants: []string{"a"}, Hosts: []string{"*.example", "b.test"}, File: filepath.Join(dir, "token")},
		{Name: "env", Tenants: []string{"a", "b"}, Hosts: all, Env: "SECRET_TEST_VALUE"},
		{Name: "file", Tenants: []string{"b"}, Hosts: all, File: filepath.Join(dir, "token")},
		{Name: "gone", Tenants: []string{"b"}, Hosts: all, File: filepath.Join(dir, "gone")},
		{Name: "empty", Tenants: []string{"b"}, Hosts: all, Env: "SECRET_TEST_NOT_SET"},
		{Name: "lines", Tenants: []string{"b"}, Hosts: all, File: filepath.Join(dir, "lines")},
		{Name: "large", Tenants: []string{"b"}, Hosts: all, File: filepath.Join(dir, "large")},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStore(t *testing.T) {
	s := store(t)
	for _, c := range []struct{ tenant, name, want, err string }{
		{"a", "git", hidden, ""},
		{"b", "git", "everyone", ""},
		{"a", "env", hidden, ""},
		{"b", "file", hidden, ""},
		{"a", "file", "", "secret not found: file"},
		{"c", "env", "", "secret not found: env"},
		{"a", "other", "", "secret not found: other"},
		{"b", "gone", "", "no such file"},
		{"b", "empty", "", "less than 8"},
		{"b", "lines", "", "control characters"},
		{"b", "large", "", "more than 16384"},
	} {
		value, err := s.Get(c.tenant, c.name, "a.example")
		if value.Reveal() != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s of %s: got %d bytes, %v", c.name, c.tenant, len(value.Reveal()), err)
		}
		if strings.HasPrefix(c.err, "secret not found") && !errors.Is(err, ErrNotFound) {
			t.Errorf("%v is not ErrNotFound", err)
		}
	}
	if _, err := s.Get("a", "git", "a.test"); !errors.Is(err, ErrNotFound) {
		t.Errorf("for another host: %v", err)
	}
	names := func(tenant string) (names []string) {
		for _, e := range s.List(tenant) {
			names = append(names, e.Name+" "+e.Source()+" "+strings.Join(e.Hosts, ","))
		}
		return names
	}
	if got := names("a"); !slices.Equal(got, []string{"env env *", "git file *.example,b.test"}) {
		t.Errorf("names of a: %v", got)
	}
	if got := names("c"); !slices.Equal(got, []string{"git file *"}) {
		t.Errorf("names of c: %v", got)
	}
}

func TestCheck(t *testing.T) {
	s := store(t)
	for _, c := range []struct {
		tenant, name string
		hosts        []string
		want         string
	}{
		{"a", "git", []string{"x.example", "*.y.example", "b.test"}, ""},
		{"a", "git", []string{"x.example", "*"}, "may not be sent to *; its hosts are *.example, b.test"},
		{"a", "git", []string{"*.test"}, "may not be sent to *.test"},
		{"a", "git", []string{"example"}, "may not be sent to example"},
		{"b", "git", []string{"*"}, ""},
		{"a", "file", []string{"x.example"}, "no secret file"},
		{"", "file", []string{"x.example"}, ""},
		{"", "git", []string{"*"}, ""},
		{"", "other", []string{"x.example"}, "no secret other"},
	} {
		if got := s.Check(c.tenant, c.name, c.hosts); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%v: %q", c, got)
		}
	}
}

// A changed file counts at the next use, and one that is gone ends the use.
func TestChangedSecretFileCountsAtTheNextUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	s, err := New([]Entry{{Name: "git", Tenants: []string{"a"}, Hosts: []string{"*"}, File: path}})
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{"the first", "the second"} {
		if err := os.WriteFile(path, []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Get("a", "git", "a.example"); err != nil || got.Reveal() != value {
			t.Errorf("%s: %v", value, err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get("a", "git", "a.example"); err == nil {
		t.Error("a removed secret is used")
	}
}

func TestValueDoesNotPrint(t *testing.T) {
	value := Value{hidden}
	encoded, err := json.Marshal(map[string]any{"v": value, "p": &value})
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "v", value)
	for _, text := range []string{fmt.Sprint(value), fmt.Sprintf("%v %+v %#v %s %q", value, value, value, value, value), string(encoded), log.String(), fmt.Sprintf("%+v", []any{&value})} {
		if strings.Contains(text, "hunter2") {
			t.Errorf("%s", text)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	good := Entry{Name: "a", Tenants: []string{"x"}, Hosts: []string{"*"}, Env: "B"}
	for want, change := range map[string]func(*Entry){
		"one of env and file": func(e *Entry) { e.Env = "" }, "needs one of env": func(e *Entry) { e.File = "/x" },
		"it needs tenants": func(e *Entry) { e.Tenants = nil }, "it needs the hosts": func(e *Entry) { e.Hosts = nil },
		"secrets[1].name": func(e *Entry) { e.Name = "a b" }, "two of that name": func(e *Entry) { e.Tenants = []string{"y", "x"} },
		"host \"a:443\"": func(e *Entry) { e.Hosts = []string{"a:443"} },
	} {
		bad := good
		bad.Name = "b"
		if want == "two of that name" {
			bad.Name = "a"
		}
		change(&bad)
		if _, err := New([]Entry{good, bad}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func injector(t testing.TB) *Injector {
	t.Helper()
	return NewInjector(store(t), "a", slog.New(slog.DiscardHandler))
}

func encoded(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

func TestInject(t *testing.T) {
	byPlaceholder := egress.Secret{Name: "git", Placeholder: placeholder}
	for _, c := range []struct {
		name    string
		secret  egress.Secret
		url     string
		header  string // name: value
		plain   bool
		want    string // name: value
		refused string
	}{
		{"a token", egress.Secret{Name: "git", Header: "Authorization", Prefix: "Bearer "}, "/", "", false, "Authorization: Bearer " + hidden, ""},
		{"over the program's own", egress.Secret{Name: "git", Header: "Authorization", Prefix: "Bearer "}, "/", "Authorization: mine", false, "Authorization: Bearer " + hidden, ""},
		{"a header of its own", egress.Secret{Name: "git", Header: "X-Api-Key"}, "/", "", false, "X-Api-Key: " + hidden, ""},
		{"a password", egress.Secret{Name: "git", Header: "Authorization", User: "x"}, "/", "", false, "Authorization: Basic " + encoded("x:"+hidden), ""},
		{"without TLS", egress.Secret{Name: "git", Header: "Authorization"}, "/", "", true, "", "use https"},
		{"a secret of another tenant", egress.Secret{Name: "file", Header: "Authorization"}, "/", "", false, "", "cannot read secret file"},
		{"a placeholder", byPlaceholder, "/", "X-Key: a " + placeholder + " b", false, "X-Key: a " + hidden + " b", ""},
		{"a placeholder in Basic", byPlaceholder, "/", "Authorization: basic " + encoded("me:"+placeholder), false, "Authorization: Basic " + encoded("me:"+hidden), ""},
		{"a placeholder without TLS", byPlaceholder, "/", "X-Key: " + placeholder, true, "", "use https"},
		{"a placeholder in Basic without TLS", byPlaceholder, "/", "Authorization: Basic " + encoded("me:"+placeholder), true, "", "use https"},
		{"no placeholder", byPlaceholder, "/", "X-Key: other", true, "X-Key: other", ""},
		{"other credentials", byPlaceholder, "/", "Authorization: Basic " + encoded("me:mine"), false, "Authorization: Basic " + encoded("me:mine"), ""},
		{"a placeholder in the path", byPlaceholder, "/a/" + placeholder, "", false, "", "headers only"},
		{"a placeholder in the query", byPlaceholder, "/?k=" + placeholder, "", false, "", "headers only"},
		{"a placeholder as a name", byPlaceholder, "/", placeholder + ": x", false, "", "values of headers only"},
		{"two at once", egress.Secret{Name: "git", Placeholder: placeholder}, "/", "X-Key: " + placeholder + placeholder, false, "X-Key: " + hidden + hidden, ""},
		{"four at once", byPlaceholder, "/", "X-Key: " + strings.Repeat(placeholder, 4), false, "X-Key: " + strings.Repeat(hidden, 4), ""},
		{"five at once", byPlaceholder, "/", "X-Key: " + strings.Repeat(placeholder, 5), false, "", "more than 4 placeholders"},
		{"five at once in Basic", byPlaceholder, "/", "Authorization: Basic " + encoded("me:"+strings.Repeat(placeholder, 5)), false, "", "more than 4 placeholders"},
		{"a placeholder of a missing secret", egress.Secret{Name: "file", Placeholder: placeholder}, "/", "X-Key: " + placeholder, false, "", "cannot read secret file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			request, err := http.NewRequest("GET", "https://a.example"+c.url, nil)
			if err != nil {
				t.Fatal(err)
			}
			if name, value, ok := strings.Cut(c.header, ": "); ok {
				request.Header.Set(name, value)
			}
			_, err = injector(t).Put(request, "a.example", !c.plain, []egress.Secret{c.secret}, nil)
			if c.refused != "" {
				if err == nil || !strings.Contains(err.Error(), c.refused) || strings.Contains(err.Error(), "hunter2") {
					t.Fatalf("got %v", err)
				}
				if strings.Contains(fmt.Sprint(request.Header), "hunter2") {
					t.Error("the secret is in a refused request")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			name, value, _ := strings.Cut(c.want, ": ")
			if got := request.Header[name]; !slices.Equal(got, []string{value}) {
				t.Errorf("got %q", got)
			}
		})
	}
}

// A placeholder that is the start of another one does not break it.
func TestPlaceholderWithinAnother(t *testing.T) {
	request := &http.Request{URL: &url.URL{Path: "/"}, Header: http.Header{"X": {placeholder + "-more " + placeholder}}}
	_, err := injector(t).Put(request, "a.example", true, []egress.Secret{
		{Name: "env", Placeholder: placeholder}, {Name: "git", Placeholder: placeholder + "-more"},
	}, nil)
	if err != nil || request.Header.Get("X") != hidden+" "+hidden {
		t.Errorf("%v, %v", err, request.Header)
	}
}

// The bound is of all placeholders of a request together.
func TestPlaceholdersAreBounded(t *testing.T) {
	secrets := []egress.Secret{{Name: "git", Placeholder: placeholder}, {Name: "env", Placeholder: "another-" + placeholder}}
	for n, refused := range map[int]bool{2: false, 3: true} {
		request := &http.Request{URL: &url.URL{Path: "/"}, Header: http.Header{}}
		for range n {
			request.Header.Add("X", placeholder)
			request.Header.Add("Y", "another-"+placeholder)
		}
		if _, err := injector(t).Put(request, "a.example", true, secrets, nil); (err != nil) != refused {
			t.Errorf("%d of two: %v", n, err)
		}
	}
}

func TestResponseHasNoSecret(t *testing.T) {
	request := &http.Request{URL: &url.URL{Path: "/"}, Header: http.Header{}}
	redact, err := injector(t).Put(request, "a.example", true, []egress.Secret{{Name: "git", Header: "Authorization", User: "x"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		before, after := rapid.StringN(0, 8, -1).Draw(t, "before"), rapid.StringN(0, 8, -1).Draw(t, "after")
		header := http.Header{
			"Plain":    {"ok", before + hidden + after},
			"Standard": {"x " + encoded(before+hidden+after)},
			"Url":      {base64.RawURLEncoding.EncodeToString([]byte(before + hidden + after))},
			"Other":    {encoded("something else"), "hunter2"},
		}
		redact(header)
		for _, name := range []string{"Standard", "Url"} {
			if header[name][0] != redacted {
				t.Fatalf("%s is %q", name, header[name])
			}
		}
		if !slices.Equal(header["Plain"], []string{"ok", redacted}) || header["Other"][0] != encoded("something else") {
			t.Fatalf("got %v", header)
		}
	})
}

// A response may have a secret that its request did not get: the upstream kept it from
// an earlier one.
func TestResponseHasNoSecretOfAnotherRequest(t *testing.T) {
	all := []egress.Secret{
		{Name: "git", Placeholder: placeholder}, {Name: "env", Header: "X-Key"}, {Name: "file", Header: "X-Other"}, // not this tenant's
	}
	for name, given := range map[string][]egress.Secret{"an unused placeholder": all[:1], "none of the path": nil} {
		redact, err := injector(t).Put(&http.Request{URL: &url.URL{Path: "/"}, Header: http.Header{}}, "a.example", true, given, all)
		if err != nil || redact == nil {
			t.Fatalf("%s: %v, redacted: %t", name, err, redact != nil)
		}
		header := http.Header{"X-Stored": {"Bearer " + hidden}, "X-Other": {"other"}}
		redact(header)
		if header.Get("X-Stored") != redacted || header.Get("X-Other") != "other" {
			t.Errorf("%s: %v", name, header)
		}
	}
}
