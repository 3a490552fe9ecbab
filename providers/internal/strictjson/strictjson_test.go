package strictjson_test

import (
	"encoding/json"
	"testing"

	"github.com/sandgate/sandgate/providers/internal/strictjson"
)

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
