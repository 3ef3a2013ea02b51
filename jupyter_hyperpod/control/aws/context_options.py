"""Declares the options of list-cluster, describe-cluster, set-cluster-context and get-cluster-context."""

from __future__ import annotations

import argparse

LIST, DESCRIBE, SET, GET = "list-cluster", "describe-cluster", "set-cluster-context", "get-cluster-context"
VERBS = {
    LIST: "list the clusters of the kubeconfig, or the HyperPod clusters of AWS",
    DESCRIBE: "show a HyperPod cluster of AWS with its nodes",
    SET: "make a HyperPod cluster of AWS the current context of the kubeconfig",
    GET: "show the current context of the kubeconfig",
}
KUBECONFIG, AWS = "kubeconfig", "aws"
VERIFIED = "What it says of AWS was tested against moto, a stand-in for AWS, and not verified on AWS."


def add_options(name: str, parser: argparse.ArgumentParser) -> None:
    """Declare the options of the verb `name`."""
    add = parser.add_argument
    if name == GET:
        return
    parser.epilog = f"{VERIFIED} It needs the extra `aws`: pip install 'jupyter_hyperpod[aws]'."
    if name == LIST:
        add(
            "--provider", choices=(KUBECONFIG, AWS), help=f"whose clusters (default: {KUBECONFIG}; {AWS} with --region)"
        )
        add("--clusters", metavar="A,B", help="aws: only these clusters")
        add("--output", choices=("table", "json"), help="json: the same as --json")
    elif name == DESCRIBE:
        add("cluster_name", metavar="NAME", help="the name or ARN of the HyperPod cluster")
    else:
        add("--cluster-name", metavar="NAME", required=True, help="the name or ARN of the HyperPod cluster")
        add("-n", "--namespace", metavar="NAME", help="where jobs are to run (default: what the context has)")
    where = "aws: the region" if name == LIST else "the region"
    add("--region", metavar="R", help=f"{where}, such as us-west-2 (default: that of your AWS configuration)")
