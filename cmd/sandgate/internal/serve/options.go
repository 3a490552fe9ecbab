package serve

import (
	"fmt"
	"reflect"
	"strconv"
	"time"

	"github.com/spf13/pflag"
)

// option is one setting: a field of config with its key in the configuration
// file, its flag and its meaning. Either the key or the flag may be empty.
type option struct {
	key, flag, help string
	value           reflect.Value
	bounds          bounds
}

// options returns the settings of c in the order of its fields.
func options(c *config) []option { return optionsOf(nil, "", bounds{}, reflect.ValueOf(c).Elem()) }

func optionsOf(all []option, section string, b bounds, v reflect.Value) []option {
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		o := option{flag: tag.Get("flag"), help: tag.Get("help"), value: v.Field(i), bounds: b.within(tag)}
		if key := tag.Get("yaml"); key != "-" {
			o.key = section + key
		}
		if o.value.Kind() == reflect.Struct {
			all = optionsOf(all, o.key+".", o.bounds, o.value)
			continue
		}
		all = append(all, o)
	}
	return all
}

// addFlags adds the flags of c, which set its fields. A field's value is the
// flag's default.
func addFlags(flags *pflag.FlagSet, c *config) {
	for _, o := range options(c) {
		if o.flag == "" {
			continue
		}
		switch p := o.value.Addr().Interface().(type) {
		case *string:
			flags.StringVar(p, o.flag, *p, o.help)
		case *bool:
			flags.BoolVar(p, o.flag, *p, o.help)
		case **bool:
			flags.VarPF(optionalBool{p}, o.flag, "", o.help).NoOptDefVal = "true"
		case *int:
			flags.IntVar(p, o.flag, *p, o.help)
		case *int32:
			flags.Int32Var(p, o.flag, *p, o.help)
		case *int64:
			flags.Int64Var(p, o.flag, *p, o.help)
		case *uint32:
			flags.Uint32Var(p, o.flag, *p, o.help)
		case *float64:
			flags.Float64Var(p, o.flag, *p, o.help)
		case *time.Duration:
			flags.DurationVar(p, o.flag, *p, o.help)
		case *[]string:
			flags.StringArrayVar(p, o.flag, *p, o.help)
		default:
			panic(fmt.Sprintf("--%s has the type %T", o.flag, p))
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
