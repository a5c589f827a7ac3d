"""A part of the networks that is quick enough for every run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from support.networks_of_others import NETWORKS
from support.thirdparty import import_or_skip
from support.thirdparty_table import convert, load_elsewhere
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from boxwright import InferenceOptimizer, Trainer
from boxwright.core.errors import UsageError

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.mark.parametrize(("name", "method"), [("GAN", "jit"), ("LSTM, packed", "jit")])
def test_a_network_is_converted_and_loaded_in_a_fresh_process(name: str, method: str, tmp_path: Path) -> None:
    outcome = convert(NETWORKS[name], method, tmp_path / "made")
    assert outcome.works in ("any size", "fixed size", "fixed sides"), outcome
    assert load_elsewhere([tmp_path / "made"]) == {str(tmp_path / "made"): True}


class Lit(LightningModule):
    """A module that brings its own data."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.seen: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x)
        return found

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self.log("seen", self(batch[0]).mean())

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(torch.ones(4, 4), torch.zeros(4)), batch_size=2)


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*LeafSpec:FutureWarning")
def test_a_lightning_module_is_traced_by_what_it_brings_and_validated(tmp_path: Path) -> None:
    module = Lit()
    fast: Any = InferenceOptimizer.trace(module)
    assert isinstance(fast, LightningModule)
    trainer = Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    (found,) = trainer.validate(fast, module.val_dataloader(), verbose=False)
    assert found["seen"] == pytest.approx(float(module(torch.ones(1, 4)).detach().mean()), abs=1e-5)


class Speaker(nn.Module):
    """Generates as a language model does: longer and longer texts, with inputs that say nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 9)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, use_cache: bool = True) -> Tensor:
        if use_cache:
            raise RuntimeError("the cache is no array")
        found: Tensor = self.head(self.embedding(input_ids).cumsum(1))
        return found

    def generate(self, ids: Tensor, steps: int, use_cache: bool = True, mask: Tensor | None = None) -> Tensor:
        for _ in range(steps):
            mask = torch.ones_like(ids) if mask is None else mask
            found = self(input_ids=ids, attention_mask=mask, use_cache=use_cache)
            ids, mask = torch.cat((ids, found[:, -1:].argmax(-1)), 1), None
        return ids


def test_a_language_model_generates_without_a_cache() -> None:
    model, ids = Speaker().eval(), torch.tensor([[1, 2, 3]])
    fast: Any = InferenceOptimizer.trace(model, {"input_ids": ids}, "eager")
    assert torch.equal(fast.generate(ids, 4), model.generate(ids, 4, use_cache=False))
    with pytest.raises(UsageError, match="has no cache"):
        fast.generate(ids, 4, use_cache=True)
    with pytest.raises(UsageError, match="needs 'attention_mask' here"):
        fast.generate(ids, 1, mask=torch.tensor([[0, 1, 1]]))


def test_a_model_of_transformers_takes_and_gives_what_the_original_does() -> None:
    import_or_skip("transformers")
    network = NETWORKS["transformers BERT"]
    model, (call, other) = network.make(), network.calls
    data = Batches([{**call, "labels": torch.tensor([0, 1])}, {**other, "labels": torch.tensor([0, 1, 2])}])
    fast: Any = InferenceOptimizer.trace(model, data, "jit")
    assert fast.config is model.config
    assert torch.allclose(fast(**other).logits, model(**other).logits, atol=1e-4)
    with InferenceOptimizer() as optimizer:
        optimizer.optimize(
            model, data, data, metric=right, includes=["jit_fp32"], latency_sample_num=1, thread_num=1, quiet=True
        )
        assert optimizer.report.row("jit_fp32").status in ("successful", "early stopped")


def right(outputs: Any, labels: Tensor) -> Tensor:
    return (outputs.logits.argmax(1) == labels).float()


class Batches:
    """A loader."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)
