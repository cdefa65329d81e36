"""PyTorch on two workers: models, loaders, optimizers, the process group."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler
from workers import fit, rank, run_script

from shoal import train
from shoal.train import Checkpoint, Result, RunConfig, ScalingConfig
from shoal.train.torch import TorchConfig, TorchTrainer


def torch_fit(function, workers: int = 2, config=None, **arguments) -> Result:
    return fit(function, workers, config, trainer=TorchTrainer, **arguments)


# ---- the process group ----


def test_the_process_group_is_there_and_collectives_work():
    def train_func():
        value = torch.tensor([float(rank() + 1)])
        torch.distributed.all_reduce(value)
        train.report(
            {
                "sum": value,
                "backend": torch.distributed.get_backend(),
                "size": torch.distributed.get_world_size(),
                "threads": torch.get_num_threads(),
                "device": str(train.torch.get_device()),
                "devices": [str(d) for d in train.torch.get_devices()],
                "address": bool(os.environ["MASTER_ADDR"] and os.environ["MASTER_PORT"]),
            }
        )

    metrics = torch_fit(train_func).metrics
    assert metrics["sum"] == 3.0
    assert (metrics["backend"], metrics["size"]) == ("gloo", 2)
    assert metrics["threads"] == max(1, len(os.sched_getaffinity(0)) // 2)
    assert (metrics["device"], metrics["devices"]) == ("cpu", ["cpu"])
    assert metrics["address"]


def test_one_worker_has_a_process_group_too():
    result = torch_fit(lambda: train.report({"size": torch.distributed.get_world_size()}), 1)
    assert result.metrics["size"] == 1


def test_settings_of_the_process_group_are_checked():
    with pytest.raises(ValueError, match="init_method='file'"):
        TorchConfig(init_method="file")
    with pytest.raises(ValueError, match="timeout_s=0"):
        TorchConfig(timeout_s=0)
    with pytest.raises(TypeError, match=r"torch_config='gloo' is a str, not a TorchConfig"):
        TorchTrainer(lambda: None, torch_config="gloo")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has 1 rows for 2 workers"):
        TorchTrainer(lambda: None, datasets={"train": {"x": [1]}}, scaling_config=ScalingConfig(num_workers=2))


def test_an_exception_of_one_rank_ends_the_others_that_wait_in_a_collective():
    def train_func():
        if rank() == 1:
            raise ValueError("bad batch")
        torch.distributed.barrier()

    torch_fit(lambda: None)  # so that what is measured is not the import of torch
    began = time.monotonic()
    with pytest.raises(train.TrainingFailedError) as caught:
        torch_fit(train_func)
    assert time.monotonic() - began < 10
    assert "raised ValueError: bad batch" in str(caught.value).splitlines()[0]
    assert list(caught.value.worker_failures) == [1, 0]
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_killed_rank_is_the_cause_not_the_broken_collective_of_the_other():
    def train_func():
        for _ in range(100_000):
            if rank() == 1:
                os.kill(os.getpid(), 9)
            torch.distributed.barrier()

    with pytest.raises(train.TrainingFailedError, match=r"^rank 1 on .* was ended by SIGKILL"):
        torch_fit(train_func)


def test_many_fits_in_a_row_end_without_a_deadlock():
    def train_func():
        model = train.torch.prepare_model(nn.Linear(4, 1))
        model(torch.ones(2, 4)).sum().backward()
        train.report({"a": 1})

    for _ in range(12):
        torch_fit(train_func)


# ---- models ----


def test_gradients_are_averaged_over_all_ranks():
    def train_func():
        torch.manual_seed(0)
        model = train.torch.prepare_model(nn.Linear(1, 1, bias=False))
        model(torch.full((1, 1), float(rank() + 1))).sum().backward()
        train.report({"grad": next(model.parameters()).grad, "wrapped": hasattr(model, "module")})

    metrics = torch_fit(train_func).metrics
    assert metrics["grad"] == 1.5
    assert metrics["wrapped"] is True


def test_one_worker_s_model_is_not_wrapped():
    def train_func():
        model = nn.Linear(1, 1)
        train.report({"same": train.torch.prepare_model(model) is model})

    assert torch_fit(train_func, 1).metrics["same"] is True


@pytest.mark.parametrize("workers", [1, 2])
def test_a_state_moves_between_one_worker_and_many(workers: int, tmp_path: Path):
    def train_func():
        model = train.torch.prepare_model(nn.Linear(2, 1))
        state = model.state_dict()
        plain = {key: value + 1 for key, value in state.items()}
        model.load_state_dict(plain)
        model.load_state_dict({f"module.{key}": value for key, value in plain.items()})
        same = all(torch.equal(model.state_dict()[key], plain[key]) for key in plain)
        nn.Linear(2, 1).load_state_dict(state)
        train.report({"keys": list(state), "same": same})

    metrics = torch_fit(train_func, workers).metrics
    assert metrics["keys"] == ["weight", "bias"]
    assert metrics["same"] is True


def test_a_model_without_trainable_parameters_is_not_wrapped():
    def train_func():
        model = nn.Linear(1, 1).requires_grad_(False)
        train.report({"same": train.torch.prepare_model(model) is model})

    assert torch_fit(train_func).metrics["same"] is True


def test_ddp_takes_its_own_arguments_and_unknown_strategies_are_refused():
    def train_func():
        with pytest.raises(ValueError, match="parallel_strategy='dp'"):
            train.torch.prepare_model(nn.Linear(1, 1), parallel_strategy="dp")
        settings = {"find_unused_parameters": True}
        model = train.torch.prepare_model(nn.Linear(1, 1), parallel_strategy_kwargs=settings)
        plain = nn.Linear(1, 1)
        train.report(
            {
                "unused": model.find_unused_parameters,
                "plain": train.torch.prepare_model(plain, parallel_strategy=None) is plain,
            }
        )

    metrics = torch_fit(train_func).metrics
    assert (metrics["unused"], metrics["plain"]) == (True, True)


def test_fsdp_shards_parameters_and_trains_to_the_same_result_as_ddp():
    def train_func(config):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        model = train.torch.prepare_model(model, parallel_strategy=config["strategy"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(1)
        for _ in range(5):
            loss = model(torch.randn(4, 8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        parameter = next(model.parameters())
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        train.report({"loss": loss.item(), "rows": local.shape[0], "keys": list(model.state_dict())})

    ddp = torch_fit(train_func, config={"strategy": "ddp"}).metrics
    fsdp = torch_fit(train_func, config={"strategy": "fsdp"}).metrics
    assert fsdp["loss"] == pytest.approx(ddp["loss"], rel=1e-5)
    assert (ddp["rows"], fsdp["rows"]) == (16, 8)
    assert fsdp["keys"] == ddp["keys"]


def test_mixed_precision_on_cpus_is_bfloat16():
    def train_func():
        train.torch.accelerate(amp=True)
        model = train.torch.prepare_model(nn.Linear(4, 1))
        optimizer = train.torch.prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        output = model(torch.ones(2, 4))
        before = next(model.parameters()).clone()
        train.torch.backward(output.float().sum())
        optimizer.step()
        optimizer.zero_grad()
        train.report({"dtype": str(output.dtype), "moved": not torch.equal(before, next(model.parameters()))})

    metrics = torch_fit(train_func).metrics
    assert metrics["dtype"] == "torch.bfloat16"
    assert metrics["moved"] is True


def test_float16_scales_the_loss_and_undoes_it_in_the_step():
    def train_func():
        train.torch.accelerate(amp=torch.float16)
        parameter = nn.Parameter(torch.ones(1))
        plain = torch.optim.SGD([parameter], lr=0.5)
        optimizer = train.torch.prepare_optimizer(plain)
        train.torch.backward(parameter * 2)
        scaled = parameter.grad.item()
        optimizer.step()
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        train.report(
            {
                "scaled": scaled,
                "value": parameter,
                "state": optimizer.state_dict() == plain.state_dict(),
                "lr": scheduler.get_last_lr()[0],
                "is": isinstance(optimizer, torch.optim.Optimizer),
            }
        )

    metrics = torch_fit(train_func, 1).metrics
    assert metrics["scaled"] == 2.0 * 65536.0
    assert metrics["value"] == 0.0
    assert (metrics["state"], metrics["lr"], metrics["is"]) == (True, 0.5, True)


def test_reproducibility_gives_the_same_numbers_again():
    def train_func():
        import random

        import numpy as np

        train.torch.enable_reproducibility(7)
        train.report({"x": [random.random(), float(np.random.rand()), torch.rand(1).item()]})

    assert torch_fit(train_func, 1).metrics["x"] == torch_fit(train_func, 1).metrics["x"]


def test_forked_workers_do_not_share_random_numbers_of_python_and_numpy():
    def train_func(config):
        import random

        import numpy as np

        Path(config["place"], f"draw-{rank()}").write_text(f"{random.random()} {np.random.rand()}")

    place = Path(os.environ["SHOAL_STORAGE_PATH"]).parent
    torch_fit(train_func, 2, {"place": str(place)})
    first, second = ((place / f"draw-{r}").read_text().split() for r in (0, 1))
    assert first[0] != second[0]
    assert first[1] != second[1]


# ---- data loaders ----


def shares(make_loader, workers: int = 2, epochs: int = 1) -> list[list[list[list[int]]]]:
    """Return, by rank and epoch, the batches that a prepared loader gives."""

    def train_func(config):
        loader = train.torch.prepare_data_loader(make_loader())
        seen = [[batch.flatten().tolist() for batch in loader] for _ in range(epochs)]
        Path(config["place"], f"share-{rank()}").write_text(repr((seen, _length(loader))))

    place = Path(os.environ["SHOAL_STORAGE_PATH"]).parent
    torch_fit(train_func, workers, {"place": str(place)})
    result = []
    for r in range(workers):
        seen, length = eval((place / f"share-{r}").read_text())
        assert length in (None, len(seen[0]))
        result.append(seen)
    return result


def _length(loader) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def flat(batches: list[list[int]]) -> list[int]:
    return [item for batch in batches for item in batch]


def test_an_order_that_is_not_shuffled_is_kept():
    first, second = shares(lambda: DataLoader(torch.arange(10), batch_size=2))
    assert first == [[[0, 2], [4, 6], [8]]]
    assert second == [[[1, 3], [5, 7], [9]]]


def test_a_shuffled_loader_has_a_new_order_in_each_epoch_without_set_epoch():
    first, second = shares(lambda: DataLoader(torch.arange(100), batch_size=10, shuffle=True), epochs=3)
    for epoch in range(3):
        assert sorted(flat(first[epoch]) + flat(second[epoch])) == list(range(100))
    assert len({tuple(flat(epoch)) for epoch in first}) == 3


def test_all_ranks_get_the_same_number_of_batches():
    first, second = shares(lambda: DataLoader(torch.arange(11), batch_size=2))
    assert [len(b) for b in first[0]] == [len(b) for b in second[0]]
    assert set(flat(first[0]) + flat(second[0])) == set(range(11))


def test_the_loader_s_own_settings_are_kept():
    def collate(items):
        return torch.stack(items) * 10

    def train_func():
        generator = torch.Generator()
        loader = DataLoader(
            torch.arange(20),
            batch_size=3,
            num_workers=1,
            collate_fn=collate,
            drop_last=True,
            timeout=30,
            generator=generator,
            prefetch_factor=3,
            persistent_workers=True,
        )
        prepared = train.torch.prepare_data_loader(loader)
        same = [
            getattr(prepared, name) == getattr(loader, name)
            for name in ("batch_size", "num_workers", "drop_last", "timeout", "prefetch_factor", "persistent_workers")
        ]
        batches = [batch.tolist() for batch in prepared]
        train.report(
            {
                "same": same,
                "generator": prepared.generator is generator,
                "batches": batches,
                "loader": isinstance(prepared, DataLoader),
            }
        )

    metrics = torch_fit(train_func).metrics
    assert all(metrics["same"])
    assert metrics["generator"] is True
    assert metrics["loader"] is True
    assert metrics["batches"] == [[0, 20, 40], [60, 80, 100], [120, 140, 160]]


def test_a_sampler_that_is_distributed_already_is_left_alone():
    def make():
        data = torch.arange(8)
        sampler = DistributedSampler(data, num_replicas=2, rank=1 - rank(), shuffle=False)
        return DataLoader(data, batch_size=4, sampler=sampler)

    first, second = shares(make)
    assert first == [[[1, 3, 5, 7]]]
    assert second == [[[0, 2, 4, 6]]]


def test_a_user_s_own_sampler_is_shared_out():
    def make():
        weights = [0.0] * 50 + [1.0] * 50
        return DataLoader(torch.arange(100), batch_size=10, sampler=WeightedRandomSampler(weights, 40))

    first, second = shares(make, epochs=2)
    assert all(len(flat(epoch)) == 20 for epoch in first + second)
    assert all(item >= 50 for epoch in first + second for item in flat(epoch))
    assert first[0] != first[1]
    assert first[0] != second[0]


def test_a_user_s_own_batch_sampler_is_shared_out():
    class Pairs(BatchSampler):
        """A batch sampler of the user's own class."""

    def make():
        return DataLoader(torch.arange(10), batch_sampler=Pairs(SequentialSampler(range(10)), 2, drop_last=False))

    first, second = shares(make)
    assert first == [[[0, 1], [4, 5], [8, 9]]]
    assert second == [[[2, 3], [6, 7], [0, 1]]]  # filled up, so that both have three


def test_sampling_with_replacement_stays_so():
    def make():
        sampler = RandomSampler(range(10), replacement=True, num_samples=40)
        return DataLoader(torch.arange(10), batch_size=5, sampler=sampler)

    first, second = shares(make)
    assert len(flat(first[0])) == len(flat(second[0])) == 20


def test_a_stream_is_shared_out_and_its_incomplete_last_round_left_out():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(9))

    first, second = shares(lambda: DataLoader(Stream(), batch_size=2))
    assert first == [[[0, 2], [4, 6]]]
    assert second == [[[1, 3], [5, 7]]]


def test_no_batching_and_one_worker_are_left_as_they_are():
    first, second = shares(lambda: DataLoader(torch.arange(4), batch_size=None))
    assert (first, second) == ([[[0], [2]]], [[[1], [3]]])
    assert shares(lambda: DataLoader(torch.arange(4), batch_size=2), workers=1) == [[[[0, 1], [2, 3]]]]


def test_the_epoch_can_be_set_to_go_on_where_a_run_was():
    def train_func():
        def order(loader):
            return [batch.tolist() for batch in loader]

        def make():
            return train.torch.prepare_data_loader(DataLoader(torch.arange(50), batch_size=25, shuffle=True))

        whole = make()
        epochs = [order(whole) for _ in range(4)]
        resumed = make()
        resumed.set_epoch(2)
        by_hand = make()
        by_hand.sampler.set_epoch(2)
        later = make()
        order(later)
        later.sampler.set_epoch(3)
        train.report(
            {
                "resumed": [order(resumed), order(resumed)] == epochs[2:],
                "by hand": [order(by_hand), order(by_hand)] == epochs[2:],
                "later": order(later) == epochs[3],
            }
        )

    metrics = torch_fit(train_func).metrics
    assert metrics["resumed"] is True
    assert metrics["by hand"] is True
    assert metrics["later"] is True


def test_batches_of_any_shape_are_moved():
    from collections import namedtuple

    from shoal.train.torch.loader import to_device

    Pair = namedtuple("Pair", "x y")
    batch = {"a": [torch.ones(1), "text"], "b": Pair(torch.ones(2), None), "c": (torch.ones(3),)}
    moved = to_device(batch, torch.device("meta"))
    assert moved["a"][0].device.type == moved["b"].x.device.type == moved["c"][0].device.type == "meta"
    assert moved["a"][1] == "text"
    assert isinstance(moved["b"], Pair)


def test_what_is_no_loader_is_refused():
    with pytest.raises(train.TrainingFailedError, match="is a list, not a torch DataLoader"):
        torch_fit(lambda: train.torch.prepare_data_loader([1, 2]), 1)  # type: ignore[arg-type]


# ---- flows ----


def test_flow_1_of_the_specification_runs(tmp_path: Path):
    output = run_script(
        tmp_path,
        """
        from shoal.train.torch import TorchTrainer
        from shoal.train import ScalingConfig
        from shoal import train
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        epochs = 2
        class MyModel(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.net = torch.nn.Linear(4, 1)
            def forward(self, batch):
                return self.net(batch[0]).square().mean()
        the_loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8, shuffle=True)

        def train_func(config):
            model = MyModel()
            optimizer = torch.optim.Adam(model.parameters())

            model = train.torch.prepare_model(model)
            dataloader = train.torch.prepare_data_loader(the_loader)

            for epoch in range(epochs):
                for batch in dataloader:
                    loss = model(batch)
                    loss.backward()
                    optimizer.step()
                    train.report({"loss": loss.item()})

        trainer = TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2, use_gpu=False))
        print("reports", len(trainer.fit().metrics_dataframe))
        """,
    )
    assert "reports 8" in output


def test_flow_4_of_the_specification_runs():
    def train_func(config):
        model = nn.Linear(2, 1)
        optimizer = torch.optim.Adam(model.parameters())
        checkpoint = train.get_checkpoint()
        if checkpoint:
            with checkpoint.as_directory() as checkpoint_dir:
                state = torch.load(f"{checkpoint_dir}/model.pt")
                model.load_state_dict(state["model"])
                optimizer.load_state_dict(state["optimizer"])
                start_epoch = state["epoch"]
        else:
            start_epoch = 0
        model = train.torch.prepare_model(model)
        for epoch in range(start_epoch, 30):
            loss = model(torch.ones(4, 2)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if epoch == 15 and not checkpoint and rank() == 1:
                os.kill(os.getpid(), 9)
            if epoch % 10 == 0:
                checkpoint_ = Checkpoint.from_directory(train.get_context().get_trial_dir())
                torch.save(
                    {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch},
                    checkpoint_.path / "model.pt",
                )
                train.report({"loss": loss.item(), "start": start_epoch, "epoch": epoch}, checkpoint=checkpoint_)

    result = torch_fit(train_func, max_failures=1)
    assert result.metrics["epoch"] == 20
    assert result.metrics["start"] == 10
    assert result.checkpoint is not None
    assert "weight" in torch.load(result.checkpoint.path / "model.pt")["model"]


def test_the_same_script_runs_under_torchrun(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(
        """
import torch
from shoal import train
from shoal.train import ScalingConfig, RunConfig, Checkpoint
from shoal.train.torch import TorchTrainer
from pathlib import Path
def train_func(config):
    model = train.torch.prepare_model(torch.nn.Linear(1, 1, bias=False))
    model(torch.full((1, 1), float(train.get_context().get_world_rank() + 1))).sum().backward()
    directory = Path(train.get_context().get_trial_dir())
    (directory / f"part-{train.get_context().get_world_rank()}").touch()
    train.report({"grad": next(model.parameters()).grad, "wrapped": hasattr(model, "module")}, Checkpoint(directory))
    return train.get_context().get_local_rank()
for name in ("first", "second"):
    trainer = TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2),
                           run_config=RunConfig(name=name))
    result = trainer.fit()
    print(name, result.metrics["grad"], "returned", result.return_value, flush=True)
"""
    )
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for name in ("first", "second"):
        assert f"{name} 1.5 returned 0" in done.stdout
        assert f"{name} 1.5 returned 1" in done.stdout
        result = Result.from_path(Path(os.environ["SHOAL_STORAGE_PATH"], name))
        assert result.metrics["wrapped"] is True
        assert sorted(p.name for p in result.checkpoint.path.glob("part-*")) == ["part-0", "part-1"]


def test_torchrun_with_another_number_of_ranks_is_refused(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(
        "from shoal.train.torch import TorchTrainer\n"
        "from shoal.train import ScalingConfig\n"
        "TorchTrainer(lambda: None, scaling_config=ScalingConfig(num_workers=3)).fit()\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode != 0
    assert "the launcher started 2 ranks, and the script asks for 3 workers" in done.stderr


def test_torch_trains_in_this_process_as_well():
    def train_func():
        model = train.torch.prepare_model(nn.Linear(1, 1))
        loader = train.torch.prepare_data_loader(DataLoader(TensorDataset(torch.ones(4, 1)), batch_size=2))
        train.report({"batches": len(list(loader)), "loss": model(torch.ones(1, 1))})

    trainer = TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=0), run_config=RunConfig(verbose=0))
    try:
        assert trainer.fit().metrics["batches"] == 2
        assert trainer.fit().metrics["batches"] == 2
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(("first", "second"), [(2, 1), (1, 3), (2, 2)])
def test_a_checkpoint_of_shards_goes_on_in_another_number_of_workers(first: int, second: int):
    """The example: FSDP2, each rank writes its own shards of model and optimizer."""
    path = Path(__file__).parents[2] / "examples" / "sharded.py"
    sharded = types.ModuleType("sharded")
    exec(compile(path.read_text(), str(path), "exec"), vars(sharded))
    before, after = sharded.main(first, second, steps=10)
    assert (before.metrics["workers"], after.metrics["workers"]) == (first, second)
    names = sorted(file.name for file in before.checkpoint.path.glob("*.distcp"))
    assert names == [f"__{rank}_0.distcp" for rank in range(first)]
    before.checkpoint.verify()
    # Read back without a step, it is the same model; with steps, the same optimizer as without a stop between.
    assert sharded.fit(second, 0, before.checkpoint).metrics["loss"] == pytest.approx(before.metrics["loss"], rel=1e-5)
    through = sharded.fit(1, 20)
    assert after.metrics["loss"] == pytest.approx(through.metrics["loss"], rel=1e-3)
