"""Checks the manifests: they build, they are what Kubernetes takes, and `voce` takes what they tell it.

    python packaging/kubernetes/check.py --voce target/release/voce

Needs kubectl (or kustomize) and the package kubernetes-validate; says what is missing and skips it. Python 3.11.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
KUBERNETES = "1.33"


def build(folder):
    """The manifests of a folder as one text."""
    tool = ["kustomize", "build"] if shutil.which("kustomize") else ["kubectl", "kustomize"]
    return subprocess.run([*tool, str(folder)], check=True, capture_output=True, text=True).stdout


def servers(documents):
    """The containers that run `voce`, with the arguments and variables that they get."""
    for document in documents:
        template = document.get("spec", {}).get("template") or document.get("spec", {}).get("jobTargetRef", {}).get("template")
        for container in (template or {}).get("spec", {}).get("containers", []):
            yield container.get("args", []), {e["name"]: str(e.get("value", "")) for e in container.get("env", [])}


# What KEDA's ScaledJob and its scaler for JetStream know. Their schema is no package, so the names are here.
SCALED_JOB = {
    "jobTargetRef", "pollingInterval", "initialDelaySeconds", "minReplicaCount", "maxReplicaCount", "envSourceContainerName",
    "successfulJobsHistoryLimit", "failedJobsHistoryLimit", "rollout", "rolloutStrategy", "scalingStrategy", "triggers",
}
STRATEGIES = {"default", "custom", "accurate", "eager"}
JETSTREAM = {"natsServerMonitoringEndpoint", "account", "stream", "consumer"}
JETSTREAM_TOO = {"lagThreshold", "activationLagThreshold", "useHttps"}


def scaled_job(document, validate):
    """What is wrong with a ScaledJob: its own fields, its trigger, and the job within it, which is Kubernetes' own."""
    spec = document["spec"]
    wrong = [f"no field '{name}'" for name in sorted(spec.keys() - SCALED_JOB)]
    if spec.get("scalingStrategy", {}).get("strategy", "default") not in STRATEGIES:
        wrong.append("no such scaling strategy")
    if spec.get("rollout", {}).get("strategy", "default") not in {"default", "gradual"}:
        wrong.append("no such rollout")
    for trigger in spec["triggers"] or [{}]:
        metadata = trigger.get("metadata", {})
        if trigger.get("type") != "nats-jetstream":
            wrong.append(f"a trigger of type {trigger.get('type')}")
        wrong += [f"the trigger has no '{name}'" for name in sorted(JETSTREAM - metadata.keys())]
        wrong += [f"the trigger has no field '{name}'" for name in sorted(metadata.keys() - JETSTREAM - JETSTREAM_TOO)]
        wrong += [f"{name} is no text" for name, value in metadata.items() if not isinstance(value, str)]
        if not str(metadata.get("lagThreshold", "1")).isdecimal():
            wrong.append("lagThreshold is no number")
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": document["metadata"], "spec": spec["jobTargetRef"]}
    return wrong + validate(job)


def runs(voce, args, variables, home):
    """Whether `voce` takes these arguments; models and keys are its own."""
    (home / "keys").write_text("a-key-of-a-check\n")
    (home / "handover").write_text("a-secret-of-a-check\n")
    known = {f"/etc/voce/{name}": str(home / name) for name in ("keys", "handover")} | {"/var/lib/voce": str(home)}

    def here(text):
        for path, own in known.items():
            text = text.replace(path, own)
        return text

    environment = {k: here(v) for k, v in variables.items() if k != "VOCE_DEVICE"}
    command = [voce, *map(here, args)] + (["--check"] if args[0] == "serve" else ["--help"])
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    return done.returncode == 0, done.stderr


def problems(kubernetes_validate, document):
    """What Kubernetes' own schema has against a document."""
    try:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
        return []
    except kubernetes_validate.ValidationError as error:
        return [str(error)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--voce", default="target/debug/voce")
    args = parser.parse_args()
    if not (shutil.which("kustomize") or shutil.which("kubectl")):
        print("skipped: neither kustomize nor kubectl is installed")
        return 0
    try:
        import kubernetes_validate
        import yaml
    except ImportError:
        print("skipped: the package kubernetes-validate is not installed")
        return 0
    failed = 0
    for folder in sorted(p.parent for p in HERE.rglob("kustomization.yaml")):
        documents = [d for d in yaml.safe_load_all(build(folder)) if d]
        for document in documents:
            name = f"{folder.relative_to(HERE)}: {document['kind']}/{document['metadata']['name']}"
            if document["kind"] == "ScaledJob":
                wrong = scaled_job(document, lambda job: problems(kubernetes_validate, job))
                failed += bool(wrong)
                print(f"{name}: {'; '.join(wrong) or 'ok'}")
                continue
            if "k8s.io" not in document["apiVersion"] and "." in document["apiVersion"].split("/")[0]:
                print(f"{name}: of {document['apiVersion']}, whose schema is not at hand")
                continue
            wrong = problems(kubernetes_validate, document)
            failed += bool(wrong)
            print(f"{name}: {'; '.join(wrong) or 'ok'}")
        for arguments, variables in servers(documents):
            with tempfile.TemporaryDirectory() as home:
                good, said = runs(args.voce, arguments, variables, pathlib.Path(home))
            failed += not good
            print(f"{folder.relative_to(HERE)}: voce {arguments[0]}: {'ok' if good else said}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
