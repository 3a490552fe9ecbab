// Package strictjson decodes the options of templates and requests. An unknown
// field is an error.
package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Decode decodes one JSON value. An unknown field and anything after the value
// are errors; empty input leaves the target as it is. An error names the option
// that it is about, and what that must be.
func Decode(raw json.RawMessage, into any) error {
	if len(raw) == 0 {
		return nil
	}
	if err := decode(raw, into); err != nil {
		return explain(raw, into, err)
	}
	return nil
}

func decode(raw json.RawMessage, into any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON value")
	}
	return nil
}

// explain rewrites an error of encoding/json in terms of JSON instead of Go.
func explain(raw json.RawMessage, into any, err error) error {
	var wrong *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &wrong) && wrong.Field == "":
		return fmt.Errorf("must be %s, not %s", kindOf(wrong.Type), valueOf(wrong.Value))
	case errors.As(err, &wrong):
		field := wrong.Field
		// That of an embedded struct begins with the struct's name.
		if first, rest, deeper := strings.Cut(field, "."); deeper && !slices.Contains(Fields(into), first) {
			field = rest
		}
		return fmt.Errorf("%s: must be %s, not %s", field, kindOf(wrong.Type), valueOf(wrong.Value))
	case errors.As(err, &syntax), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("not JSON: %w", err)
	}
	return culprit(raw, into, err)
}

// culprit names the option whose value is refused by the type that it is decoded
// to, which does not know where it is used, and the options that there are where
// it is none of them.
func culprit(raw json.RawMessage, into any, err error) error {
	var options map[string]json.RawMessage
	if json.Unmarshal(raw, &options) != nil {
		return plain(err)
	}
	known := Fields(into)
	for _, key := range slices.Sorted(maps.Keys(options)) {
		if !slices.ContainsFunc(known, func(f string) bool { return strings.EqualFold(f, key) }) {
			return fmt.Errorf("unknown field %q%s", key, instead(known))
		}
		alone, err := json.Marshal(map[string]json.RawMessage{key: options[key]})
		if err != nil {
			continue
		}
		if err := decode(alone, reflect.New(reflect.TypeOf(into).Elem()).Interface()); err != nil {
			return fmt.Errorf("%s: %w", key, plain(err))
		}
	}
	return plain(err)
}

func plain(err error) error { return errors.New(strings.TrimPrefix(err.Error(), "json: ")) }

func instead(known []string) string {
	if len(known) == 0 {
		return ""
	}
	return "; there are " + strings.Join(known, ", ")
}

// Fields returns the names that Decode knows in a pointer to a struct, in the
// struct's order, and nothing for other values.
func Fields(into any) []string {
	t := reflect.TypeOf(into)
	if t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		return nil
	}
	var names []string
	for _, f := range reflect.VisibleFields(t.Elem()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported() || f.Anonymous && name == "":
		case name == "":
			names = append(names, f.Name)
		default:
			names = append(names, name)
		}
	}
	return names
}

// CheckNames returns an error for the first of some names that Fields does not
// return.
func CheckNames(names []string, into any) error {
	known := Fields(into)
	for _, name := range names {
		if !slices.Contains(known, name) {
			return fmt.Errorf("unknown field %q%s", name, instead(known))
		}
	}
	return nil
}

func kindOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return kindOf(t.Elem())
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "a whole number that fits into " + fmt.Sprint(t.Bits()) + " bits"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Map:
		if t.Elem().Kind() == reflect.String {
			return "an object of strings"
		}
		return "an object"
	case reflect.Struct:
		return "an object"
	default:
		return "a " + t.Kind().String()
	}
}

// valueOf names the kind of JSON value that encoding/json found.
func valueOf(found string) string {
	if number, ok := strings.CutPrefix(found, "number "); ok {
		return number
	}
	switch found {
	case "array":
		return "a list"
	case "object":
		return "an object"
	case "bool":
		return "true or false"
	default:
		return "a " + found
	}
}
