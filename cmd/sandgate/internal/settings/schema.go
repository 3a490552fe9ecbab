package settings

import (
	"math"
	"reflect"
	"strings"
	"time"
)

// Object is a JSON Schema, or a part of one.
type Object = map[string]any

// Schema returns the JSON Schema of a file for the struct that standard points to, which
// holds the defaults. It accepts nothing that Decode and CheckBounds refuse.
func Schema(title string, standard any) Object {
	v := reflect.ValueOf(standard).Elem()
	s := schemaOf(v.Type(), bounds{}, v)
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = title
	return s
}

// schemaOf returns the schema of values of type t. standard is the value without a
// file, or invalid within lists.
func schemaOf(t reflect.Type, b bounds, standard reflect.Value) Object {
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem(), b, reflect.Value{})
	case reflect.Struct:
		properties := Object{}
		for i := range t.NumField() {
			field := t.Field(i)
			key := field.Tag.Get("yaml")
			if key == "-" {
				continue
			}
			value := reflect.Value{}
			if standard.IsValid() {
				value = standard.Field(i)
			}
			properties[key] = property(field, b.within(field.Tag), value)
		}
		return Object{"type": "object", "properties": properties, "additionalProperties": false}
	case reflect.Slice:
		return Object{"type": "array", "items": schemaOf(t.Elem(), b, reflect.Value{})}
	case reflect.Map:
		if free(t) {
			return Object{"type": "object"}
		}
		return Object{"type": "object", "additionalProperties": schemaOf(t.Elem(), b, reflect.Value{})}
	default:
		return scalarSchema(t, b)
	}
}

// property returns the schema of a field, with its meaning and its default.
func property(field reflect.StructField, b bounds, standard reflect.Value) Object {
	s := schemaOf(field.Type, b, standard)
	// A field that is zero is one that is left out, whatever its smallest value.
	if least, ok := s["minimum"].(int64); ok && least > 0 {
		s = Object{"anyOf": []Object{{"const": 0}, s}}
	}
	if help := field.Tag.Get("help"); help != "" {
		s["description"] = help
	}
	if !standard.IsValid() || standard.IsZero() {
		return s
	}
	switch value := standard.Interface().(type) {
	case time.Duration:
		s["default"] = value.String()
	case string, bool, int, int32, int64, uint32, float64:
		s["default"] = value
	}
	return s
}

// Durations as time.ParseDuration reads them, from 0 and of either sign.
const (
	positiveDuration = `^\+?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$`
	anyDuration      = `^[-+]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$`
)

func scalarSchema(t reflect.Type, b bounds) Object {
	switch {
	case b.enum != "":
		return Object{"type": "string", "enum": strings.Fields(b.enum)}
	case t == reflect.TypeFor[time.Duration]():
		if b.min == "0s" {
			return Object{"type": "string", "pattern": positiveDuration}
		}
		return Object{"type": "string", "pattern": anyDuration}
	}
	switch t.Kind() {
	case reflect.String:
		return Object{"type": "string"}
	case reflect.Bool:
		return Object{"type": "boolean"}
	case reflect.Float64:
		return Object{"type": "number"}
	}
	s := Object{"type": "integer"}
	switch t.Kind() {
	case reflect.Int32:
		s["minimum"], s["maximum"] = int64(math.MinInt32), int64(math.MaxInt32)
	case reflect.Uint32:
		s["minimum"], s["maximum"] = int64(0), int64(math.MaxUint32)
	}
	if b.min != "" {
		s["minimum"] = number(t, b.min)
	}
	if b.max != "" {
		s["maximum"] = number(t, b.max)
	}
	return s
}
