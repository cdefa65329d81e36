"""``shoal deploy``: writes the files that make a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoal._core.deployments import KINDS, Cluster, deployment
from shoal._core.errors import ShoalError
from shoal.cli.app import CLUSTERS, command


@command("deploy", CLUSTERS)
def deploy(
    kind: Annotated[str, typer.Argument(metavar="|".join(sorted(KINDS)))],
    name: Annotated[str, typer.Option(help="The cluster's name.")] = "shoal",
    nodes: Annotated[int, typer.Option(help="Machines with workers, at most.")] = 2,
    min_nodes: Annotated[int, typer.Option(help="And at least.")] = 0,
    cpus: Annotated[int, typer.Option(help="CPUs of each.")] = 8,
    memory: Annotated[int, typer.Option(help="GiB of each.")] = 32,
    gpus: Annotated[int, typer.Option(help="GPUs of each.")] = 0,
    machine: Annotated[str, typer.Option(help="The cloud's name of the machines. [default: one that fits]")] = "",
    region: Annotated[str, typer.Option(help="Where they are.")] = "",
    image: Annotated[str, typer.Option(help="Kubernetes: the container image, with ray and shoal.")] = "",
    project: Annotated[str, typer.Option(help="GCP's project, Azure's resource group.")] = "",
    script: Annotated[str, typer.Option(help="The script that the files name.")] = "train.py",
    output: Annotated[Path, typer.Option(help="The directory to write to.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
) -> None:
    """Write the files for a cluster on Kubernetes, a cloud, or SLURM. Their first lines say what to do with them."""
    cluster = Cluster(
        name=name,
        nodes=nodes,
        least=min_nodes,
        cpus=cpus,
        memory=memory,
        gpus=gpus,
        machine=machine,
        region=region,
        image=image,
        project=project,
        script=script,
    )
    for file_name, text in deployment(kind, cluster).items():
        file = output / file_name
        if file.exists() and not force:
            raise ShoalError(f"{file} is there already; --force replaces it")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        print(f"written: {file}")
