package kubernetes

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
)

// TestManifests applies the plain manifests, changed as little as this cluster
// asks for.
func TestManifests(t *testing.T) {
	t.Parallel()
	client, config := clientset(t)
	configs := map[string]string{
		"kubernetes":   `{}`,
		"agentsandbox": `{"templates": [{"name": "default", "provider_options": {"sandbox_template": "box"}}]}`,
	}
	for _, provider := range []string{"kubernetes", "agentsandbox"} {
		t.Run("S1-24 S3-1 S5-2 "+provider, func(t *testing.T) {
			t.Parallel()
			i := prepare(t, client, config)
			i.config = configs[provider]
			objects, err := dynamic.NewForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			i.apply(t, objects, objectsIn(t, "../../deploy/manifests/"+provider+".yaml"))
			await(t, cache.NewListWatchFromClient(client.AppsV1().RESTClient(), "deployments", i.namespace, fields.Everything()),
				func(d *apps.Deployment) bool { return d.Status.AvailableReplicas == 1 })
			if provider == "agentsandbox" {
				(&asHarness{t: t, dynamic: objects, namespace: i.sandboxes}).template("box", restricted(image()), nil)
			}
			if out := i.run(t, binary("sandgate"), "run", "--", "sh", "-c", "echo out; id -u"); out != "out\n1000\n" {
				t.Errorf("%q", out)
			}
			noOtherRights(t, config, i)
		})
	}
}

// apply makes the objects of a file in the installation's namespaces.
func (i installed) apply(t *testing.T, objects dynamic.Interface, all []*unstructured.Unstructured) {
	t.Helper()
	client, _ := clientset(t)
	groups, err := restmapper.GetAPIGroupResources(client.Discovery())
	if err != nil {
		t.Fatal(err)
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	for _, u := range all {
		switch u.GetNamespace() {
		case "sandgate":
			u.SetNamespace(i.namespace)
		case "sandgate-sandboxes":
			u.SetNamespace(i.sandboxes)
		case "":
			if u.GetKind() != "Namespace" {
				t.Errorf("%s %s is in no namespace", u.GetKind(), u.GetName())
			}
		default:
			t.Errorf("%s %s is in namespace %q", u.GetKind(), u.GetName(), u.GetNamespace())
		}
		switch u.GetKind() {
		case "Namespace":
			u.SetName(i.sandboxes)
		case "RoleBinding":
			subjects, _, _ := unstructured.NestedSlice(u.Object, "subjects")
			subjects[0].(map[string]any)["namespace"] = i.namespace
			if err := unstructured.SetNestedSlice(u.Object, subjects, "subjects"); err != nil {
				t.Fatal(err)
			}
		case "ConfigMap":
			if err := unstructured.SetNestedField(u.Object, i.config, "data", "config.yaml"); err != nil {
				t.Fatal(err)
			}
		case "Deployment":
			i.fit(t, u)
		}
		kind := u.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			t.Fatal(err)
		}
		opts := meta.CreateOptions{FieldValidation: meta.FieldValidationStrict}
		if _, err := objects.Resource(mapping.Resource).Namespace(u.GetNamespace()).Create(limit(t), u, opts); err != nil {
			t.Fatalf("%s %s: %v", u.GetKind(), u.GetName(), err)
		}
	}
}

// fit is what an operator changes of the Deployment: the image and its name in
// the arguments, and here the network and the port as well.
func (i installed) fit(t *testing.T, u *unstructured.Unstructured) {
	t.Helper()
	var d apps.Deployment
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, &d, true); err != nil {
		t.Fatal(err)
	}
	none := int64(0)
	one := int32(1)
	pod := &d.Spec.Template.Spec
	d.Spec.Replicas, pod.HostNetwork, pod.TerminationGracePeriodSeconds = &one, true, &none
	server := &pod.Containers[0]
	former := server.Image
	server.Image, server.ImagePullPolicy, server.Env = i.image, core.PullNever, i.api
	server.Ports[0].ContainerPort, server.Lifecycle = int32(i.port), nil
	for n, arg := range server.Args {
		arg = strings.Replace(arg, "="+former, "="+i.image, 1)
		arg = strings.Replace(arg, "--kubernetes-namespace=sandgate-sandboxes", "--kubernetes-namespace="+i.sandboxes, 1)
		server.Args[n] = strings.Replace(arg, "--listen=0.0.0.0:7777", "--listen=0.0.0.0:"+strconv.Itoa(i.port), 1)
	}
	if slices.Contains(server.Args, "--provider=kubernetes") {
		server.Args = append(server.Args, "--kubernetes-image="+image())
	}
	var err error
	if u.Object, err = runtime.DefaultUnstructuredConverter.ToUnstructured(&d); err != nil {
		t.Fatal(err)
	}
}
