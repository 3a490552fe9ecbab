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
//     could not start, and everything that Sandgate itself could not do, is an
//     *[Error]; compare it with errors.Is to the Err… values, or to a [Reason].
//   - A broken connection is mended out of sight: the client goes on from the
//     last byte that it received, for up to a minute. See [Process].
//   - Cancelling the context of [Sandbox.Execute] or [Sandbox.Start] kills the
//     command and all its descendants.
//
// A call carries the gRPC metadata of its context beside that of the client
// ([WithMetadata]): metadata.AppendToOutgoingContext(ctx, "x-request-id", id).
//
// What the server describes (sandboxes, files, processes) comes as the generated
// messages of package sandboxv1 under shorter names, so that nothing is
// translated twice; what a caller asks for is plain Go values.
package sandgate
