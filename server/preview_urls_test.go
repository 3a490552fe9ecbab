package server

import (
	"testing"

	"github.com/sandgate/sandgate/server/preview"
)

// testURLs are those of a domain that nothing serves.
func testURLs(t testing.TB) *preview.URLs {
	t.Helper()
	urls, err := preview.NewURLs([]byte("0123456789abcdef"), "https", "preview.example.com", 0)
	if err != nil {
		t.Fatal(err)
	}
	return urls
}
