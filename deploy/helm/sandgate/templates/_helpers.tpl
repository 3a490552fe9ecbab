{{- define "sandgate.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end -}}
{{- end }}

{{- define "sandgate.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* This release's own pods, for a network policy. */}}
{{- define "sandgate.pods" -}}
{{ .Release.Namespace }}/app.kubernetes.io/name={{ .Chart.Name }},app.kubernetes.io/instance={{ .Release.Name }}
{{- end }}

{{- define "sandgate.labels" -}}
{{ include "sandgate.selector" . }}
app.kubernetes.io/version: {{ include "sandgate.version" . | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* A label's value: at most 63 characters, none of them a plus or an at. */}}
{{- define "sandgate.version" -}}
{{- regexReplaceAll "[^A-Za-z0-9._-]" (regexReplaceAll "@.*" (.Values.image.tag | default .Chart.AppVersion) "") "_" | trunc 63 | trimAll "._-" }}
{{- end }}

{{- define "sandgate.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "sandgate.sandboxes" -}}
{{ .Values.sandboxes.namespace | default (printf "%s-sandboxes" .Release.Namespace) }}
{{- end }}

{{- /* Nine tenths of the limit of memory, in bytes; nothing for limits that are written in another way. */}}
{{- define "sandgate.gomemlimit" -}}
{{- $limit := toString (dig "limits" "memory" "" .Values.resources) }}
{{- if regexMatch "^[0-9]+(Ki|Mi|Gi)$" $limit }}
{{- $unit := dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 }}
{{- div (mul (regexFind "^[0-9]+" $limit | int64) (get $unit (regexFind "[A-Z]i$" $limit)) 9) 10 }}
{{- end }}
{{- end }}

{{- define "sandgate.adminPort" -}}
{{ regexFind "[0-9]+$" .Values.adminListen }}
{{- end }}

{{- define "sandgate.wide" -}}
{{- if and (eq .Values.provider "kubernetes") .Values.sandboxes.namespacePerSandbox }}true{{ end }}
{{- end }}

{{- /* Each rule with what it is for. An exec asks for "create", and before Kubernetes 1.35 for "get". */}}
{{- define "sandgate.rules.kubernetes" -}}
{{ include "sandgate.rules.pods" . }}
# A record for each sandbox and each pool; the ledger of quotas.
- {apiGroups: [""], resources: [configmaps], verbs: [get, list, watch, create, update, delete]}
# Volumes that templates ask for.
- {apiGroups: [""], resources: [persistentvolumeclaims], verbs: [get, create]}
# Which server looks after expired sandboxes, of those that share the namespace, and
# which are alive.
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, create, update]}
{{- end }}

{{- /* What a pod takes, in the namespace of the sandboxes or in one of its own. */}}
{{- define "sandgate.rules.pods" -}}
# The sandboxes, and the pods of pools.
- {apiGroups: [""], resources: [pods], verbs: [get, list, watch, create, patch, delete]}
# The stream to the agent inside.
- {apiGroups: [""], resources: [pods/exec], verbs: [get, create]}
# The values of a sandbox's environment; they are never read back.
- {apiGroups: [""], resources: [secrets], verbs: [create, delete]}
# Why a pod does not start.
- {apiGroups: [""], resources: [events], verbs: [list]}
# The policies of sandboxes without network, and of those with it.
- {apiGroups: [networking.k8s.io], resources: [networkpolicies], verbs: [get, create, update]}
{{- end }}

{{- /* In the namespace of the sandboxes only: with a ClusterRole the server could read every secret. */}}
{{- define "sandgate.rules.transport" -}}
{{- if ne .Values.transport "exec" -}}
# The secrets by which server and agents authenticate each other.
- {apiGroups: [""], resources: [secrets], verbs: [get{{ if eq .Values.provider "agentsandbox" }}, create{{ end }}]}
{{- end }}
{{- end }}

{{- define "sandgate.rules.agentsandbox" -}}
# The sandboxes.
- {apiGroups: [extensions.agents.x-k8s.io], resources: [sandboxclaims], verbs: [get, list, watch, create, patch, delete]}
- {apiGroups: [agents.x-k8s.io], resources: [sandboxes], verbs: [get, watch, patch, delete]}
# Pools that templates name, and those that the server makes.
- {apiGroups: [extensions.agents.x-k8s.io], resources: [sandboxwarmpools], verbs: [get, list, create, patch, delete]}
- {apiGroups: [extensions.agents.x-k8s.io], resources: [sandboxtemplates], verbs: [get]}
# The pods of both: what became of them, and which hold the agent.
- {apiGroups: [""], resources: [pods], verbs: [get, list, watch, patch, delete]}
- {apiGroups: [""], resources: [pods/exec], verbs: [get, create]}
- {apiGroups: [""], resources: [events], verbs: [list]}
# What pods of sandboxes with network proxy may reach beside it.
- {apiGroups: [networking.k8s.io], resources: [networkpolicies], verbs: [list]}
# Which server looks after expired sandboxes, of those that share the namespace, and
# which are alive.
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, create, update]}
# Sandboxes that were there before and are only wrapped; the ledger of quotas.
- {apiGroups: [""], resources: [configmaps], verbs: [get, list, create, update, patch, delete]}
{{- end }}
