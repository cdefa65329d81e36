"""TPU slices: which topologies there are, and what a ScalingConfig makes of them."""

from __future__ import annotations

import pytest

import shoal
from shoal import train
from shoal._core.tpu import slice_of
from shoal.train import ScalingConfig


@pytest.mark.parametrize(
    ("topology", "kind", "machines", "chips"),
    [  # of Cloud TPU's documentation: "TPU configurations" of each generation
        ("1x1", "TPU-V6E", 1, 1),
        ("2x4", "TPU-V6E", 1, 8),
        ("4x4", "TPU-V6E", 4, 4),
        ("16x16", "TPU-V6E", 64, 4),
        ("4x8", "TPU-V5LITEPOD", 8, 4),
        ("2x2x1", "TPU-V4", 1, 4),
        ("4x4x8", "v5p", 32, 4),
    ],
)
def test_slices(topology: str, kind: str, machines: int, chips: int):
    assert slice_of(topology, kind) == (machines, chips)


@pytest.mark.parametrize(
    ("topology", "kind", "words"),
    [
        ("4x4", "TPU-V9", "'TPU-V9' is no kind of TPU; there are TPU-TPU7X, TPU-V2"),
        ("4x4", "TPU-V4", "TPU-V4 has 3 dimensions, such as '2x2x4'"),
        ("4x4x4", "TPU-V6E", "TPU-V6E has 2 dimensions, such as '4x4'"),
        ("4*4", "TPU-V6E", "topology='4\\*4'"),
        ("1x3", "TPU-V6E", "has 3 chips, but machines have 4 each"),
    ],
)
def test_shapes_that_are_none(topology: str, kind: str, words: str):
    with pytest.raises(ValueError, match=words):
        slice_of(topology, kind)


def test_a_worker_is_a_machine_of_the_slice():
    config = ScalingConfig(num_workers=8, use_tpu=True, topology="4x4", accelerator_type="TPU-V6E")
    assert config.worker_resources == {"CPU": 1.0, "TPU": 4.0}
    assert config.total_resources["TPU"] == 32
    assert ScalingConfig(use_tpu=True).worker_resources["TPU"] == 4
    assert ScalingConfig(use_tpu=True, resources_per_worker={"TPU": 1}).worker_resources["TPU"] == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"use_tpu": True, "use_gpu": True}, "both True"),
        ({"resources_per_worker": {"TPU": 4}}, "set use_tpu=True"),
        ({"topology": "4x4", "use_tpu": True}, "its accelerator_type, such as 'TPU-V6E'"),
        ({"topology": "4x4", "accelerator_type": "TPU-V6E"}, "give use_tpu=True"),
        (
            {"topology": "4x4", "accelerator_type": "TPU-V6E", "use_tpu": True, "num_workers": 3},
            "has 4 machines with 4 chips each; use 4 workers for each slice",
        ),
    ],
)
def test_what_does_not_fit_together_is_told(settings: dict, words: str):
    with pytest.raises(ValueError, match=words):
        ScalingConfig(**settings)


def test_a_machine_without_tpus_says_so():
    trainer = train.DataParallelTrainer(print, scaling_config=ScalingConfig(use_tpu=True))
    with pytest.raises(shoal.errors.InfeasibleRequest, match=r"TPU: 4 asked \(1 x 4\), 0 there"):
        trainer.fit()
