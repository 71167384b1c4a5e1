{{- define "treadle.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that never change: dict "root" . "component" "worker" */}}
{{- define "treadle.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "treadle.labels" -}}
{{ include "treadle.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "treadle.image" -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
{{- end -}}

{{- define "treadle.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "treadle.fullname" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end -}}

{{/* Refuse values that cannot work, before anything is created. */}}
{{- define "treadle.check" -}}
{{- $store := .Values.store -}}
{{- if and (not $store.existingSecret) (not $store.url) -}}
{{- fail "Set store.existingSecret to a Secret with the URL of the PostgreSQL store, or store.url to a URL without a password." -}}
{{- end -}}
{{- if and $store.existingSecret $store.url -}}
{{- fail "Set either store.existingSecret or store.url, not both." -}}
{{- end -}}
{{- if and $store.url (not (regexMatch "^postgres(ql)?://" $store.url)) -}}
{{- fail "store.url must be a postgresql:// URL: SQLite is one file on one machine, and pods run on several." -}}
{{- end -}}
{{- if regexMatch "^postgres(ql)?://[^/@]*:[^/@]+@" $store.url -}}
{{- fail "store.url contains a password: put the URL into a Secret and set store.existingSecret." -}}
{{- end -}}
{{- range $name := list "TREADLE_STORE" "TREADLE_STORE_FILE" "TREADLE_HTTP_PORT" "TREADLE_METRICS_ADDRESS" -}}
{{- if hasKey $.Values.settings $name -}}
{{- fail (printf "settings.%s is set by the chart; the store belongs into store.existingSecret." $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "treadle.environment" -}}
{{- range $name, $value := .Values.settings }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- if .Values.store.existingSecret }}
- name: TREADLE_STORE_FILE
  value: /run/secrets/treadle/TREADLE_STORE
{{- else }}
- name: TREADLE_STORE
  value: {{ .Values.store.url | quote }}
{{- end }}
{{- range .Values.secrets }}
- name: {{ .variable }}_FILE
  value: /run/secrets/treadle/{{ .variable }}
{{- end }}
{{- end -}}

{{- define "treadle.volumes" -}}
- name: tmp
  emptyDir: {}
{{- if or .Values.store.existingSecret .Values.secrets }}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      {{- with .Values.store.existingSecret }}
      - secret:
          name: {{ . }}
          items:
            - key: {{ $.Values.store.key }}
              path: TREADLE_STORE
      {{- end }}
      {{- range .Values.secrets }}
      - secret:
          name: {{ .existingSecret }}
          items:
            - key: {{ .key }}
              path: {{ .variable }}
      {{- end }}
{{- end }}
{{- end -}}

{{- define "treadle.mounts" -}}
- name: tmp
  mountPath: /tmp
{{- if or .Values.store.existingSecret .Values.secrets }}
- name: secrets
  mountPath: /run/secrets/treadle
  readOnly: true
{{- end }}
{{- end -}}

{{/* Placement of pods: dict "root" . "part" .Values.worker "component" "worker" */}}
{{- define "treadle.placement" -}}
{{- with .part.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
{{- if .part.topologySpreadConstraints }}
  {{- toYaml .part.topologySpreadConstraints | nindent 2 }}
{{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "treadle.selector" . | nindent 8 }}
{{- end }}
{{- end -}}
