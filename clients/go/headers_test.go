package sandgate

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/sandgate/sandgate/clients/go/fake"
)

// seen collects the metadata of calls, in order, under the name of their method.
type seen struct {
	mu  sync.Mutex
	got map[string][]metadata.MD
}

func (s *seen) add(method string, md metadata.MD) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.got == nil {
		s.got = map[string][]metadata.MD{}
	}
	s.got[path.Base(method)] = append(s.got[path.Base(method)], md)
}

// values returns what a key was in each call of a method.
func (s *seen) values(method, key string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, md := range s.got[method] {
		all = append(all, fmt.Sprint(md.Get(key)))
	}
	return all
}

func TestMetadataOfAClientAndOfACall(t *testing.T) {
	var calls seen
	client := connect(t, &fake.Server{Seen: calls.add}, WithMetadata(map[string]string{"x-team": "blue", "x-request-id": "all"}))
	sandbox := create(t, client, "a")
	one := metadata.AppendToOutgoingContext(within(t), "x-request-id", "one", "x-trace", "7")
	if _, err := sandbox.Execute(one, ExecuteRequest{Shell: "true"}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ method, key, want string }{
		{"CreateSandbox", "x-team", "[blue]"},
		{"CreateSandbox", "x-request-id", "[all]"},
		{"Execute", "x-team", "[blue]"},
		{"Execute", "x-request-id", "[one]"},
		{"Execute", "x-trace", "[7]"},
	} {
		if got := calls.values(tt.method, tt.key); !slices.Equal(got, []string{tt.want}) {
			t.Errorf("%s, %s: got %v, want %s", tt.method, tt.key, got, tt.want)
		}
	}
}

// The client calls the token source before every attempt, also before its own
// retries.
func TestTokenSource(t *testing.T) {
	var calls seen
	var tokens, failures atomic.Int32
	client := connect(t, &fake.Server{
		Seen: calls.add,
		Fail: func(string) error {
			if failures.Add(-1) >= 0 {
				return fake.Error(codes.Unavailable, "SERVER_SHUTTING_DOWN", "away")
			}
			return nil
		},
	}, WithToken("never"), WithTokenSource(func(context.Context) (string, error) {
		return fmt.Sprintf("t%d", tokens.Add(1)), nil
	}))
	sandbox := create(t, client, "a")
	failures.Store(1)
	if _, err := client.Get(within(t), "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := sandbox.Execute(within(t), ExecuteRequest{Shell: "true"}); err != nil {
		t.Fatal(err)
	}
	for method, want := range map[string][]string{
		"CreateSandbox": {"[Bearer t1]"},
		"GetSandbox":    {"[Bearer t2]", "[Bearer t3]"},
		"Execute":       {"[Bearer t4]"},
	} {
		if got := calls.values(method, "authorization"); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", method, got, want)
		}
	}
}

func TestTokenSourceThatFails(t *testing.T) {
	broken := errors.New("the vault is sealed")
	client := connect(t, &fake.Server{}, WithTokenSource(func(context.Context) (string, error) { return "", broken }))
	_, unary := client.Get(within(t), "a")
	_, stream := client.Sandbox("a").Execute(within(t), ExecuteRequest{Shell: "true"})
	for _, err := range []error{unary, stream} {
		if !errors.Is(err, ErrAuthentication) || !errors.Is(err, broken) {
			t.Errorf("error %v", err)
		}
	}
}

func TestTokenSourceWithoutTLS(t *testing.T) {
	source := WithTokenSource(func(context.Context) (string, error) { return "t", nil })
	if _, err := NewClient(t.Context(), WithAddress("example.com:1"), source); !errors.Is(err, ErrInvalidRequest) {
		t.Errorf("error %v", err)
	}
}

func TestTokenInAHeader(t *testing.T) {
	var calls seen
	client := connect(t, &fake.Server{Seen: calls.add}, WithToken(" secret\r\n"))
	if _, err := client.ServerInfo(within(t)); err != nil {
		t.Fatal(err)
	}
	if got := calls.values("GetServerInfo", "authorization"); !slices.Equal(got, []string{"[Bearer secret]"}) {
		t.Errorf("got %q", got)
	}
	for _, token := range []string{"sec\nret", "sécret", "sec ret"} {
		client := connect(t, &fake.Server{}, WithToken(token))
		_, err := client.ServerInfo(within(t))
		if !errors.Is(err, ErrInvalidRequest) || strings.Contains(err.Error(), "ret\"") || !strings.Contains(err.Error(), "SANDGATE_TOKEN") {
			t.Errorf("%q: error %v", token, err)
		}
	}
}
