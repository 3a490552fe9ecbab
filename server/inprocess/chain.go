package inprocess

import (
	"context"
	"slices"

	"google.golang.org/grpc"
)

// ChainUnary returns interceptors as one, the first of them the outermost.
func ChainUnary(list []grpc.UnaryServerInterceptor) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		for _, in := range slices.Backward(list) {
			next := handler
			handler = func(ctx context.Context, req any) (any, error) { return in(ctx, req, info, next) }
		}
		return handler(ctx, req)
	}
}

// ChainStream is ChainUnary for streams.
func ChainStream(list []grpc.StreamServerInterceptor) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		for _, in := range slices.Backward(list) {
			next := handler
			handler = func(srv any, stream grpc.ServerStream) error { return in(srv, stream, info, next) }
		}
		return handler(srv, stream)
	}
}
