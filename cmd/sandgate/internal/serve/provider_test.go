package serve

import (
	"testing"

	"github.com/sandgate/sandgate/server/policy"
)

func TestRequireImageLists(t *testing.T) {
	templates := []policy.Template{{Name: "a"}, {Name: "b", Images: []string{"x"}}}
	requireImageLists(templates)
	if templates[0].Images == nil || len(templates[0].Images) != 0 || len(templates[1].Images) != 1 {
		t.Errorf("%+v", templates)
	}
}
