package settings

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// bounds are the values that a field can have: the tags "enum", "min" and "max". Those
// of a field that holds others apply to all of these that have none of their own.
type bounds struct{ enum, min, max string }

// within returns the bounds of a field inside of a value with bounds b.
func (b bounds) within(tag reflect.StructTag) bounds {
	own := bounds{tag.Get("enum"), tag.Get("min"), tag.Get("max")}
	if own == (bounds{}) {
		return b
	}
	return own
}

// CheckBounds returns an error for each value in the struct that c points to outside of
// its bounds.
func CheckBounds(c any) error {
	var wrong []error
	for _, o := range Options(c) {
		eachOutside(o.Value, o.bounds, o.Key, true, func(path, problem string) {
			wrong = append(wrong, o.Fail(path, problem))
		})
	}
	return errors.Join(wrong...)
}

// Fail returns an error about the value at a path of this option.
func (o Option) Fail(path, problem string) error {
	if o.Flag != "" && path == "" {
		return fmt.Errorf("--%s: %s", o.Flag, problem)
	}
	if o.Flag != "" {
		return fmt.Errorf("%s (--%s): %s", path, o.Flag, problem)
	}
	return fmt.Errorf("%s: %s", path, problem)
}

// eachOutside calls fail for each value in v outside of its bounds. A field that is
// zero is one that was left out.
func eachOutside(v reflect.Value, b bounds, path string, field bool, fail func(path, problem string)) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			eachOutside(v.Elem(), b, path, field, fail)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			tag := v.Type().Field(i).Tag
			eachOutside(v.Field(i), b.within(tag), path+"."+tag.Get("yaml"), true, fail)
		}
	case reflect.Slice:
		for i := range v.Len() {
			eachOutside(v.Index(i), b, fmt.Sprintf("%s[%d]", path, i), false, fail)
		}
	case reflect.Map:
		if free(v.Type()) {
			return
		}
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, key := range keys {
			eachOutside(v.MapIndex(key), b, path+"."+key.String(), false, fail)
		}
	default:
		if problem := b.problem(v); problem != "" && (!field || !v.IsZero()) {
			fail(path, problem)
		}
	}
}

// problem returns what is wrong with a scalar, or "".
func (b bounds) problem(v reflect.Value) string {
	switch {
	case v.Kind() == reflect.String && b.enum != "":
		if names := strings.Fields(b.enum); !slices.Contains(names, v.String()) {
			return fmt.Sprintf("%q is none of %s", v.String(), strings.Join(names, ", "))
		}
	case v.CanInt() && b.min != "" && v.Int() < number(v.Type(), b.min):
		return fmt.Sprintf("%v is less than %s", v.Interface(), b.min)
	case v.CanInt() && b.max != "" && v.Int() > number(v.Type(), b.max):
		return fmt.Sprintf("%v is more than %s", v.Interface(), b.max)
	case v.CanUint() && b.min != "" && v.Uint() < uint64(number(v.Type(), b.min)):
		return fmt.Sprintf("%v is less than %s", v.Interface(), b.min)
	case v.CanUint() && b.max != "" && v.Uint() > uint64(number(v.Type(), b.max)):
		return fmt.Sprintf("%v is more than %s", v.Interface(), b.max)
	}
	return ""
}

// number returns a bound, which is written as a value of type t is.
func number(t reflect.Type, text string) int64 {
	if t == reflect.TypeFor[time.Duration]() {
		d, err := time.ParseDuration(text)
		if err != nil {
			panic(fmt.Sprintf("the bound %q is no duration", text))
		}
		return int64(d)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic(fmt.Sprintf("the bound %q is no integer", text))
	}
	return n
}
