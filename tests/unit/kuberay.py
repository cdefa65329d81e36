"""The fields of KubeRay's custom resources (``ray.io/v1``, operator 1.5) as JSON Schema, stated by hand.

Its own schemas come with the operator and not with a package that could be installed here. Theirs hold all of
Kubernetes' pods as well: of a pod, Kubernetes' schema is asked. What is not named here is refused: an API server drops
such a field with no more than a warning.
"""

from __future__ import annotations

from typing import Any

WHOLE = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
YES_OR_NO = {"type": "boolean"}
TEXT = {"type": "string"}
TEXTS = {"type": "object", "additionalProperties": TEXT}


def having(required: list[str], **fields: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": fields, "additionalProperties": False}


GROUP = {"rayStartParams": TEXTS, "template": {"type": "object"}, "resources": TEXTS, "labels": TEXTS}
HEAD = having(
    ["template"],
    **GROUP,
    serviceType={"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    headService={"type": "object"},
    enableIngress=YES_OR_NO,
)
WORKERS = having(
    ["groupName", "minReplicas", "maxReplicas", "template"],
    **GROUP,
    groupName=TEXT,
    replicas=WHOLE,
    minReplicas=WHOLE,
    maxReplicas=WHOLE,
    numOfHosts=WHOLE,
    idleTimeoutSeconds=WHOLE,
    suspend=YES_OR_NO,
    scaleStrategy={"type": "object"},
)
CLUSTER = having(
    ["headGroupSpec"],
    headGroupSpec=HEAD,
    workerGroupSpecs={"type": "array", "items": WORKERS},
    rayVersion=TEXT,
    enableInTreeAutoscaling=YES_OR_NO,
    autoscalerOptions={"type": "object"},
    authOptions=having([], mode={"enum": ["token", "disabled"]}, secretName=TEXT, enableK8sTokenAuth=YES_OR_NO),
    gcsFaultToleranceOptions={"type": "object"},
    headServiceAnnotations=TEXTS,
    managedBy=TEXT,
    suspend=YES_OR_NO,
)
JOB = having(
    [],
    rayClusterSpec=CLUSTER,
    entrypoint=TEXT,
    entrypointNumCpus={"type": "number"},
    entrypointNumGpus={"type": "number"},
    entrypointResources=TEXT,
    runtimeEnvYAML=TEXT,
    metadata=TEXTS,
    jobId=TEXT,
    clusterSelector=TEXTS,
    submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]},
    submitterPodTemplate={"type": "object"},
    submitterConfig=having([], backoffLimit=WHOLE),
    backoffLimit=WHOLE,
    activeDeadlineSeconds={**WHOLE, "minimum": 1},
    shutdownAfterJobFinishes=YES_OR_NO,
    ttlSecondsAfterFinished=WHOLE,
    deletionStrategy={"type": "object"},
    managedBy=TEXT,
    suspend=YES_OR_NO,
)


def resource(kind: str) -> dict[str, Any]:
    """Return the schema of a ``RayCluster`` or a ``RayJob``."""
    spec = {"RayCluster": CLUSTER, "RayJob": JOB}[kind]
    name = having(["name"], name={"type": "string", "pattern": "^[a-z]([-a-z0-9]{0,45}[a-z0-9])?$"})
    return having(
        ["apiVersion", "kind", "metadata", "spec"],
        apiVersion={"const": "ray.io/v1"},
        kind={"const": kind},
        metadata=name,
        spec=spec,
    )
