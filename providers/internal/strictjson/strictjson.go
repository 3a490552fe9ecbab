// Package strictjson decodes the options of templates and requests, in which a
// field that nobody knows is a mistake and not something to pass over.
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

// explain says an error of encoding/json in the words of JSON, not of Go.
func explain(raw json.RawMessage, into any, err error) error {
	var wrong *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &wrong) && wrong.Field == "":
		return fmt.Errorf("must be %s, not %s", kindOf(wrong.Type), valueOf(wrong.Value))
	case errors.As(err, &wrong):
		return fmt.Errorf("%s: must be %s, not %s", wrong.Field, kindOf(wrong.Type), valueOf(wrong.Value))
	case errors.As(err, &syntax), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("not JSON: %w", err)
	}
	plain := errors.New(strings.TrimPrefix(err.Error(), "json: "))
	if at := culprit(raw, into); at != "" {
		return fmt.Errorf("%s: %w", at, plain)
	}
	return plain
}

// culprit finds the option whose value is refused by the type that it is decoded
// to, which does not know where it is used.
func culprit(raw json.RawMessage, into any) string {
	var options map[string]json.RawMessage
	if json.Unmarshal(raw, &options) != nil {
		return ""
	}
	for _, key := range slices.Sorted(maps.Keys(options)) {
		alone, err := json.Marshal(map[string]json.RawMessage{key: options[key]})
		if err != nil {
			continue
		}
		// An unknown option is named by the error itself.
		err = json.Unmarshal(alone, reflect.New(reflect.TypeOf(into).Elem()).Interface())
		if err != nil {
			return key
		}
	}
	return ""
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

// valueOf is what encoding/json says was found.
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
