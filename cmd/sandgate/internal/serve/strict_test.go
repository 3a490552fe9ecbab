package serve

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"

	"github.com/sandgate/sandgate/cmd/sandgate/internal/settings"
)

// A file that strict accepts is one that the decoder accepts with all keys known, and
// gives the same configuration.
func FuzzDecodeStrict(f *testing.F) {
	for _, text := range []string{
		"", fullConfig, exampleOf(pageHead), "a: b", "&a [*a]", "access: &a {<<: *a}", "limits: {<<: [{max_ttl: 1s}]}", "? [a]\n: b",
		"listen: !!binary YQ==", "listen: 1\nlisten: 2", "---\n---\n", "templates: [{name: 1, env: {a: 2, b: ~}}]", "audit: {max_files: 1.0}",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var got, want config
		if err := settings.Decode(bytes.NewReader(raw), &got); err != nil {
			if err.Error() == "" {
				t.Error("an error without a text")
			}
			return
		}
		decoder := yaml.NewDecoder(bytes.NewReader(raw))
		decoder.KnownFields(true)
		if err := decoder.Decode(&want); err != nil && !errors.Is(err, io.EOF) {
			t.Fatalf("accepted, but: %v", err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	})
}

// Aliases of aliases cost no exponential time.
func TestStrictAliases(t *testing.T) {
	text := "egress_groups:\n  g: [&a0 {hosts: [a]}]\nsecrets: &b0 [{tenants: [x, x]}]\ntemplates:\n"
	for i := range 40 {
		text += fmt.Sprintf("- &t%d {name: a, env: {a: b}, egress: [*a0, *a0], zzz%d: 1}\n", i, i)
	}
	err := settings.Decode(strings.NewReader(text), &config{})
	if err == nil || strings.Count(err.Error(), "\n") != 39 {
		t.Errorf("%v", err)
	}
	bomb := "templates:\n- name: a\n  provider_options: &x0 {a: b}\n"
	for i := range 60 {
		bomb += fmt.Sprintf("- name: b%d\n  provider_options: &x%d {a: *x%d, b: *x%d}\n", i, i+1, i, i)
	}
	if err := settings.Decode(strings.NewReader(bomb), &config{}); err == nil || !strings.Contains(err.Error(), "excessive aliasing") {
		t.Errorf("%v", err)
	}
}

func compiledSchema(t testing.TB) *jsonschema.Schema {
	t.Helper()
	raw, err := json.Marshal(schema())
	if err != nil {
		t.Fatal(err)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("config.json", document); err != nil {
		t.Fatal(err)
	}
	compiled, err := compiler.Compile("config.json")
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

// validate returns what the schema finds in a YAML file.
func validate(t testing.TB, s *jsonschema.Schema, text string) error {
	t.Helper()
	var value any
	if err := yaml.Unmarshal([]byte(text), &value); err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(document)
}

func TestSchema(t *testing.T) {
	s := compiledSchema(t)
	for _, text := range []string{"{}", fullConfig, exampleOf(pageHead), "limits: {max_message_bytes: 0}", "templates: [{name: a, egress: [{ports: [443]}]}]"} {
		if err := validate(t, s, text); err != nil {
			t.Errorf("%v: %s", err, text)
		}
	}
	for _, text := range []string{
		"[]", "listne: x", "limits: {max_ttl: 5}", "limits: {max_ttl: -5s}", "limits: {max_message_bytes: 9}", "log: {level: loud}",
		"templates: [{network: all}]", "templates: [{egress: [{ports: [0]}]}]", "quotas: {tenant: {max_streams: -1}}",
		"local: {uid_base: -1}", "auth: {oidc: [{roles: {a: root}}]}",
	} {
		if validate(t, s, text) == nil {
			t.Errorf("accepted: %s", text)
		}
		c := defaults()
		if err := c.parse([]byte(text)); err == nil && settings.CheckBounds(&c) == nil {
			t.Errorf("parsed: %s", text)
		}
	}
}

// What the schema accepts, the server's decoder and bounds accept.
func TestSchemaIsSound(t *testing.T) {
	s := compiledSchema(t)
	all := schema()
	rapid.Check(t, func(t *rapid.T) {
		value := drawValue(t, all, 0)
		raw, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		document, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		if s.Validate(document) != nil {
			t.Skip("a drawn duration or number is out of bounds")
		}
		c := defaults()
		if err := c.parse(raw); err != nil {
			t.Fatalf("%v: %s", err, raw)
		}
		if err := settings.CheckBounds(&c); err != nil && !strings.Contains(err.Error(), "s is more than") {
			t.Fatalf("%v: %s", err, raw)
		}
	})
}

// drawValue draws a value for a schema.
func drawValue(t *rapid.T, s settings.Object, depth int) any {
	if either, ok := s["anyOf"].([]settings.Object); ok {
		s = either[rapid.IntRange(0, len(either)-1).Draw(t, "either")]
	}
	if value, ok := s["const"]; ok {
		return value
	}
	if enum, ok := s["enum"].([]string); ok {
		return rapid.SampledFrom(enum).Draw(t, "enum")
	}
	switch s["type"] {
	case "object":
		value := map[string]any{}
		if properties, ok := s["properties"].(settings.Object); ok {
			names := slices.Sorted(func(yield func(string) bool) {
				for name := range properties {
					if !yield(name) {
						return
					}
				}
			})
			for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(names), 0, min(4, len(names)), rapid.ID).Draw(t, "keys") {
				value[name] = drawValue(t, properties[name].(settings.Object), depth+1)
			}
			return value
		}
		if values, ok := s["additionalProperties"].(settings.Object); ok {
			value["key"] = drawValue(t, values, depth+1)
		}
		return value
	case "array":
		var list []any
		for range rapid.IntRange(0, 2).Draw(t, "length") {
			list = append(list, drawValue(t, s["items"].(settings.Object), depth+1))
		}
		return append([]any{}, list...)
	case "boolean":
		return rapid.Bool().Draw(t, "boolean")
	case "number":
		return rapid.Float64Range(-1e6, 1e6).Draw(t, "number")
	case "integer":
		return rapid.SampledFrom([]int64{-5, -1, 0, 1, 5, 1023, 65536, 1 << 31, 1 << 40}).Draw(t, "integer")
	}
	if _, ok := s["pattern"]; ok {
		return rapid.SampledFrom([]string{"0", "0s", "1h", "1.5m", "-1s", "3", "90s", ".5h", "1h30m"}).Draw(t, "duration")
	}
	return rapid.SampledFrom([]string{"", "a", "1", "true", "null", "2026-01-02", "- a", "'", "~"}).Draw(t, "text")
}
