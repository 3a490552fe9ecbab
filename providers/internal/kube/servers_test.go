package kube

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sandgate/sandgate/providers"
)

func TestProbe(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, `{"gitVersion": "v1.33.0"}`)
	}))
	client, err := kubernetes.NewForConfig(&rest.Config{Host: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := (Servers{Core: client.CoreV1()}).Probe(t.Context()); err != nil || got.FreeBytes != -1 {
		t.Errorf("%+v, %v", got, err)
	}
	s.Close()
	if _, err := (Servers{Core: client.CoreV1()}).Probe(t.Context()); !errors.Is(err, providers.ErrUnavailable) {
		t.Errorf("with the API server gone: %v", err)
	}
}
