{{/* The Spark jobs: a driver for each archive, which requests executors from Kubernetes. */}}

{{- define "tidelog.pipeline.name" -}}
{{- printf "%s-pipeline" (include "tidelog.fullname" .) -}}
{{- end -}}

{{- define "tidelog.pipeline.image" -}}
{{- include "tidelog.imageReference" (dict "image" .Values.pipeline.image "tag" .Chart.AppVersion) -}}
{{- end -}}

{{/* The drivers' service account. Executors use that of the services, which does not have the drivers' permissions. */}}
{{- define "tidelog.pipeline.serviceAccountName" -}}
{{- if .Values.pipeline.serviceAccount.create -}}
{{- default (include "tidelog.pipeline.name" .) .Values.pipeline.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.pipeline.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "tidelog.pipeline.claimName" -}}
{{- default (printf "%s-tables" (include "tidelog.pipeline.name" .)) .Values.pipeline.storage.existingClaim -}}
{{- end -}}

{{/*
Whether drivers and executors use the listener with TLS. While clients move, they use plaintext, because they start before
all brokers have the other listener.
*/}}
{{- define "tidelog.pipeline.hasTls" -}}
{{- if and (include "tidelog.internalTlsProtocol" .) (not (include "tidelog.internalHasPlaintext" .)) }}true{{ end -}}
{{- end -}}

{{- define "tidelog.pipeline.bootstrapAddress" -}}
{{- $port := ternary 9096 9092 (eq (include "tidelog.pipeline.hasTls" .) "true") -}}
{{- printf "%s.%s.svc.%s:%d" (include "tidelog.bootstrapServiceName" .) .Release.Namespace .Values.clusterDomain $port -}}
{{- end -}}

{{/* The Secret with the client.properties of pipeline.user. */}}
{{- define "tidelog.pipeline.userSecretName" -}}
{{- $secret := include "tidelog.users.secretName" (dict "root" . "name" .Values.pipeline.user) -}}
{{- range .Values.users -}}
{{- if and (eq .name $.Values.pipeline.user) .secretName -}}{{- $secret = .secretName -}}{{- end -}}
{{- end -}}
{{- $secret -}}
{{- end -}}

{{/* The text of spark-defaults.conf. pipeline.sparkConf overrides it. */}}
{{- define "tidelog.pipeline.sparkConf" -}}
{{- $pipeline := .Values.pipeline -}}
{{- $executors := $pipeline.executors -}}
{{- /* Driver and executors prove to each other that they know a secret, which Spark makes for each run and gives executors in
their environment. They encrypt what they send each other, and what they write to local disks. */ -}}
{{- $conf := dict
  "spark.kubernetes.namespace" .Release.Namespace
  "spark.kubernetes.container.image" (include "tidelog.pipeline.image" .)
  "spark.kubernetes.container.image.pullPolicy" $pipeline.image.pullPolicy
  "spark.kubernetes.authenticate.executor.serviceAccountName" (include "tidelog.serviceAccountName" .)
  "spark.kubernetes.executor.podTemplateFile" "/etc/tidelog/spark/executor.yaml"
  "spark.kubernetes.executor.request.cores" $executors.requestCores
  "spark.executor.instances" $executors.count
  "spark.executor.cores" $executors.cores
  "spark.executor.memory" $executors.memory
  "spark.executor.memoryOverhead" $executors.memoryOverhead
  "spark.executor.failuresValidityInterval" "10m"
  "spark.driver.memory" $pipeline.driver.memory
  "spark.driver.port" 7078
  "spark.blockManager.port" 7079
  "spark.authenticate" true
  "spark.network.crypto.enabled" true
  "spark.network.crypto.cipher" "AES/GCM/NoPadding"
  "spark.io.encryption.enabled" true
  "spark.ui.enabled" false
  "spark.ui.showConsoleProgress" false
  "spark.sql.shuffle.partitions" (mul $executors.count $executors.cores)
  "spark.databricks.delta.snapshotPartitions" (mul $executors.count $executors.cores)
-}}
{{- with .Values.imagePullSecrets -}}
{{- $names := list -}}
{{- range . -}}{{- $names = append $names (ternary (get (ternary . dict (kindIs "map" .)) "name") . (kindIs "map" .)) -}}{{- end -}}
{{- $_ := set $conf "spark.kubernetes.container.image.pullSecrets" (join "," $names) -}}
{{- end -}}
{{- range $name, $value := $pipeline.sparkConf -}}
{{- $_ := set $conf $name $value -}}
{{- end -}}
{{- range $name, $value := $conf }}
{{ $name }} {{ if and (kindIs "float64" $value) (eq (floor $value) $value) }}{{ int64 $value }}{{ else }}{{ $value }}{{ end }}
{{- end }}
{{- end -}}

{{/* The scheduling of drivers' or executors' pods: (dict "root" $ "values" .Values.pipeline.driver). */}}
{{- define "tidelog.pipeline.placement" -}}
{{- $segments := .root.Values.pipeline.segments -}}
enableServiceLinks: false
{{- include "tidelog.imagePullSecrets" .root }}
securityContext:
  {{- include "tidelog.podSecurityContext" .root | nindent 2 }}
dnsConfig:
  options:
    - name: ndots
      value: "2"
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .values.affinity }}
affinity:
  {{- toYaml .values.affinity | nindent 2 }}
{{- else if and (eq $segments.source "mount") $segments.brokers }}
# A ReadWriteOnce volume can be read only on the node of its broker.
affinity:
  podAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      {{- range $segments.brokers }}
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "tidelog.selectorLabels" (dict "root" $.root "component" "broker") | nindent 12 }}
            tidelog.io/broker-id: {{ . | quote }}
      {{- end }}
{{- end }}
{{- end -}}

{{- define "tidelog.pipeline.volumes" -}}
{{- $segments := .Values.pipeline.segments -}}
- name: tmp
  emptyDir: {}
{{- if include "tidelog.pipeline.hasTls" . }}
{{ include "tidelog.client.volumesOf" (dict "root" . "secret" (include "tidelog.pipeline.userSecretName" .)) }}
{{- end }}
- name: tables
  persistentVolumeClaim:
    claimName: {{ include "tidelog.pipeline.claimName" . }}
{{- range $segments.brokers }}
{{- $claim := printf "data-%s-0" (include "tidelog.brokerName" (dict "root" $ "id" .)) }}
- name: segments-{{ . }}
  {{- if eq $segments.source "mount" }}
  persistentVolumeClaim:
    claimName: {{ $claim }}
    readOnly: true
  {{- else }}
  # Each pod has its own clone, which is created and deleted with the pod.
  ephemeral:
    volumeClaimTemplate:
      spec:
        accessModes: [ReadWriteOnce]
        {{- with (default $.Values.brokers.storage.className $segments.className) }}
        storageClassName: {{ . | quote }}
        {{- end }}
        dataSource: {kind: PersistentVolumeClaim, name: {{ $claim }}}
        resources:
          requests:
            storage: {{ $.Values.brokers.storage.size | quote }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "tidelog.pipeline.volumeMounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if include "tidelog.pipeline.hasTls" . }}
{{ include "tidelog.client.volumeMounts" . }}
{{- end }}
- {name: tables, mountPath: /var/lib/tidelog-tables}
{{- range .Values.pipeline.segments.brokers }}
- {name: segments-{{ . }}, mountPath: /var/lib/tidelog-segments/broker-{{ . }}, subPath: data, readOnly: true}
{{- end }}
{{- end -}}

{{/* `metadata:` and `spec:` of a driver's pod: (dict "root" $ "archive" ARCHIVE), where ARCHIVE is an entry of pipeline.archives. */}}
{{- define "tidelog.pipeline.driver" -}}
{{- $driver := .root.Values.pipeline.driver -}}
{{- $conf := printf "%s%s" (include "tidelog.pipeline.sparkConf" .root) (include "tidelog.pipeline.executor" .root) -}}
metadata:
  labels:
    {{- include "tidelog.selectorLabels" (dict "root" .root "component" "pipeline-driver") | nindent 4 }}
    tidelog.io/archive: {{ .archive.name | quote }}
    {{- with .root.Values.commonLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- with $driver.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/spark: {{ $conf | sha256sum }}
    {{- with $driver.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- if .archive.schedule }}
  restartPolicy: OnFailure
  {{- end }}
  serviceAccountName: {{ include "tidelog.pipeline.serviceAccountName" .root }}
  # The driver requests its executors from Kubernetes.
  automountServiceAccountToken: true
  terminationGracePeriodSeconds: {{ $driver.terminationGracePeriodSeconds }}
  {{- include "tidelog.pipeline.placement" (dict "root" .root "values" $driver) | nindent 2 }}
  containers:
    - name: driver
      image: {{ include "tidelog.pipeline.image" .root }}
      imagePullPolicy: {{ .root.Values.pipeline.image.pullPolicy }}
      args:
        - tidelog
        - pipeline
        - archive
        - --name={{ .archive.name }}
        - --bootstrap-server={{ include "tidelog.pipeline.bootstrapAddress" .root }}
        {{- range .archive.topics }}
        - --topic={{ . }}
        {{- end }}
        {{- with .archive.pattern }}
        - --pattern={{ . }}
        {{- end }}
        {{- if not .archive.schedule }}
        - --every={{ default "10s" .archive.every }}
        {{- end }}
        - --table=/var/lib/tidelog-tables/tables/{{ .archive.name }}
        - --checkpoint=/var/lib/tidelog-tables/checkpoints/{{ .archive.name }}
        {{- with .archive.args }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      env:
        {{- include "tidelog.podEnv" .root | nindent 8 }}
        {{- if include "tidelog.pipeline.hasTls" .root }}
        {{- include "tidelog.client.env" .root | nindent 8 }}
        {{- end }}
        - name: SPARK_CONF_DIR
          value: /etc/tidelog/spark
        - name: TIDELOG_SPARK_MASTER
          value: k8s://https://kubernetes.default.svc
        # The address at which executors reach the driver. Its pod owns them, so they are deleted with it.
        - name: SPARK_LOCAL_HOSTNAME
          value: $(POD_IP)
        - name: PYSPARK_SUBMIT_ARGS
          value: --conf spark.kubernetes.driver.pod.name=$(POD_NAME) pyspark-shell
        - name: HOME
          value: /tmp
        {{- with $driver.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with $driver.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        {{- include "tidelog.containerSecurityContext" .root | nindent 8 }}
      ports:
        - {name: driver, containerPort: 7078}
        - {name: blocks, containerPort: 7079}
      volumeMounts:
        - {name: spark, mountPath: /etc/tidelog/spark, readOnly: true}
        {{- include "tidelog.pipeline.volumeMounts" .root | nindent 8 }}
        {{- with .root.Values.pipeline.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: spark
      configMap:
        name: {{ include "tidelog.pipeline.name" .root }}
    {{- include "tidelog.pipeline.volumes" .root | nindent 4 }}
    {{- with .root.Values.pipeline.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* Template of the executors' pods. Spark's scheduler adds image, command, environment and resources. */}}
{{- define "tidelog.pipeline.executor" -}}
{{- $executors := .Values.pipeline.executors -}}
apiVersion: v1
kind: Pod
metadata:
  labels:
    {{- include "tidelog.selectorLabels" (dict "root" $ "component" "pipeline-executor") | nindent 4 }}
    {{- with .Values.commonLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- with $executors.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $executors.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  automountServiceAccountToken: false
  {{- include "tidelog.pipeline.placement" (dict "root" $ "values" $executors) | nindent 2 }}
  containers:
    - name: spark-kubernetes-executor
      workingDir: /tmp
      securityContext:
        {{- include "tidelog.containerSecurityContext" . | nindent 8 }}
      env:
        - name: HOME
          value: /tmp
        {{- with $executors.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      volumeMounts:
        {{- include "tidelog.pipeline.volumeMounts" . | nindent 8 }}
        {{- with .Values.pipeline.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    {{- include "tidelog.pipeline.volumes" . | nindent 4 }}
    {{- with .Values.pipeline.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- define "tidelog.validate.pipeline" -}}
{{- $pipeline := .Values.pipeline -}}
{{- if $pipeline.enabled -}}
{{- $names := list -}}
{{- range $pipeline.archives -}}
{{- if has .name $names -}}
{{- fail (printf "pipeline.archives: the name %s is used twice, but each archive has a table and a checkpoint of its name" .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- $full := printf "%s-%s" (include "tidelog.pipeline.name" $) .name -}}
{{- if gt (len $full) 52 -}}
{{- fail (printf "pipeline.archives: %s would be named %q, which has %d characters, and Kubernetes allows 52; choose a shorter name, or a shorter fullnameOverride" .name $full (len $full)) -}}
{{- end -}}
{{- if eq (empty .topics) (empty .pattern) -}}
{{- fail (printf "pipeline.archives: %s needs either topics or a pattern of their names" .name) -}}
{{- end -}}
{{- if and .schedule .every -}}
{{- fail (printf "pipeline.archives: %s has a schedule, with which a run ends when everything is archived; remove `every`" .name) -}}
{{- end -}}
{{- end -}}
{{- if not $names -}}
{{- fail "pipeline.archives: is empty, but pipeline.enabled is true; add an archive such as {name: flights, topics: [flights]}" -}}
{{- end -}}
{{- $users := list -}}
{{- range .Values.users -}}{{- $users = append $users .name -}}{{- end -}}
{{- if and (include "tidelog.pipeline.hasTls" .) (eq (include "tidelog.internalTlsProtocol" .) "SASL_SSL") (not (has $pipeline.user $users)) -}}
{{- fail (printf "pipeline.user: %q is not among users; name the user as whom drivers and executors log in" $pipeline.user) -}}
{{- end -}}
{{- $first := int .Values.brokers.firstId -}}
{{- $last := sub (add $first (int .Values.brokers.replicas)) 1 -}}
{{- range $pipeline.segments.brokers -}}
{{- if or (lt (int .) $first) (gt (int .) (int $last)) -}}
{{- fail (printf "pipeline.segments.brokers: there is no broker %d; the ids are %d to %d" (int .) $first (int $last)) -}}
{{- end -}}
{{- end -}}
{{- range $name := list "spark.master" "spark.kubernetes.namespace" "spark.kubernetes.executor.podTemplateFile" "spark.driver.port" "spark.blockManager.port" -}}
{{- if hasKey $pipeline.sparkConf $name -}}
{{- fail (printf "pipeline.sparkConf: the chart sets %s; remove it" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
