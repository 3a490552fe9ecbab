// Package sandgate is the Go client of Sandgate: sandboxes for AI agents behind
// one gRPC endpoint.
//
//	client, err := sandgate.NewClient(ctx)
//	if err != nil { … }
//	defer client.Close()
//
//	sandbox, _, err := client.Create(ctx, sandgate.CreateRequest{})
//	if err != nil { … }
//	defer sandbox.Delete(ctx)
//
//	result, err := sandbox.Execute(ctx, sandgate.ExecuteRequest{Shell: "python3 -V"})
//	if err != nil { … }
//	fmt.Printf("%s(exit code %d)\n", result.Stdout, result.Code())
//
// Three things are worth knowing:
//
//   - A command that ran is not an error, whatever its exit code. A command that
//     could not start, and every failure of Sandgate itself, is an *[Error];
//     compare it by errors.Is with the Err… values, or with a [Reason].
//   - The client reconnects transparently: for up to a minute it continues from the
//     last byte that it received. See [Process].
//   - Cancelling the context of [Sandbox.Execute] or [Sandbox.Start] kills the
//     command and all its descendants.
//
// [Sandbox.Connect] returns a [net.Conn] to a port that a program in the sandbox listens
// on; it fits into net/http's DialContext and into database drivers.
//
// [BuildImage] builds an image from a Dockerfile by the program "sandgate", and returns its
// name for [SandboxSpec].
//
// A call carries the gRPC metadata of its context in addition to the client's
// ([WithMetadata]): metadata.AppendToOutgoingContext(ctx, "x-request-id", id).
//
// Descriptions from the server (sandboxes, files, processes) are the generated
// messages of package sandboxv1 under shorter names, without a translation. Requests
// are plain Go values.
package sandgate
