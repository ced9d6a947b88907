{{/*
What the schema can't say: values that only make sense together. Each check fails with one sentence that names the
value and what to do. Included once, by templates/configmap.yaml; other parts add theirs as tidelog.validate.PART.
*/}}
{{- define "tidelog.validate" -}}
{{- include "tidelog.validate.etcd" . -}}
{{- include "tidelog.validate.operations" . -}}
{{- end -}}

{{/* Owner: CHART-ETCD. To be moved to _etcd.tpl. */}}
{{- define "tidelog.validate.etcd" -}}{{- end -}}
{{/* Owner: ROLL. To be moved to templates/roll/_validation.tpl or the like. */}}
{{- define "tidelog.validate.operations" -}}{{- end -}}
