package strictjson_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sandgate/sandgate/providers/internal/strictjson"
)

// Who wrote an option is told which it is and what it must be, in the words of
// JSON.
func TestErrorNamesTheOptionAndItsType(t *testing.T) {
	type options struct {
		Selector map[string]string  `json:"node_selector"`
		Paths    []string           `json:"writable_paths"`
		Root     bool               `json:"writable_root"`
		User     int64              `json:"run_as_user"`
		Memory   *resource.Quantity `json:"memory_request"`
		Claims   []struct {
			Retain bool `json:"retain"`
		} `json:"claim_templates"`
	}
	for raw, want := range map[string]string{
		`{"node_selector": "x"}`:                             "node_selector: must be an object of strings, not a string",
		`{"writable_root": true, "writable_paths": {}}`:      "writable_paths: must be a list, not an object",
		`{"writable_root": 1}`:                               "writable_root: must be true or false, not a number",
		`{"run_as_user": 1.5}`:                               "run_as_user: must be a whole number that fits into 64 bits, not 1.5",
		`{"claim_templates": [{"retain": []}]}`:              "claim_templates.retain: must be true or false, not a list",
		`{"writable_root": true, "memory_request": "a lot"}`: "memory_request: quantities must match",
		`{"nowhere": 1}`:                                     `unknown field "nowhere"; there are node_selector, writable_paths, writable_root, run_as_user, memory_request, claim_templates`,
		`{"claim_templates": [{"retian": true}]}`:            `claim_templates: unknown field "retian"`,
		`[]`:                     "must be an object, not a list",
		`{"writable_root": true`: "not JSON",
	} {
		err := strictjson.Decode(json.RawMessage(raw), new(options))
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", raw, err, want)
		}
	}
}

func TestDecode(t *testing.T) {
	type options struct {
		Known string `json:"known"`
	}
	for _, tt := range []struct {
		raw, want string
		refused   bool
	}{
		{raw: "", want: "before"},
		{raw: `{}`, want: "before"},
		{raw: `{"known": "a"} `, want: "a"},
		{raw: `{"unknown": "a"}`, refused: true},
		{raw: `{"known": "a"} {}`, refused: true},
		{raw: `{"known": "a"`, refused: true},
		{raw: `{"known": 1}`, refused: true},
	} {
		got := options{Known: "before"}
		err := strictjson.Decode(json.RawMessage(tt.raw), &got)
		if (err != nil) != tt.refused || !tt.refused && got.Known != tt.want {
			t.Errorf("%q: %+v, %v", tt.raw, got, err)
		}
	}
}

func TestFieldsOfEmbeddedOptions(t *testing.T) {
	type common struct {
		Pool string `json:"pool,omitempty"`
	}
	type options struct {
		common
		Claims []string `json:"claims"`
		Hidden string   `json:"-"`
	}
	if got := strictjson.Fields(new(options)); !slices.Equal(got, []string{"pool", "claims"}) {
		t.Errorf("%q", got)
	}
	if got := strictjson.Fields(new(map[string]string)); len(got) > 0 {
		t.Errorf("%q", got)
	}
	if err := strictjson.CheckNames([]string{"claims", "pool"}, new(options)); err != nil {
		t.Error(err)
	}
	err := strictjson.CheckNames([]string{"pool", "poll"}, new(options))
	if want := `unknown field "poll"; there are pool, claims`; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	err = strictjson.Decode(json.RawMessage(`{"a": 1}`), &struct{}{})
	if want := `unknown field "a"`; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
