package audit

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// What an Log writes is read back with every field.
func TestAuditLineRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.Make[Record]().Draw(t, "record")
		want.Phase, want.Time = Ended, time.Time{}
		want.Duration = time.Duration(rapid.IntRange(0, 1<<30).Draw(t, "ms")) * time.Millisecond
		var log strings.Builder
		if err := NewLog(&log).Audit(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		got, err := ParseLine([]byte(log.String()))
		if err != nil || got.Seq != 1 || got.Log == "" || time.Since(got.Time) > time.Minute {
			t.Fatalf("%+v, %v", got, err)
		}
		got.Time = time.Time{}
		if off := (got.Duration - want.Duration).Abs(); off > time.Microsecond {
			t.Fatalf("duration %s, want %s", got.Duration, want.Duration)
		}
		got.Duration = want.Duration
		if diff := cmp.Diff(want, got.Record); diff != "" {
			t.Fatal(diff)
		}
	})
}

// Each field of a record has a name in the log.
func TestAuditLineHasEveryField(t *testing.T) {
	record := Record{Phase: Ended}
	setFields(reflect.ValueOf(&record).Elem())
	var log strings.Builder
	if err := NewLog(&log).Audit(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	got, err := ParseLine([]byte(log.String()))
	if err != nil {
		t.Fatal(err)
	}
	v := reflect.ValueOf(got.Record)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("%s is not read from %s", v.Type().Field(i).Name, log.String())
		}
	}
}

// setFields sets the fields of v that are zero.
func setFields(v reflect.Value) {
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.String:
			f.SetString("x")
		case reflect.Int, reflect.Int32, reflect.Int64:
			f.SetInt(int64(time.Second))
		case reflect.Pointer:
			f.Set(reflect.New(f.Type().Elem()))
		case reflect.Struct:
			if _, isTime := f.Interface().(time.Time); !isTime {
				setFields(f)
			}
		}
	}
}

func FuzzParseAuditLine(f *testing.F) {
	f.Add([]byte(`{"time":"2026-01-02T03:04:05Z","level":"INFO","msg":"audit","log":"a","seq":1,"tenant":"t"}`))
	f.Add([]byte(`{"msg":"audit","seq":-1}`))
	f.Add([]byte(`{"msg":"audit","seq":1,"exit_code":99999999999}`))
	f.Add([]byte("\n{"))
	f.Fuzz(func(t *testing.T, line []byte) {
		got, err := ParseLine(line)
		if err != nil && !errors.Is(err, ErrNotRecord) || err == nil && got.Seq == 0 {
			t.Errorf("%+v, %v", got, err)
		}
	})
}
