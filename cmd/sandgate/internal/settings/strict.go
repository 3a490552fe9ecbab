package settings

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Decode decodes the one document of a YAML file into the struct that c points to. All
// unknown keys and values of a wrong type are errors, each with its line and path.
func Decode(r io.Reader, c any) error {
	var document, second yaml.Node
	decoder := yaml.NewDecoder(r)
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return nil // An empty file is fine.
	} else if err != nil {
		return err
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return errors.Join(errors.New("the file holds more than one YAML document; remove all but one"), err)
	}
	s := strict{seen: make(map[visit]bool)}
	s.check(&document, reflect.TypeOf(c).Elem(), "")
	if err := errors.Join(s.wrong...); err != nil {
		return err
	}
	return document.Decode(c) // duplicate keys, and aliases that contain themselves
}

// strict compares nodes of a file with the types of the settings.
type strict struct {
	wrong []error
	// seen keeps aliases from being followed twice: a short file can hold an
	// exponential number of them.
	seen map[visit]bool
}

type visit struct {
	node *yaml.Node
	t    reflect.Type
}

func (s *strict) fail(node *yaml.Node, path, format string, args ...any) {
	if path == "" {
		path = "the file"
	}
	s.wrong = append(s.wrong, fmt.Errorf("line %d: %s: %s", node.Line, path, fmt.Sprintf(format, args...)))
}

// check reports what of a node does not fit into a value of type t.
func (s *strict) check(node *yaml.Node, t reflect.Type, path string) {
	switch node.Kind {
	case yaml.DocumentNode:
		node = node.Content[0]
	case yaml.AliasNode:
		node = node.Alias
	}
	if s.seen[visit{node, t}] {
		return
	}
	s.seen[visit{node, t}] = true
	if node.Kind == yaml.ScalarNode && node.ShortTag() == "!!null" {
		return
	}
	switch {
	case t.Kind() == reflect.Pointer:
		s.check(node, t.Elem(), path)
	case free(t):
		if node.Kind != yaml.MappingNode {
			s.fail(node, path, "must be an object of keys and values")
		}
	case t.Kind() == reflect.Struct, t.Kind() == reflect.Map:
		s.checkObject(node, t, path)
	case t.Kind() == reflect.Slice:
		if node.Kind != yaml.SequenceNode {
			s.fail(node, path, "must be a list")
			return
		}
		for i, item := range node.Content {
			s.check(item, t.Elem(), fmt.Sprintf("%s[%d]", path, i))
		}
	case node.Kind != yaml.ScalarNode:
		s.fail(node, path, "must be %s", expected(t))
	case node.Decode(reflect.New(t).Interface()) != nil:
		s.fail(node, path, "%q must be %s", node.Value, expected(t))
	}
}

// free reports whether t holds keys and values of any kind, which another package checks.
func free(t reflect.Type) bool {
	return t.Kind() == reflect.Map && t.Elem().Kind() == reflect.Interface
}

func (s *strict) checkObject(node *yaml.Node, t reflect.Type, path string) {
	if node.Kind != yaml.MappingNode {
		s.fail(node, path, "must be an object of keys and values")
		return
	}
	fields := keysOf(t)
	for i := 0; i < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		if key.ShortTag() == "!!merge" {
			s.checkMerge(value, t, path)
			continue
		}
		inner := key.Value
		if path != "" {
			inner = path + "." + inner
		}
		if t.Kind() == reflect.Map {
			s.check(value, t.Elem(), inner)
			continue
		}
		if field, ok := fields[key.Value]; ok {
			s.check(value, field, inner)
			continue
		}
		hint := "there are " + strings.Join(slices.Sorted(maps.Keys(fields)), ", ")
		if near := nearest(key.Value, slices.Sorted(maps.Keys(fields))); near != "" {
			hint = "did you mean " + near + "?"
		}
		s.fail(key, inner, "unknown key; %s", hint)
	}
}

// checkMerge checks the value of the key "<<": an object or a list of objects.
func (s *strict) checkMerge(value *yaml.Node, t reflect.Type, path string) {
	if value.Kind != yaml.SequenceNode {
		s.check(value, t, path)
		return
	}
	for _, item := range value.Content {
		s.check(item, t, path)
	}
}

// keysOf returns the types of a struct's fields by their keys.
func keysOf(t reflect.Type) map[string]reflect.Type {
	if t.Kind() != reflect.Struct {
		return nil
	}
	keys := make(map[string]reflect.Type)
	for i := range t.NumField() {
		if key := t.Field(i).Tag.Get("yaml"); key != "-" {
			keys[key] = t.Field(i).Type
		}
	}
	return keys
}

// expected describes the values of a type.
func expected(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "a duration, such as 90s, 15m or 24h"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Float64:
		return "a number"
	case t.Kind() == reflect.String:
		return "a text"
	case t.Kind() == reflect.Int32, t.Kind() == reflect.Uint32:
		return "an integer of 32 bits"
	default:
		return "an integer"
	}
}

// nearest returns the name that a misspelled one most likely stands for, or "".
func nearest(name string, names []string) string {
	best, limit := "", max(2, len(name)/3)+1
	for _, n := range names {
		if d := distance(name, n); d < limit {
			best, limit = n, d
		}
	}
	return best
}

// distance returns how many characters must be inserted, deleted or replaced to turn
// a into b (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
