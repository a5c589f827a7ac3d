"""python benchmarks/peer.py --data FOLDER [--model yolox_nano] [--batch 16] [--steps 12] [--device cpu] [--amp]

Images per second of the original YOLOX code, as its maintained package has it, on a COCO data set (annotations/*.json
beside the images' folder): its network, per-image assignment, data pipeline with worker processes, SGD and weight
average. Its trainer knows CUDA devices alone, so the loop around these parts is written here, step by step the same.

    pip install --no-deps pixeltable-yolox loguru tabulate

torchvision is imported there for NMS, which training does not use; where it is missing an empty module takes its place.
"""

import argparse
import json
import logging
import os
import sys
import time
import types
import warnings
from pathlib import Path

import torch

WARMUP = 2


def prepare_imports() -> None:
    """Let the package be imported where torchvision is missing."""
    try:
        import torchvision  # noqa: F401
    except ImportError:
        sys.modules["torchvision"] = types.ModuleType("torchvision")


def train(args: argparse.Namespace) -> float:
    """Return images per second after the warm-up steps."""
    from yolox.config import YoloxConfig
    from yolox.utils import ModelEMA

    config = YoloxConfig.get_named_config(args.model)
    assert config is not None, args.model
    (annotations,) = sorted((args.data / "annotations").glob("*.json"))
    labels = json.loads(annotations.read_text())
    config.num_classes = len(labels["categories"])
    config.data_dir, config.train_ann, config.train_img_dir = str(args.data), annotations.name, args.images
    config.data_num_workers = args.workers
    model = config.get_model().to(args.device)
    optimizer = config.get_optimizer(args.batch)
    loader = config.get_data_loader(args.batch, is_distributed=False)
    schedule = config.get_lr_scheduler(config.basic_lr_per_img * args.batch, len(loader))
    average = ModelEMA(model, 0.9998)
    scaler = torch.amp.GradScaler(args.device, enabled=args.amp)
    start = 0.0
    for step, (images, targets, _, _) in enumerate(loader):
        if step == WARMUP:
            if args.device != "cpu":
                torch.cuda.synchronize()
            start = time.perf_counter()
        images, targets = images.to(args.device, non_blocking=True), targets.to(args.device, non_blocking=True)
        with torch.autocast(args.device, torch.float16, enabled=args.amp):
            loss = model(images.float(), targets.float())["total_loss"]
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        average.update(model)
        for group in optimizer.param_groups:
            group["lr"] = schedule.update_lr(step + 1)
        if step + 1 == args.steps + WARMUP:
            break
    if args.device != "cpu":
        torch.cuda.synchronize()
    return args.batch * args.steps / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", default="images", help="the images' folder inside --data")
    parser.add_argument("--model", default="yolox_nano")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--amp", action="store_true", help="fp16 autocast, the original's --fp16")
    parser.add_argument("--workers", type=int, default=min(4, len(os.sched_getaffinity(0))))
    args = parser.parse_args()
    prepare_imports()
    warnings.simplefilter("ignore")
    logging.disable()
    print(json.dumps({"images_per_s": train(args)}))


if __name__ == "__main__":
    main()
