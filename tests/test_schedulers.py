"""The examples for Slurm and Kubernetes, as far as they run without either: on a made-up sysfs, with the real optcc."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import diagnosis_texts as texts

ROOT = Path(__file__).resolve().parent.parent
CHECK = ROOT / "examples" / "slurm" / "optcc-health-check"
KUBERNETES = ROOT / "examples" / "kubernetes"
RATE = "400 Gb/sec (4X NDR)"
TOPOLOGY = """optcc: 1
servers:
  - {name: node, count: 4, nics: [{name: mlx5_0, rate: 400Gb/s}, {name: mlx5_1, rate: 400Gb/s}]}
"""
LIMIT_S = 300


def sysfs(folder: Path, *down: str) -> Path:
    """A server with mlx5_0 and mlx5_1, of which some are down."""
    return texts.sysfs(folder, {"mlx5_0": RATE, "mlx5_1": RATE}, dict.fromkeys(down, "1: DOWN"))


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def optcc(path: Path) -> Path:
    """This tree's."""
    return program(path, f'PYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)} -m optcc "$@"')


@pytest.fixture
def node(tmp_path: Path) -> dict[str, str]:
    """What slurmd gives the script, and where it finds things; scontrol notes how it is called."""
    program(tmp_path / "bin" / "scontrol", f'printf "%s|" "$@" >> {tmp_path}/scontrol')
    (tmp_path / "cluster.yaml").write_text(TOPOLOGY)
    return {
        "PATH": f"{tmp_path}/bin:/usr/bin:/bin",
        "SLURMD_NODENAME": "node-2",
        "OPTCC": str(optcc(tmp_path / "optcc")),
        "OPTCC_TOPOLOGY": str(tmp_path / "cluster.yaml"),
        "OPTCC_SYS": str(tmp_path / "sys"),
        "OPTCC_LIMIT": str(LIMIT_S),
    }


def health_check(env: dict[str, str]) -> tuple[int, str]:
    done = subprocess.run([CHECK], env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.stdout == ""
    return done.returncode, done.stderr


def called(tmp_path: Path) -> list[str]:
    path = tmp_path / "scontrol"
    return path.read_text().split("|") if path.exists() else []


@pytest.mark.long
def test_a_server_that_costs_less_outside_the_job_is_drained(node: dict[str, str], tmp_path: Path) -> None:
    sysfs(tmp_path / "sys", "mlx5_0", "mlx5_1")
    status, said = health_check(node)
    assert status == 1
    assert said.startswith("optcc-health-check: drain node-2: no AllReduce is possible")
    reason = "Reason=optcc: drain node-2: no AllReduce is possible as it is"
    assert called(tmp_path) == ["update", "NodeName=node-2", "State=DRAIN", reason, ""]


def test_a_prolog_tells_by_its_exit_status_alone(node: dict[str, str], tmp_path: Path) -> None:
    says = str(program(tmp_path / "other", "echo 'drain node-2: because'; exit 1"))
    said = "optcc-health-check: drain node-2: because\n"
    assert health_check({**node, "OPTCC": says, "SLURM_JOB_ID": "17"}) == (1, said)
    assert called(tmp_path) == []
    assert health_check({**node, "OPTCC": says}) == (1, said)
    assert called(tmp_path)[0] == "update"


@pytest.mark.long
def test_a_server_that_costs_less_inside_the_job_stays(node: dict[str, str], tmp_path: Path) -> None:
    """One of two NICs is down; a job that is communication alone, and a spare server, turn that."""
    sysfs(tmp_path / "sys", "mlx5_1")
    assert health_check(node) == (0, "")
    status, said = health_check({**node, "OPTCC_OPTIONS": "--exposed 100% --spares 1 --restart 1min"})
    assert (status, len(called(tmp_path))) == (1, 5)
    assert "going on loses more after" in said


@pytest.mark.parametrize(
    ("instead", "says"),
    [
        ("echo no such file >&2; exit 2", "no verdict on node-2, exit status 2: no such file"),
        ("echo Traceback; exit 1", "no verdict on node-2, exit status 1: Traceback"),
        ("exec sleep 600", "no verdict on node-2, exit status 124"),
        ("exit 3", ""),
        ("exit 0", ""),
    ],
)
def test_what_is_no_verdict_drains_nothing(node: dict[str, str], tmp_path: Path, instead: str, says: str) -> None:
    limit = "1" if "sleep" in instead else str(LIMIT_S)
    status, said = health_check({**node, "OPTCC": str(program(tmp_path / "other", instead)), "OPTCC_LIMIT": limit})
    assert (status, called(tmp_path)) == (0, [])
    assert says in said
    assert bool(said) == bool(says)


def manifests() -> dict[str, dict[str, Any]]:
    """Kind -> the one of it."""
    found = list(yaml.safe_load_all((KUBERNETES / "optcc-nic-health.yaml").read_text()))
    assert len({one["kind"] for one in found}) == len(found)
    return {one["kind"]: one for one in found}


def containers() -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in manifests()["DaemonSet"]["spec"]["template"]["spec"]["containers"]}


class Node:
    """A node's two containers, whose files lie in one folder: /config, /verdict and /host/sys."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("config", "verdict", "host"):
            (root / name).mkdir()
        for name, text in manifests()["ConfigMap"]["data"].items():
            (root / "config" / name).write_text(self.here(text))
        optcc(root / "bin" / "optcc")
        program(root / "bin" / "sleep", "kill $PPID")  # the loop ends where it would wait for its next turn
        self.plugin = json.loads((root / "config" / "optcc.json").read_text())

    def here(self, text: str) -> str:
        return re.sub(r"(?<![\w/])/(config|verdict|host)\b", lambda found: f"{self.root}{found[0]}", text)

    def diagnose(self) -> None:
        """One turn of the first container's command."""
        command = [self.here(word) for word in containers()["optcc"]["command"]]
        env = {"PATH": f"{self.root}/bin:/usr/bin:/bin", "NODE_NAME": "node-1"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert (done.returncode, done.stderr) == (-15, "")

    def conditions(self) -> dict[str, tuple[int, str]]:
        """Condition -> exit status and message, as node-problem-detector gets them by its rules."""
        found = {}
        for rule in self.plugin["rules"]:
            run = [rule["path"], *rule["args"]]
            env = {"PATH": "/usr/bin:/bin"}
            done = subprocess.run(run, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
            assert done.stderr == ""
            found[rule["condition"]] = (done.returncode, done.stdout.strip())
        return found


@pytest.fixture
def pod(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.long
def test_conditions_of_a_node_that_is_to_be_drained(pod: Node) -> None:
    sysfs(pod.root / "host" / "sys", "mlx5_0", "mlx5_1")
    pod.diagnose()
    assert pod.conditions() == {
        "OptccDrainAdvised": (1, "drain node-1: no AllReduce is possible as it is"),
        "OptccNicDegraded": (1, "2 degraded NICs explain what is slow"),
    }


@pytest.mark.long
def test_conditions_of_a_node_that_stays(pod: Node) -> None:
    sysfs(pod.root / "host" / "sys", "mlx5_0")
    pod.diagnose()
    drain, degraded = pod.conditions().values()
    assert drain[0] == 0
    assert degraded == (1, "1 degraded NIC explains what is slow")


@pytest.mark.long
def test_a_node_whose_links_are_well_has_no_condition(pod: Node) -> None:
    sysfs(pod.root / "host" / "sys")
    pod.diagnose()
    assert [status for status, _ in pod.conditions().values()] == [0, 0]


def test_without_a_verdict_of_today_the_condition_is_unknown(pod: Node) -> None:
    assert pod.conditions()["OptccDrainAdvised"] == (2, "no verdict of optcc yet")
    for age, status, told, expected in (
        (3600, 1, "drain node-1", 2), (60, 1, "drain node-1", 1), (60, 1, "Traceback", 2), (60, 2, "broken", 2),
        (60, 124, "", 2), (60, 3, "cannot tell", 0),
    ):  # fmt: skip
        (pod.root / "verdict" / "drain").write_text(f"{time.time() - age:.0f} {status} {told}\n")
        assert pod.conditions()["OptccDrainAdvised"][0] == expected, (age, status, told)


def test_the_manifests_fit_together() -> None:
    found = manifests()
    spec = found["DaemonSet"]["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    volumes = {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
    mounted = {mount["name"] for one in containers().values() for mount in one["volumeMounts"]}
    assert mounted == volumes
    assert spec["template"]["spec"]["serviceAccountName"] == found["ServiceAccount"]["metadata"]["name"]
    assert found["ClusterRoleBinding"]["roleRef"]["name"] == found["ClusterRole"]["metadata"]["name"]
    spaces = {one["metadata"]["namespace"] for one in found.values() if "namespace" in one["metadata"]}
    assert spaces == {found["Namespace"]["metadata"]["name"]}
    assert all(one["env"][0]["name"] == "NODE_NAME" for one in containers().values())
    assert "--config.custom-plugin-monitor=/config/optcc.json" in containers()["node-problem-detector"]["command"]


def test_the_plugins_configuration_is_what_node_problem_detector_takes() -> None:
    """Its docs/custom_plugin_monitor.md: rules name their conditions, and none takes longer than all may."""
    plugin = json.loads(manifests()["ConfigMap"]["data"]["optcc.json"])
    assert plugin["plugin"] == "custom"
    conditions = [one["type"] for one in plugin["conditions"]]
    assert [(rule["type"], rule["condition"]) for rule in plugin["rules"]] == [("permanent", c) for c in conditions]
    assert {rule["timeout"] for rule in plugin["rules"]} == {plugin["pluginConfig"]["timeout"]}


def test_nvsentinel_watches_the_conditions_that_the_plugin_sets() -> None:
    plugin = json.loads(manifests()["ConfigMap"]["data"]["optcc.json"])
    values = yaml.safe_load((KUBERNETES / "nvsentinel-values.yaml").read_text())
    policies = values["kubernetes-object-monitor"]["policies"]
    watched = [re.findall(r'c\.type == "(\w+)"', policy["predicate"]["expression"]) for policy in policies]
    assert watched == [[one["type"]] for one in plugin["conditions"]]
    assert [policy["healthEvent"]["isFatal"] for policy in policies] == [True, False]
