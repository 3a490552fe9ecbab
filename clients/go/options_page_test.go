package sandgate

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// optionRow is a row of docs/clients/options.md.
type optionRow struct{ names, defaults string }

// optionsPage returns the tables of docs/clients/options.md, with the column of Go.
func optionsPage(t *testing.T) map[string][]optionRow {
	t.Helper()
	raw, err := os.ReadFile("../../docs/clients/options.md")
	if err != nil {
		t.Fatal(err)
	}
	page, section := map[string][]optionRow{}, ""
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSpace(line)
		if title, ok := strings.CutPrefix(line, "## "); ok {
			section = title
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), " | ")
		if section != "" && strings.HasPrefix(line, "|") && len(cells) >= 5 {
			page[section] = append(page[section], optionRow{names: cells[0], defaults: cells[4]})
		}
	}
	return page
}

var codeSpan = regexp.MustCompile("`([^`]+)`")

// The page has every option of this client, in the table of its request.
func TestOptionsPage(t *testing.T) {
	page := optionsPage(t)
	functions, requests := declaredOptions(t)
	want := map[string][]string{
		"Client":           functions["Option"],
		"Create":           slices.Concat(without(fieldNames[CreateRequest](), "Spec"), prefixed("Spec.", fieldNames[sandboxv1.SandboxSpec]())),
		"Resources":        fieldNames[sandboxv1.Resources](),
		"Access policy":    fieldNames[sandboxv1.AccessPolicy](),
		"Egress rules":     fieldNames[sandboxv1.EgressRule](),
		"Execute":          fieldNames[ExecuteRequest](),
		"List sandboxes":   fieldNames[ListRequest](),
		"Update":           fieldNames[UpdateRequest](),
		"Clean up":         fieldNames[CleanupRequest](),
		"Read":             fieldNames[ReadRequest](),
		"Write":            fieldNames[WriteRequest](),
		"Edit":             functions["EditOption"],
		"Glob":             fieldNames[GlobRequest](),
		"Search":           fieldNames[SearchRequest](),
		"Make a directory": functions["DirectoryOption"],
		"Remove":           functions["RemoveOption"],
		"Upload":           fieldNames[File](),
		"Connect":          functions["ConnectOption"],
		"Download":         functions["DownloadOption"],
		"Get a URL":        fieldNames[URLRequest](),
		"Watch":            fieldNames[WatchRequest](),
		"Build an image":   fieldNames[BuildRequest](),
	}
	for section, rows := range page {
		names := map[string]bool{}
		for _, row := range rows {
			for _, match := range codeSpan.FindAllStringSubmatch(row.names, -1) {
				names[match[1]] = true
			}
		}
		slices.Sort(want[section])
		if diff := cmp.Diff(want[section], slices.Sorted(maps.Keys(names))); diff != "" {
			t.Errorf("%s (-Go client +docs/clients/options.md):\n%s", section, diff)
		}
	}
	for section := range want {
		if len(page[section]) == 0 {
			t.Errorf("the page has no table %q", section)
		}
	}
	// What has options is in the map above.
	if diff := cmp.Diff([]string{"ConnectOption", "DirectoryOption", "DownloadOption", "EditOption", "Option", "RemoveOption"}, slices.Sorted(maps.Keys(functions))); diff != "" {
		t.Errorf("types of options (-known +declared):\n%s", diff)
	}
	known := []string{
		"BuildRequest", "CleanupRequest", "CreateRequest", "ExecuteRequest", "GlobRequest", "ListRequest",
		"ReadRequest", "SearchRequest", "URLRequest", "UpdateRequest", "WatchRequest", "WriteRequest",
	}
	slices.Sort(requests)
	if diff := cmp.Diff(known, requests); diff != "" {
		t.Errorf("requests (-known +declared):\n%s", diff)
	}
}

func TestDefaultsOfTheOptionsPage(t *testing.T) {
	page := optionsPage(t)
	c, err := newConfig(func(string) string { return "" }, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ section, option, want string }{
		{"Client", "`WithAddress`", c.address},
		{"Client", "`WithReconnectTimeout`", seconds(c.retryWindow)},
		{"Execute", "`DisconnectGrace`", seconds(DefaultGrace)},
	} {
		for _, row := range page[tt.section] {
			if row.names == tt.option && !strings.Contains(row.defaults, tt.want) {
				t.Errorf("%s: default %q, want %q", tt.option, row.defaults, tt.want)
			}
		}
	}
}

func seconds(d time.Duration) string { return strconv.Itoa(int(d/time.Second)) + " s" }

// declaredOptions returns the exported functions that return an option, by its type, and
// the exported structs of requests.
func declaredOptions(t *testing.T) (functions map[string][]string, requests []string) {
	t.Helper()
	functions = map[string][]string{}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, declaration := range file.Decls {
			switch d := declaration.(type) {
			case *ast.FuncDecl:
				if d.Recv != nil || !d.Name.IsExported() || d.Type.Results == nil || len(d.Type.Results.List) != 1 {
					continue
				}
				if of, ok := d.Type.Results.List[0].Type.(*ast.Ident); ok && strings.HasSuffix(of.Name, "Option") {
					functions[of.Name] = append(functions[of.Name], d.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if s, ok := spec.(*ast.TypeSpec); ok && s.Name.IsExported() && strings.HasSuffix(s.Name.Name, "Request") {
						requests = append(requests, s.Name.Name)
					}
				}
			}
		}
	}
	return functions, requests
}

func fieldNames[T any]() []string {
	var names []string
	for _, field := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		if field.IsExported() {
			names = append(names, field.Name)
		}
	}
	return names
}

func prefixed(prefix string, names []string) []string {
	for i, name := range names {
		names[i] = prefix + name
	}
	return names
}

func without(names []string, name string) []string {
	return slices.DeleteFunc(names, func(n string) bool { return n == name })
}
