package sandgate

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// surface is one list of clients/surface.json, in the words of all clients.
type surface struct {
	Names []string
	Go    struct {
		Renamed map[string]string
		// Absent and Only give the reason of each difference.
		Absent, Only map[string]string
	}
}

// The three clients have the same methods and options: clients/surface.json.
func TestSurfaceIsThatOfAllClients(t *testing.T) {
	raw, err := os.ReadFile("../surface.json")
	if err != nil {
		t.Fatal(err)
	}
	var surfaces map[string]surface
	if err := json.Unmarshal(raw, &surfaces); err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{
		"client methods":  methods[*Client](),
		"sandbox methods": methods[*Sandbox](),
		"client options":  clientOptions(t),
		"create options":  fields[CreateRequest](),
		"execute options": fields[ExecuteRequest](),
		"search options":  fields[SearchRequest](),
		"glob options":    fields[GlobRequest](),
		"build options":   fields[BuildRequest](),
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(surfaces)), slices.Sorted(maps.Keys(got))); diff != "" {
		t.Fatalf("lists (-file +test):\n%s", diff)
	}
	for name, s := range surfaces {
		want := slices.Collect(maps.Keys(s.Go.Only))
		for _, n := range s.Names {
			if s.Go.Absent[n] != "" {
				continue
			}
			if other := s.Go.Renamed[n]; other != "" {
				n = other
			}
			want = append(want, n)
		}
		slices.Sort(want)
		slices.Sort(got[name])
		if diff := cmp.Diff(want, got[name]); diff != "" {
			t.Errorf("%s (-clients/surface.json +Go client):\n%s", name, diff)
		}
	}
}

func methods[T any]() []string {
	var names []string
	for method := range reflect.TypeFor[T]().Methods() {
		names = append(names, snake(method.Name))
	}
	return names
}

func fields[T any]() []string {
	var names []string
	for _, field := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		names = append(names, snake(field.Name))
	}
	return names
}

// clientOptions returns the functions of options.go that return an Option.
func clientOptions(t *testing.T) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "options.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, declaration := range file.Decls {
		f, ok := declaration.(*ast.FuncDecl)
		if !ok || f.Recv != nil {
			continue
		}
		if name, ok := strings.CutPrefix(f.Name.Name, "With"); ok {
			names = append(names, snake(name))
		}
	}
	return names
}

var (
	wordEnd    = regexp.MustCompile(`([a-z0-9])([A-Z])`)
	acronymEnd = regexp.MustCompile(`([A-Z])([A-Z][a-z])`)
)

func snake(name string) string {
	name = acronymEnd.ReplaceAllString(name, "${1}_${2}")
	return strings.ToLower(wordEnd.ReplaceAllString(name, "${1}_${2}"))
}
