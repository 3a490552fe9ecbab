package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	core "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	extensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

// servedVersion is the only version of agent-sandbox's kinds here. Its first
// stable release serves no other, and converting between two needs a webhook.
const servedVersion = "v1beta1"

func (c *cluster) config() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.path("kubeconfig"))
	if err == nil {
		config.QPS = -1
	}
	return config, err
}

// createObjects makes what every cluster has: agent-sandbox's kinds and namespace,
// and a storage class that gives directories of the host.
func (c *cluster) createObjects(ctx context.Context) error {
	config, err := c.config()
	if err != nil {
		return err
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	if err := createNames(ctx, kube); err != nil {
		return err
	}
	kinds, err := extensionsclient.NewForConfig(config)
	if err != nil {
		return err
	}
	paths, err := filepath.Glob(c.beside("crds", "*.yaml"))
	if err == nil && len(paths) == 0 {
		err = fmt.Errorf("no definitions of agent-sandbox's kinds in %s", c.beside("crds"))
	}
	if err != nil {
		return err
	}
	for _, path := range paths {
		kind, err := definition(path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		definitions := kinds.ApiextensionsV1().CustomResourceDefinitions()
		if _, err := definitions.Create(ctx, kind, meta.CreateOptions{}); !created(err) {
			return err
		}
		if err := until(ctx, kind.Name, func(ctx context.Context) error {
			now, err := definitions.Get(ctx, kind.Name, meta.GetOptions{})
			if err != nil {
				return err
			}
			return established(now)
		}); err != nil {
			return err
		}
	}
	return nil
}

func createNames(ctx context.Context, kube kubernetes.Interface) error {
	namespace := &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: "agent-sandbox-system"}}
	if _, err := kube.CoreV1().Namespaces().Create(ctx, namespace, meta.CreateOptions{}); !created(err) {
		return err
	}
	class := &storage.StorageClass{
		ObjectMeta: meta.ObjectMeta{
			Name:        "hostpath",
			Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"},
		},
		Provisioner: "kubernetes.io/host-path",
	}
	if _, err := kube.StorageV1().StorageClasses().Create(ctx, class, meta.CreateOptions{}); !created(err) {
		return err
	}
	return nil
}

func created(err error) bool { return err == nil || kerrors.IsAlreadyExists(err) }

// definition reads a kind and leaves one version of it.
func definition(path string) (*extensions.CustomResourceDefinition, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var kind extensions.CustomResourceDefinition
	if err := yaml.Unmarshal(data, &kind); err != nil {
		return nil, err
	}
	kind.Spec.Conversion = &extensions.CustomResourceConversion{Strategy: extensions.NoneConverter}
	kind.Spec.Versions = slices.DeleteFunc(kind.Spec.Versions,
		func(version extensions.CustomResourceDefinitionVersion) bool { return version.Name != servedVersion })
	if len(kind.Spec.Versions) != 1 {
		return nil, fmt.Errorf("no version %s", servedVersion)
	}
	return &kind, nil
}

func established(kind *extensions.CustomResourceDefinition) error {
	for _, condition := range kind.Status.Conditions {
		if condition.Type == extensions.Established && condition.Status == extensions.ConditionTrue {
			return nil
		}
	}
	return errors.New("not established")
}

// nodeReady reports whether pods can be scheduled and have an account to run as.
func (c *cluster) nodeReady(ctx context.Context) error {
	config, err := c.config()
	if err != nil {
		return err
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	if _, err := kube.CoreV1().ServiceAccounts("default").Get(ctx, "default", meta.GetOptions{}); err != nil {
		return err
	}
	now, err := kube.CoreV1().Nodes().Get(ctx, node, meta.GetOptions{})
	if err != nil {
		return err
	}
	for _, taint := range now.Spec.Taints {
		return fmt.Errorf("node has the taint %s", taint.Key)
	}
	for _, condition := range now.Status.Conditions {
		if condition.Type == core.NodeReady && condition.Status == core.ConditionTrue {
			return nil
		}
	}
	return errors.New("node is not ready")
}
