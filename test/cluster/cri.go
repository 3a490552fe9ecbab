package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (c *cluster) socket() string { return c.path("containerd.sock") }

func (c *cluster) dialRuntime() (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+c.socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// runtimeReady reports whether pods can be started.
func (c *cluster) runtimeReady(ctx context.Context) error {
	conn, err := c.dialRuntime()
	if err != nil {
		return err
	}
	defer conn.Close()
	answer, err := cri.NewRuntimeServiceClient(conn).Status(ctx, &cri.StatusRequest{})
	if err != nil {
		return err
	}
	for _, condition := range answer.GetStatus().GetConditions() {
		if !condition.GetStatus() {
			return fmt.Errorf("%s: %s", condition.GetType(), condition.GetMessage())
		}
	}
	return nil
}

// haveImage reports whether the kubelet would find the image.
func (c *cluster) haveImage(ctx context.Context, conn *grpc.ClientConn, name string) (bool, error) {
	answer, err := cri.NewImageServiceClient(conn).ImageStatus(ctx, &cri.ImageStatusRequest{
		Image: &cri.ImageSpec{Image: name},
	})
	return answer.GetImage() != nil, err
}

// removal is how long the removal of one pod is tried.
const removal = 30 * time.Second

// removePods stops and removes every pod that containerd knows, with its network.
func (c *cluster) removePods(ctx context.Context) error {
	conn, err := c.dialRuntime()
	if err != nil {
		return err
	}
	defer conn.Close()
	runtime := cri.NewRuntimeServiceClient(conn)
	pods, err := runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	var errs []error
	for _, pod := range pods.GetItems() {
		id := pod.GetId()
		one, cancel := context.WithTimeout(ctx, removal)
		// A container that is being started cannot be removed yet.
		errs = append(errs, until(one, "the removal of pod "+id, func(ctx context.Context) error {
			_, err := runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id})
			if err == nil {
				_, err = runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
			}
			return err
		}))
		cancel()
	}
	return errors.Join(errs...)
}
