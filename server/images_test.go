package server

import "testing"

func TestTemplateImages(t *testing.T) {
	for _, c := range []struct {
		name   string
		images []string
		image  string
		want   bool
	}{
		{"no list", nil, "any:1", true},
		{"an empty list", []string{}, "any:1", false},
		{"the template's own", []string{}, "own:1", true},
		{"listed", []string{"a:1", "b:1"}, "b:1", true},
		{"not listed", []string{"a:1"}, "a:2", false},
		{"any rest", []string{"oci:/images/*"}, "oci:/images/a/b:v1", true},
		{"a rest that climbs", []string{"oci:/images/*"}, "oci:/images/../etc", false},
		{"a rest that climbs at its end", []string{"oci:/images/*"}, "oci:/images/..", false},
		{"a rest that climbs before its tag", []string{"oci:/images/*"}, "oci:/images/..:v1", false},
		{"dots in a name", []string{"r.example/*"}, "r.example/a..b:1", true},
	} {
		if got := (&Template{Image: "own:1", Images: c.images}).allowsImage(c.image); got != c.want {
			t.Errorf("%s: %q is allowed: %v", c.name, c.image, got)
		}
	}
}
