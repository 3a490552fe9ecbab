package secret

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const (
	hidden      = "hunter2-hunter2-hunter2"
	placeholder = "sandgate-secret-git-0001"
)

func open(t testing.TB, content string) (*Store, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secrets.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return Open(slog.New(slog.DiscardHandler), path)
}

func store(t testing.TB) *Store {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(hidden+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SECRET_TEST_VALUE", hidden)
	s, err := open(t, fmt.Sprintf(`
secrets:
- {name: git, tenants: [a], value: %[1]s}
- {name: git, tenants: ["*"], value: everyone}
- {name: env, tenants: [a, b], env: SECRET_TEST_VALUE}
- {name: file, tenants: [b], file: %[2]s}
- {name: gone, tenants: [b], file: %[2]s-not-there}
- {name: empty, tenants: [b], env: SECRET_TEST_NOT_SET}
- {name: lines, tenants: [b], value: "a\r\nEvil: b"}
`, hidden, file))
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
		{"b", "empty", "", "its value is empty"},
		{"b", "lines", "", "control characters"},
	} {
		value, err := s.Get(c.tenant, c.name)
		if value.Reveal() != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s of %s: got %d bytes, %v", c.name, c.tenant, len(value.Reveal()), err)
		}
		if strings.HasPrefix(c.err, "secret not found") && !errors.Is(err, ErrNotFound) {
			t.Errorf("%v is not ErrNotFound", err)
		}
	}
	if got := s.Names("a"); !slices.Equal(got, []string{"env", "git"}) {
		t.Errorf("names of a: %v", got)
	}
	if got := s.Names("c"); !slices.Equal(got, []string{"git"}) {
		t.Errorf("names of c: %v", got)
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

func TestOpenRefuses(t *testing.T) {
	for content, want := range map[string]string{
		"secrets: [{name: a, tenants: [x]}]":                                                             "one of value, env and file",
		"secrets: [{name: a, tenants: [x], value: hunter2, env: B}]":                                     "one of value, env and file",
		"secrets: [{name: a, value: hunter2}]":                                                           "it needs tenants",
		"secrets: [{name: 'a b', tenants: [x], value: hunter2}]":                                         "secrets[0].name",
		"secrets: [{name: a, tenants: [x], value: hunter2}, {name: a, tenants: [y, x], value: hunter2}]": "two of that name",
		"secrets: [{name: a, tenants: [x], hunter2: b}]":                                                 "not YAML with",
		"hunter2": "not YAML with",
		"secrets: [{name: a, tenants: hunter2, value: b}]": "not YAML with",
	} {
		_, err := open(t, content)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v, want %s", content, err, want)
		}
	}
}

func injector(t testing.TB, injections ...Injection) *Injector {
	t.Helper()
	j, err := NewInjector(store(t), "a", injections)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func encoded(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

func TestInject(t *testing.T) {
	byPlaceholder := Injection{Secret: "git", Placeholder: placeholder}
	for _, c := range []struct {
		name      string
		injection Injection
		url       string
		header    string // name: value
		plain     bool
		want      string // name: value
		refused   string
	}{
		{"a token", Injection{Secret: "git", Prefix: "Bearer "}, "/", "", false, "Authorization: Bearer " + hidden, ""},
		{"over the program's own", Injection{Secret: "git", Prefix: "Bearer "}, "/", "Authorization: mine", false, "Authorization: Bearer " + hidden, ""},
		{"a header of its own", Injection{Secret: "git", Header: "x-api-key"}, "/", "", false, "X-Api-Key: " + hidden, ""},
		{"a password", Injection{Secret: "git", User: "x"}, "/", "", false, "Authorization: Basic " + encoded("x:"+hidden), ""},
		{"without TLS", Injection{Secret: "git"}, "/", "", true, "", "use https"},
		{"a secret of another tenant", Injection{Secret: "file"}, "/", "", false, "", "cannot read secret file"},
		{"a placeholder", byPlaceholder, "/", "X-Key: a " + placeholder + " b", false, "X-Key: a " + hidden + " b", ""},
		{"a placeholder in Basic", byPlaceholder, "/", "Authorization: basic " + encoded("me:"+placeholder), false, "Authorization: Basic " + encoded("me:"+hidden), ""},
		{"a placeholder without TLS", byPlaceholder, "/", "X-Key: " + placeholder, true, "", "use https"},
		{"a placeholder in Basic without TLS", byPlaceholder, "/", "Authorization: Basic " + encoded("me:"+placeholder), true, "", "use https"},
		{"no placeholder", byPlaceholder, "/", "X-Key: other", true, "X-Key: other", ""},
		{"other credentials", byPlaceholder, "/", "Authorization: Basic " + encoded("me:mine"), false, "Authorization: Basic " + encoded("me:mine"), ""},
		{"a placeholder in the path", byPlaceholder, "/a/" + placeholder, "", false, "", "headers only"},
		{"a placeholder in the query", byPlaceholder, "/?k=" + placeholder, "", false, "", "headers only"},
		{"a placeholder as a name", byPlaceholder, "/", placeholder + ": x", false, "", "values of headers only"},
		{"a placeholder of a missing secret", Injection{Secret: "file", Placeholder: placeholder}, "/", "X-Key: " + placeholder, false, "", "cannot read secret file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			request, err := http.NewRequest("GET", "https://a.example"+c.url, nil)
			if err != nil {
				t.Fatal(err)
			}
			if name, value, ok := strings.Cut(c.header, ": "); ok {
				request.Header.Set(name, value)
			}
			err = injector(t, c.injection).Request(request, !c.plain)
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

func TestNewInjectorRefuses(t *testing.T) {
	for _, c := range []struct {
		name       string
		injections []Injection
	}{
		{"two for a header", []Injection{{Secret: "git"}, {Secret: "env", Header: "authorization"}}},
		{"a short placeholder", []Injection{{Secret: "git", Placeholder: "TOKEN"}}},
		{"a placeholder within another", []Injection{{Secret: "git", Placeholder: placeholder}, {Secret: "env", Placeholder: placeholder + "0"}}},
		{"both kinds", []Injection{{Secret: "git", Placeholder: placeholder, Header: "X"}}},
		{"Host", []Injection{{Secret: "git", Header: "host"}}},
		{"a malformed header", []Injection{{Secret: "git", Header: "a b"}}},
		{"a malformed prefix", []Injection{{Secret: "git", Prefix: "a\r\nb: "}}},
		{"a user with a colon", []Injection{{Secret: "git", User: "a:b"}}},
		{"a user with a prefix", []Injection{{Secret: "git", User: "a", Prefix: "b"}}},
	} {
		if _, err := NewInjector(store(t), "a", c.injections); err == nil {
			t.Errorf("%s is accepted", c.name)
		}
	}
}

func TestResponseHasNoSecret(t *testing.T) {
	j := injector(t, Injection{Secret: "git", User: "x"})
	rapid.Check(t, func(t *rapid.T) {
		before, after := rapid.StringN(0, 8, -1).Draw(t, "before"), rapid.StringN(0, 8, -1).Draw(t, "after")
		header := http.Header{
			"Plain":    {"ok", before + hidden + after},
			"Standard": {"x " + encoded(before+hidden+after)},
			"Url":      {base64.RawURLEncoding.EncodeToString([]byte(before + hidden + after))},
			"Other":    {encoded("something else"), "hunter2"},
		}
		j.Response(header)
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
