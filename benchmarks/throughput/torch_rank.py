"""Trains a workload's twin with PyTorch's DistributedDataParallel or FSDP2 in one process of a team."""

import argparse
import os
import time
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.throughput import workloads
from benchmarks.throughput.phases import FORWARD_BACKWARD, REST, UPDATE
from benchmarks.throughput.turns import serve
from benchmarks.throughput.workloads import WORKLOADS, share


def mlp():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )


def wide():
    sizes = [784, *[workloads.WIDE] * workloads.NUM_WIDE]
    hidden = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(workloads.WIDE, 10))


def cnn():
    hidden = [nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3, 2), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*hidden, nn.Linear(64 * 12 * 12, 10))


class Bottleneck(nn.Module):
    """One block of ResNet-50."""

    def __init__(self, channels: int, width: int, stride: int):
        super().__init__()
        self.inner = nn.Sequential(
            *(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)),
        )
        self.outer = nn.Identity()
        if stride > 1 or channels != 4 * width:
            self.outer = nn.Sequential(nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        return functional.relu(self.inner(x) + self.outer(x))


def resnet():
    """ResNet-50 as Keras has it, with the stride in the first convolution of a block."""
    blocks, channels = [], 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            blocks.append(Bottleneck(channels, width, stride if number == 0 else 1))
            channels = 4 * width
    stem = [nn.Conv2d(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


class Block(nn.Module):
    """One layer of the transformer."""

    def __init__(self):
        super().__init__()
        width = workloads.WIDTH
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        heads = self.project(self.before(x)).view(batch, length, 3, workloads.NUM_HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.join(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.after(x))))


class Gpt(nn.Module):
    """The transformer, whose logits have the classes in dim 1 as PyTorch's loss wants them."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(workloads.VOCABULARY, workloads.WIDTH)
        self.places = nn.Parameter(torch.zeros(workloads.TEXT_LENGTH, workloads.WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(workloads.NUM_BLOCKS)))
        self.norm = nn.LayerNorm(workloads.WIDTH)
        self.logits = nn.Linear(workloads.WIDTH, workloads.VOCABULARY)

    def forward(self, x):
        return self.logits(self.norm(self.blocks(self.words(x) + self.places))).transpose(1, 2)


class Recommender(nn.Module):
    """Two tables with sparse gradients."""

    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(workloads.NUM_USERS, workloads.FACTORS, sparse=True)
        self.items = nn.Embedding(workloads.NUM_ITEMS, workloads.FACTORS, sparse=True)
        self.hidden, self.logits = nn.Linear(2 * workloads.FACTORS, 64), nn.Linear(64, 2)

    def forward(self, x):
        pair = torch.cat([self.users(x[:, 0]), self.items(x[:, 1])], 1)
        return self.logits(functional.relu(self.hidden(pair)))


def divided(model: nn.Module) -> nn.Module:
    """By FSDP2, each layer by itself, or each block of a transformer."""
    for part in model.modules():
        if isinstance(part, Block) or (isinstance(part, nn.Linear) and not isinstance(model, Gpt)):
            fully_shard(part)
    return fully_shard(model)


MODELS = {"mlp": mlp, "wide": wide, "cnn": cnn, "resnet": resnet, "gpt": Gpt, "recommender": Recommender}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--ranks", type=int, default=2, help="how many ranks share a step's rows (%(default)s)")
    parser.add_argument("--rank", type=int, default=0, help="this one (%(default)s)")
    parser.add_argument("--fsdp", action="store_true", help="divides weights, gradients and state")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    address, port = os.environ["BENCHMARK_WORKERS"].split(",")[0].split(":")
    dist.init_process_group("gloo", init_method=f"tcp://{address}:{port}", world_size=args.ranks, rank=args.rank)
    workload = WORKLOADS[args.workload]
    model = MODELS[args.workload]()
    model = divided(model) if args.fsdp else DistributedDataParallel(model)
    rate = workload.learning_rate
    if rate is None:
        optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    else:
        optimizer = torch.optim.SGD(model.parameters(), rate)
    rows = workload.rows(workload.rows_per_rank * workload.num_steps * args.ranks)
    x, y = (torch.from_numpy(share(array, args.rank, args.ranks)) for array in rows)
    if x.ndim == 4:
        x = x.permute(0, 3, 1, 2).contiguous()
    x, y = (tensor.split(workload.rows_per_rank) for tensor in (x, y.long()))
    loss_of = nn.CrossEntropyLoss()

    seconds = {FORWARD_BACKWARD: 0.0, UPDATE: 0.0, REST: 0.0}  # of the last epoch

    def epoch():
        last = begin = time.perf_counter()
        seconds.update(dict.fromkeys(seconds, 0.0))

        def note(phase: str) -> None:
            nonlocal last
            now = time.perf_counter()
            seconds[phase] += now - last
            last = now

        for inputs, targets in zip(x, y, strict=True):
            optimizer.zero_grad()
            note(REST)
            loss = loss_of(model(inputs), targets)
            loss.backward()
            note(FORWARD_BACKWARD)  # and reduce, which DDP does at the same time
            optimizer.step()
            note(UPDATE)
        loss.item()
        return time.perf_counter() - begin

    serve(epoch, lambda: {"phases": {phase: 1000 * each / len(x) for phase, each in seconds.items()}})


if __name__ == "__main__":
    main()
