"""Write alerts/rules as a PrometheusRule: `python deploy/kubernetes/build.py [FILE]`, by default the one beside it.

The rules are the same, and each alert about a server in a pod has the pod's `namespace` and `pod` as well, found by its
uid among what kube-state-metrics publishes.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from stallwatch.serverfamilies import INFO_LABELS

HERE = Path(__file__).parent
RULES = HERE.parents[1] / "alerts" / "rules"
HEAD = "# Written by build.py from alerts/rules: change them there.\n"
TARGET = {"namespace": "stallwatch", "labels": {"release": "kube-prometheus-stack"}}
REMEMBERED = "20m"
"""For how long the pod of a server is known after it is gone: longer than a server is shown after a crash."""
GROUPED = re.compile(r"\+ ignoring \(group\) group_left \(group\) (server:\w+)\n")
FIRING = "(alertname, alertstate, severity, group)"
SERVER_POD = "{{ with $labels.pod }} Pod: {{ $labels.namespace }}/{{ . }}.{{ end }} First "
GROUP_POD = (
    '{{ with printf "topk(8, group_member:stallwatch_pod{%s})" $at | query | sortByLabel "node_rank" }} Pods:'
    " {{ range $i, $s := . }}{{ if $i }}, {{ end }}"
    '{{ $s | label "namespace" }}/{{ $s | label "pod" }} (node rank {{ $s | label "node_rank" }})'
    "{{ end }}.{{ end }} First "
)


def placed(window: str = "") -> str:
    """Return the query for the pod of each server that is in one: 0, with its `namespace` and `pod`.

    With a window it is the pod of lately; a server that was in two of them is placed in one.
    """

    def seen(metric: str) -> str:
        return f"last_over_time({metric}[{window}])" if window else metric

    uid = f'label_replace({seen("stallwatch_server_info")}, "uid", "$1", "pod_uid", "(.+)")'
    pods = f"max by (uid, namespace, pod) ({seen('kube_pod_info')})"
    labels = ", ".join([*(label for label in INFO_LABELS if label != "server"), "uid"])
    joined = f"max without ({labels}) ({uid} * on (uid) group_left (namespace, pod) {pods})"
    return f"0 * topk without (namespace, pod) (1, {joined})"


def groups() -> Iterator[dict[str, Any]]:
    """Yield the groups of all files with what is added to them."""
    for path in sorted(RULES.glob("*.yml")):
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            yield {**group, "rules": list(_rules(group["rules"]))}


def _rules(rules: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for rule in rules:
        if rule.get("record", "").startswith("server:") and rule["record"].endswith("_group"):
            record = f"{rule['record'].removesuffix('_group')}_pod"
            yield _of_pods(record)
            yield {**rule, "expr": _beside(rule["expr"], record)}
        elif rule.get("record") == "group_member:stallwatch_verdict":
            yield _of_pods("server:stallwatch_member_pod")
            yield _of_members()
            yield rule
        else:
            yield _alert(rule) if "alert" in rule else rule


def _of_pods(record: str) -> dict[str, Any]:
    return {"record": record, "expr": f"{placed()}\nor ignoring (namespace, pod)\n{placed(REMEMBERED)}\n"}


def _of_members() -> dict[str, Any]:
    nodes = "0 * max without (namespace, pod) (group_member:stallwatch_nodes)"
    join = "+ ignoring (group, node_rank, namespace, pod) group_left (namespace, pod)"
    return {"record": "group_member:stallwatch_pod", "expr": f"{nodes}\n  {join} server:stallwatch_member_pod\n"}


def _beside(expr: str, record: str) -> str:
    inside = "\n".join(f"  {line}" for line in expr.rstrip().splitlines())
    join = f"+ ignoring (namespace, pod) group_left (namespace, pod) {record}"
    return f"(\n{inside}\n) {join}\nor ignoring (namespace, pod) (\n{inside}\n)\n"


def _alert(rule: dict[str, Any]) -> dict[str, Any]:
    """Return an alert about a server with the namespace and pod, and one about a group with the pods of its nodes."""
    text = rule["annotations"]["description"]
    if "$labels.group" in text:
        return {**rule, "annotations": {**rule["annotations"], "description": _before_first(text, GROUP_POD)}}
    if not GROUPED.search(rule["expr"]):
        return rule
    added = r"+ ignoring (group, namespace, pod) group_left (group, namespace, pod) \1" "\n"
    expr = GROUPED.sub(added, rule["expr"]).replace(FIRING, f"{FIRING[:-1]}, namespace, pod)")
    return {
        **rule,
        "expr": expr,
        "annotations": {**rule["annotations"], "description": _before_first(text, SERVER_POD)},
    }


def _before_first(text: str, added: str) -> str:
    """Put a sentence before the last one, which says what to do first."""
    head, first, tail = text.rpartition(" First ")
    if not first:
        raise ValueError(f"no sentence says what to do first: {text}")
    return f"{head}{added}{tail}"


class _Readable(yaml.SafeDumper):
    """Writes texts of several lines as such, and what stands twice twice."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Readable.add_representer(str, _text)


def built() -> str:
    """Return the text of the file."""
    metadata: Mapping[str, Any] = {"name": "stallwatch", **TARGET}
    rule = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": metadata}
    page = {**rule, "spec": {"groups": list(groups())}}
    return HEAD + yaml.dump(page, Dumper=_Readable, sort_keys=False, width=10_000, allow_unicode=True)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if sys.argv[1:] else HERE / "prometheusrule.yaml"
    target.write_text(built(), encoding="utf-8")
