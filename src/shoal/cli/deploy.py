"""``shoal deploy``: writes the files that make a cluster."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from shoal._core.deployments import KINDS, Cluster, deployment
from shoal._core.errors import ShoalError


def add(commands: Any) -> None:
    """Say what the command takes."""
    deploy = commands.add_parser("deploy", help="write the files for a cluster on Kubernetes, a cloud, or SLURM")
    deploy.add_argument("kind", choices=sorted(KINDS))
    deploy.add_argument("--name", default="shoal", help="the cluster's name (default: %(default)s)")
    deploy.add_argument("--nodes", type=int, default=2, help="machines with workers, at most (default: %(default)s)")
    deploy.add_argument("--min-nodes", type=int, default=0, help="and at least (default: %(default)s)")
    deploy.add_argument("--cpus", type=int, default=8, help="CPUs of each (default: %(default)s)")
    deploy.add_argument("--memory", type=int, default=32, help="GiB of each (default: %(default)s)")
    deploy.add_argument("--gpus", type=int, default=0, help="GPUs of each (default: %(default)s)")
    deploy.add_argument("--machine", default="", help="the cloud's name of the machines (default: one that fits)")
    deploy.add_argument("--region", default="", help="where they are")
    deploy.add_argument("--image", default="", help="Kubernetes: the container image, with ray and shoal")
    deploy.add_argument("--project", default="", help="GCP's project, Azure's resource group")
    deploy.add_argument("--script", default="train.py", help="the script that the files name (default: %(default)s)")
    deploy.add_argument("--output", default=".", help="the directory to write to (default: this one)")
    deploy.add_argument("--force", action="store_true", help="replace files that are there")
    deploy.set_defaults(run=deploy_)


def deploy_(options: argparse.Namespace) -> int:
    """Write the files and say what to do with them, which their first lines say too."""
    if not 0 <= options.min_nodes <= options.nodes or options.nodes < 1:
        raise ShoalError(f"--min-nodes {options.min_nodes} --nodes {options.nodes}: give 0 <= min <= nodes, and a node")
    cluster = Cluster(
        name=options.name,
        nodes=options.nodes,
        least=options.min_nodes,
        cpus=options.cpus,
        memory=options.memory,
        gpus=options.gpus,
        machine=options.machine,
        region=options.region,
        image=options.image,
        project=options.project,
        script=options.script,
    )
    for name, text in deployment(options.kind, cluster).items():
        file = Path(options.output, name)
        if file.exists() and not options.force:
            raise ShoalError(f"{file} is there already; --force replaces it")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        print(f"written: {file}")
    return 0
