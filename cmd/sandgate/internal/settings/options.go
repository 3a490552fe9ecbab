// Package settings reads a program's settings from a YAML file and from flags into a
// struct. Tags of its fields describe them: "yaml" is the key, "flag" the flag, "help" the
// meaning, and "enum", "min" and "max" are the bounds.
package settings

import (
	"fmt"
	"reflect"
	"strconv"
	"time"

	"github.com/spf13/pflag"
)

// Option is one setting: a field with its key in the file, its flag and its meaning.
// Either the key or the flag may be empty.
type Option struct {
	Key, Flag, Help string
	Value           reflect.Value
	bounds          bounds
}

// Options returns the settings of the struct that c points to, in the order of its
// fields.
func Options(c any) []Option { return optionsOf(nil, "", bounds{}, reflect.ValueOf(c).Elem()) }

func optionsOf(all []Option, section string, b bounds, v reflect.Value) []Option {
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		o := Option{Flag: tag.Get("flag"), Help: tag.Get("help"), Value: v.Field(i), bounds: b.within(tag)}
		if key := tag.Get("yaml"); key != "-" {
			o.Key = section + key
		}
		if o.Value.Kind() == reflect.Struct {
			all = optionsOf(all, o.Key+".", o.bounds, o.Value)
			continue
		}
		all = append(all, o)
	}
	return all
}

// AddFlags adds the flags of the struct that c points to, which set its fields. A
// field's value is the flag's default.
func AddFlags(flags *pflag.FlagSet, c any) {
	for _, o := range Options(c) {
		if o.Flag == "" {
			continue
		}
		switch p := o.Value.Addr().Interface().(type) {
		case *string:
			flags.StringVar(p, o.Flag, *p, o.Help)
		case *bool:
			flags.BoolVar(p, o.Flag, *p, o.Help)
		case **bool:
			flags.VarPF(optionalBool{p}, o.Flag, "", o.Help).NoOptDefVal = "true"
		case *int:
			flags.IntVar(p, o.Flag, *p, o.Help)
		case *int32:
			flags.Int32Var(p, o.Flag, *p, o.Help)
		case *int64:
			flags.Int64Var(p, o.Flag, *p, o.Help)
		case *uint32:
			flags.Uint32Var(p, o.Flag, *p, o.Help)
		case *float64:
			flags.Float64Var(p, o.Flag, *p, o.Help)
		case *time.Duration:
			flags.DurationVar(p, o.Flag, *p, o.Help)
		case *[]string:
			flags.StringArrayVar(p, o.Flag, *p, o.Help)
		default:
			panic(fmt.Sprintf("--%s has the type %T", o.Flag, p))
		}
	}
}

// optionalBool is a flag that is true, false or not given.
type optionalBool struct{ to **bool }

func (b optionalBool) Set(text string) error {
	value, err := strconv.ParseBool(text)
	*b.to = &value
	return err
}

func (b optionalBool) String() string {
	if b.to == nil || *b.to == nil {
		return ""
	}
	return strconv.FormatBool(**b.to)
}

func (b optionalBool) Type() string { return "bool" }
