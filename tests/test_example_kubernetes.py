"""The manifest in examples/: it can be read, its parts fit each other, and its variables are those that arx reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from arx.launch.detect import detect

MANIFEST = Path(__file__).parent.parent / "examples" / "kubernetes_job.yaml"


@pytest.fixture(scope="module")
def parts() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return {part["kind"]: part for part in yaml.safe_load_all(MANIFEST.read_text())}


def environment(job: dict[str, Any], index: int) -> dict[str, str]:
    """What Kubernetes makes of the manifest's variables in the pod with this completion index."""
    (container,) = job["spec"]["template"]["spec"]["containers"]
    made = {}
    for variable in container["env"]:
        source = variable.get("valueFrom", {})
        if "fieldRef" in source:
            assert source["fieldRef"]["fieldPath"] == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
            made[variable["name"]] = str(index)
        elif "secretKeyRef" in source:
            assert source["secretKeyRef"]["name"] in MANIFEST.read_text().split("kubectl create secret generic ")[1]
            made[variable["name"]] = "of the secret"
        else:
            made[variable["name"]] = variable["value"]
    return made


def test_each_pod_is_a_rank(parts: dict[str, Any]) -> None:
    job = parts["Job"]
    pods = job["spec"]["completions"]
    assert job["spec"]["parallelism"] == pods  # else rank 0 waits for pods that wait for it
    for index in range(pods):
        place = detect(environment(job, index))
        assert (place.rank, place.world_size, place.source) == (index, pods, "ARX_* variables")
        assert (place.local_size, place.num_nodes) == (None, None)  # pods of one machine find that out
        assert (place.master, place.secret) == ("train-0.train:29500", "of the secret")


def test_the_master_is_the_name_of_the_first_pod(parts: dict[str, Any]) -> None:
    job, service = parts["Job"], parts["Service"]
    host, port = environment(job, 0)["ARX_MASTER"].split(":")
    assert host == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert service["spec"]["clusterIP"] == "None"
    assert [entry["port"] for entry in service["spec"]["ports"]] == [int(port)]
