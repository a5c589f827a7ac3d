"""What several processes of a run decide and share: a step to stop at, batch-norm statistics."""

import signal
from pathlib import Path
from typing import Any

import torch
from torch import nn

from boxwright.accel.averages import average_norms
from boxwright.accel.checkpoint import load_checkpoint
from boxwright.accel.nano import TorchNano
from boxwright.data.synthetic import generate_scenes
from boxwright.tasks.train.loop import Training
from boxwright.tasks.train.run import TrainConfig
from boxwright.tasks.train.stopping import StopAndSave


def make_net(rank: int) -> nn.Module:
    """Return a network with the same weights everywhere and statistics of its own."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Sequential(nn.BatchNorm2d(4)))
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight)
    torch.manual_seed(rank + 1)
    for _, buffer in net.named_buffers():
        if buffer.is_floating_point():
            buffer.uniform_()
    return net


def published_way(states: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return what the published recipe loads before it scores: each norm layer's tensors, averaged over processes."""
    return {
        key: torch.stack([state[key] for state in states]).mean(0)
        for key, value in states[0].items()
        if value.is_floating_point()
    }


def share_norms(nano: TorchNano) -> list[Any]:
    net, other, frozen = make_net(nano.global_rank), make_net(nano.global_rank + 10), make_net(nano.global_rank)
    before = nano.all_gather({key: value.clone() for key, value in net.state_dict().items()})
    average_norms(nano, net, other)
    average_norms(nano, frozen, leave=("2",))
    after = nano.all_gather(dict(net.state_dict()))
    return [before, after, nano.all_gather(dict(other.state_dict())), nano.all_gather(dict(frozen.state_dict()))]


def agree(nano: TorchNano) -> list[Any]:
    by_clock, by_signal = StopAndSave(nano, save_every_s=0.0), StopAndSave(nano)
    results = []
    with by_signal.listening():
        for step in range(4):
            if nano.global_rank == 1 and step == 2:
                signal.raise_signal(signal.SIGTERM)
            by_clock.begin_step()
            by_signal.begin_step()
            nano.all_reduce(torch.ones(3))  # the step's own exchange, as of gradients
            results.append((tuple(by_clock.end_step()), tuple(by_signal.end_step())))
    return [results, *nano.all_gather(results)]


def test_every_process_gets_the_mean_of_all_statistics_as_in_the_published_recipe() -> None:
    before, after, other, frozen = TorchNano(num_processes=2).launch(share_norms)
    expected = published_way(before)
    assert not torch.equal(before[0]["1.running_mean"], before[1]["1.running_mean"])
    for state in after:
        for key, value in expected.items():
            torch.testing.assert_close(state[key], value, rtol=0, atol=1e-7, msg=key)
    assert torch.equal(other[0]["2.0.running_var"], other[1]["2.0.running_var"])
    assert torch.equal(frozen[0]["1.running_mean"], frozen[1]["1.running_mean"])
    assert torch.equal(frozen[1]["2.0.running_mean"], before[1]["2.0.running_mean"]), "left as it was"


def test_processes_learn_of_each_others_wishes_at_the_same_step() -> None:
    first, *all_of_them = TorchNano(num_processes=2).launch(agree)
    # The first process decides by its clock when to save; the second one gets a signal in step 2.
    assert first == [((0, True), (stop, False)) for stop in (0, 0, 15, 15)]
    assert all_of_them == [first, first]


def test_one_process_has_nothing_to_share() -> None:
    net = make_net(0)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    average_norms(TorchNano(), net)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def train_and_compare(nano: TorchNano, config: TrainConfig) -> list[Any]:
    training = Training(nano, config, (), None, data=Path(config.data), store=None)
    training.run()
    mine = {
        part: {key: value.clone() for key, value in network.state_dict().items()}
        for part, network in (("model", training.network), ("average", training.average.model))
    }
    gathered: list[Any] = nano.all_gather(mine)
    return gathered


def test_the_checkpoint_of_two_processes_holds_what_both_have(tmp_path: Path) -> None:
    generate_scenes(tmp_path / "set", images=12, seed=0, size_hw=(64, 64))
    config = TrainConfig(
        model="yolox_nano", data=tmp_path / "set", output_dir=tmp_path / "run", val=0.25, batch=4, steps=2,
        size_hw=(64, 64), eval_interval=0, workers=1, loggers=(),
    )  # fmt: skip
    config.output_dir.mkdir()
    both = TorchNano(num_processes=2, channels_last=True, broadcast_buffers=False).launch(train_and_compare, config)
    saved = load_checkpoint(config.output_dir / "weights" / "last.pt")
    for part in ("model", "average"):
        for key, value in saved[part].items():
            assert all(torch.equal(one[part][key], value) for one in both), (part, key)
    moved = saved["model"]["backbone.backbone.stem.conv.bn.running_mean"]
    assert moved.abs().max() > 0
