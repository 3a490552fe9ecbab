package sandgate_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"strings"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// One command in a sandbox of its own.
func Example() {
	ctx := context.Background()
	client, err := sandgate.NewClient(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	sandbox, _, err := client.Create(ctx, sandgate.CreateRequest{})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = sandbox.Delete(ctx) }()

	result, err := sandbox.Execute(ctx, sandgate.ExecuteRequest{Shell: "echo $((6 * 7))"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s(exit code %d)\n", result.Stdout, result.Code())
}

// Output as it comes, both streams apart.
func ExampleSandbox_Start() {
	ctx := context.Background()
	client, err := sandgate.NewClient(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	process, err := client.Sandbox("build-42").Start(ctx, sandgate.ExecuteRequest{Argv: []string{"make", "test"}})
	switch {
	case errors.Is(err, sandgate.ErrCommandNotFound):
		log.Fatal("there is no make in this sandbox")
	case err != nil:
		log.Fatal(err)
	}
	defer process.Close()
	for event, err := range process.Events() {
		switch {
		case err != nil:
			log.Fatal(err)
		case event.Output == nil:
		case event.Output.GetStream() == sandgate.Stderr:
			os.Stderr.Write(event.Output.GetData())
		default:
			os.Stdout.Write(event.Output.GetData())
		}
	}
	os.Exit(sandgate.ExitCode(process.Exit()))
}

// Several files in one call; each has its own outcome.
func ExampleSandbox_Upload() {
	ctx := context.Background()
	client, err := sandgate.NewClient(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	results, err := client.Sandbox("build-42").Upload(ctx,
		sandgate.File{Path: "/workspace/a.txt", Content: strings.NewReader("one")},
		sandgate.File{Path: "/workspace/b.txt", Content: strings.NewReader("two")},
	)
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range results {
		fmt.Println(r.Path, r.Size, r.Err)
	}
}

// An HTTP client that talks to a server in the sandbox.
func ExampleSandbox_Connect() {
	ctx := context.Background()
	client, err := sandgate.NewClient(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	sandbox := client.Sandbox("build-42")
	web := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return sandbox.Connect(ctx, 3000) },
	}}
	reply, err := web.Get("http://localhost/")
	switch {
	case errors.Is(err, sandgate.ErrPortClosed):
		log.Fatal("nothing listens on port 3000 yet")
	case err != nil:
		log.Fatal(err)
	}
	defer reply.Body.Close()
	fmt.Println(reply.Status)
}
