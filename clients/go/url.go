package sandgate

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// URL is a URL of a port or a file of a sandbox. Whoever has it can use it until it
// expires. GetUrl has the token in it; GetBaseUrl is for programs that send GetToken as
// a bearer.
type URL = sandboxv1.CreateSandboxUrlResponse

// URLRequest says what [Sandbox.GetURL] returns a URL of: a port or a path.
type URLRequest struct {
	// Port is a TCP port that a program in the sandbox serves HTTP on. Nothing need
	// listen there yet.
	Port int
	// Path is the absolute path of a file, instead of a port. It need not exist yet.
	Path string
	// Method is what the URL of a file is for: GET, to read it, or PUT, to write it.
	// Default: GET.
	Method string
	// TTL is how long the URL can be used. Default: 1 h, or what the server allows if
	// that is less.
	TTL time.Duration
}

// GetURL returns a URL by which browsers and HTTP clients reach a port or a file. A
// request for the URL of a suspended sandbox resumes it. It fails with
// [ErrUnsupported] if the server has no listener for URLs.
func (s *Sandbox) GetURL(ctx context.Context, r URLRequest) (*URL, error) {
	request := &sandboxv1.CreateSandboxUrlRequest{SandboxId: s.id, ExpectedIncarnation: s.Incarnation}
	if r.Path != "" {
		request.Target = &sandboxv1.CreateSandboxUrlRequest_Path{Path: r.Path}
	} else {
		request.Target = &sandboxv1.CreateSandboxUrlRequest_Port{Port: int32(min(max(r.Port, 0), 1<<16))}
	}
	if r.Method != "" {
		method, ok := sandboxv1.FileUrlMethod_value["FILE_URL_METHOD_"+r.Method]
		if !ok {
			return nil, local(ErrInvalidRequest, codes.InvalidArgument, nil, "the method of a URL is GET or PUT, not %q", r.Method)
		}
		request.Method = sandboxv1.FileUrlMethod(method)
	}
	if r.TTL != 0 {
		request.Ttl = durationpb.New(r.TTL)
	}
	return s.client.stub.CreateSandboxUrl(ctx, request)
}
